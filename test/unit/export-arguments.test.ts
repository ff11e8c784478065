/**
 * Every function and class of the main entry, called rightly and then with one value of its arguments after another
 * replaced by nonsense: it works, or throws a `HandoffError`; a bare `TypeError` from inside says nothing to the caller.
 * An export without a row fails.
 */
import * as entry from '../../lib/index.js';
import { HandoffError } from '../../lib/errors.js';
import { defaultTicketLimits } from '../../lib/limits.js';
import { exportKvDescriptor } from '../../lib/prefill/handoff-metadata.js';
import { rankPositions, smallShape, TestMemory } from '../../lib/testing/test-memory.js';
import { spoiled, type Values } from '../support/nonsense.js';

const geometry = {
  region: 0,
  offsetBytes: 0,
  elementBytes: 2,
  axes: [
    { name: 'layer', size: 2, strideBytes: 4096 },
    { name: 'block', size: 4, strideBytes: 1024 },
    { name: 'token', size: 4, strideBytes: 256 },
    { name: 'plane', size: 2, strideBytes: 128 },
    { name: 'head', size: 2, strideBytes: 64 },
    { name: 'dim', size: 32, strideBytes: 2 },
  ],
};
const kvLayout = { ...entry.makeKvLayout({ numLayersGlobal: 2, numKvHeadsGlobal: 2, headDim: 32 }) };
const ssmLayout = {
  ...{ globalRank: 0, tpSize: 1, tpRank: 0, layerStart: 0, numLayers: 2 },
  dims: { nheads: 2, headdim: 4, dState: 4, ngroups: 1, dConv: 4 },
};
const conv = {
  ...{ region: 0, offsetBytes: 0, elementBytes: 2 },
  axes: [
    { name: 'layer', size: 2, strideBytes: 512 },
    { name: 'slot', size: 4, strideBytes: 128 },
    { name: 'channel', size: 16, strideBytes: 8 },
    { name: 'dim', size: 4, strideBytes: 2 },
  ],
};
const recurrent = {
  ...{ region: 1, offsetBytes: 0, elementBytes: 2 },
  axes: [
    { name: 'layer', size: 2, strideBytes: 512 },
    { name: 'slot', size: 4, strideBytes: 128 },
    { name: 'head', size: 2, strideBytes: 32 },
    { name: 'dim', size: 16, strideBytes: 2 },
  ],
};
const kvEndpoint = { layout: kvLayout, buffers: [geometry], layerStarts: [0] };
const ssmEndpoint = { layout: ssmLayout, conv, recurrent };
const program = {
  rectangles: [
    {
      ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: 2 },
      ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: 64 },
      loops: [{ count: 2, sourceStride: 128, targetStride: 128 }],
    },
  ],
  tables: [
    {
      ...{ source: Int32Array.of(0, 1), target: Int32Array.of(1, 0) },
      strides: { sourceBlock: 256, targetBlock: 256, sourceSub: 0, targetSub: 0 },
    },
  ],
};
const { kv, regions } = new TestMemory(smallShape, rankPositions(1, 1)[0]!, 9, 3);
const described = exportKvDescriptor({
  kv,
  regions,
  blockSize: smallShape.blockSize,
  poolSize: 9,
  transports: {},
  place: null,
});
const instance = JSON.parse(JSON.stringify([described])) as unknown;
const limits = { ...defaultTicketLimits };
const card = {
  ...{ protocolVersion: 1, instance: 'p', incarnation: 'i', role: 'prefill', model: 'm', dtype: 'float16' },
  ...{ blockSize: 16, contextLength: 4096, maxRequests: 8, totalBlocks: 64, numSpeculativeTokens: 0, epoch: 0 },
  transports: ['host'],
  kv: { tokensPerBlock: 16, elementBytes: 2, headDim: 32, numLayersGlobal: 2, numKvHeadsGlobal: 2 },
  ssm: null,
};
const ticket = { requestId: 7, blockIds: [1, 2], kvMeta: {}, handoff: null, extra: {} };
const shard = { tp: 1, pp: 1, ep: 1, dp: 2, exptTp: 1, role: 'prefill' };
const shards = { ...entry.parseInferenceShards('tp=1,role=prefill;tp=1,role=decode') };
const table = [{ name: 'host', create: () => null, whyNot: () => null }];

/** Arguments that every export takes as they are, or refuses for a reason of this machine. */
const rows: Readonly<Record<string, Values>> = {
  BlockPool: [
    { poolSize: 8, evictionPolicy: 'lru', generations: new entry.Generations(9), onObserverError: () => null },
  ],
  CudaIpcTransport: [{ transfersMax: 8, handshakeMs: 5 }],
  Generations: [4],
  HostTransport: [{ threads: 1, transfersMax: 8, handshakeMs: 100, blockGenerations: new entry.Generations(4) }],
  NcclTransport: [
    { pushes: false, chunkBytes: 65536, packed: true, transfersMax: 4, host: '127.0.0.1', libraries: ['no'] },
  ],
  NixlTransport: [{ libraries: ['no'], readThreads: 1 }],
  SsmSlotPool: [{ maxRequests: 4, dummySlot: true, generations: new entry.Generations(5) }],
  allocateCudaRegion: [{ bytes: 4096, device: 0, virtualMemory: false }],
  allocateHostRegion: [{ bytes: 4096, name: 'a region' }],
  checkCompatible: [card, { ...card, role: 'decode' }],
  checkProgram: [program, [4096], [4096], { wanted: [] }],
  computeBlockHashes: [[1, 2, 3, 4], 2, { salt: 's' }],
  computeBlockHashesAsync: [[1, 2, 3, 4], 2, { salt: 's' }],
  cudaStreamFence: [{ device: 0, stream: 0n }],
  decodeAdmission: [
    { promptTokens: 7, cachedTokens: 0, resumeTokens: 1, blockSize: 4, prefillBlocks: 2, numSpeculativeTokens: 0 },
  ],
  decodeTicket: [entry.encodeTicket(ticket), limits],
  describeCuda: [],
  describeProgram: [program],
  disaggregatedParams: [ticket],
  encodeTicket: [ticket, limits],
  importCudaRegion: [{ address: 4096n, byteLength: 4096, owner: {} }],
  isHandoffError: [new Error()],
  lowerToDescriptors: [program, 'nixl'],
  makeKvLayout: [
    { numLayersGlobal: 4, numKvHeadsGlobal: 2, headDim: 8, tpSize: 1, tpRank: 0, ppSize: 2, ppRank: 1, globalRank: 1 },
  ],
  makeSsmLayout: [ssmLayout],
  orderTransports: [table, ['host']],
  parentHashes: [BigInt64Array.of(3n, 4n)],
  parseInferenceShards: ['tp=1', 1],
  parseInstanceCard: [card],
  planInstances: [instance, instance, 'first', limits],
  planKv: [kvEndpoint, kvEndpoint],
  planKvReshard: [[kvLayout], [kvLayout]],
  planSsm: [ssmEndpoint, ssmEndpoint],
  planSsmReshard: [[ssmLayout], [ssmLayout]],
  programBytes: [program],
  rectangleBetween: [geometry, geometry, { layer: { source: 0, target: 0, count: 1 } }, 'block', {}],
  requireDisaggregated: [shards],
  rowMajorBuffer: [
    {
      region: 0,
      offsetBytes: 0,
      elementBytes: 2,
      axes: [
        ['block', 4],
        ['token', 2],
      ],
      paddingBytes: { block: 8 },
    },
  ],
  selectTransport: [table, { host: {} }, { host: {} }],
  shardInstances: [shards],
  shardObject: [shard],
  ticketFromParams: [{ request_id: 7, block_ids: [1], kv_meta: {} }, limits],
  'InProcessRankGroup.create': [2, { delivery: () => 'now' }],
  'SocketRankGroup.create': [
    { rank: 0, size: 1, address: { path: '/nowhere' }, token: 'a token of no meaning', setupTimeoutMs: 5 },
  ],
};

/** Covered by their own matrix of misuse. */
const elsewhere = new Set(['StateHandoff', 'InProcessRankGroup', 'SocketRankGroup', 'HandoffError']);
const isClass = (value: unknown): boolean =>
  typeof value === 'function' && Function.prototype.toString.call(value).startsWith('class ');

async function call(name: string, values: Values): Promise<void> {
  const [head = '', member] = name.split('.');
  const owner = (entry as Record<string, unknown>)[head] as Record<string, (...given: unknown[]) => unknown>;
  const target = member === undefined ? owner : owner[member];
  const made = isClass(target)
    ? new (target as unknown as new (...given: unknown[]) => unknown)(...values)
    : await (target as unknown as (...given: unknown[]) => unknown).apply(owner, [...values]);
  await (made as { close?: () => unknown } | null | undefined)?.close?.();
}

test('every function and class of the entry has a row', () => {
  const callable = Object.entries(entry).filter(([name, value]) => typeof value === 'function' && !elsewhere.has(name));
  expect(
    Object.keys(rows)
      .filter((name) => !name.includes('.'))
      .sort(),
  ).toEqual(callable.map(([name]) => name).sort());
});

/** What only a machine with a GPU takes; elsewhere the driver is what is missing. */
const onlyWithGpu = new Set([
  'CudaIpcTransport',
  'allocateCudaRegion',
  'cudaStreamFence',
  'describeCuda',
  'importCudaRegion',
]);
const refusal = async (name: string, values: Values): Promise<unknown> =>
  call(name, values).then(
    () => null,
    (error: unknown) => error,
  );

describe.each(Object.entries(rows))('%s', (name, values) => {
  test('takes what it is made for', async () => {
    const error = await refusal(name, values);
    if (onlyWithGpu.has(name) && error !== null) {
      expect(error).toMatchObject({
        name: 'HandoffError',
        code: expect.stringMatching(/^TRANSPORT_UNAVAILABLE$|^ARGUMENT_INVALID$/) as string,
      });
    } else {
      expect(error).toBeNull();
    }
  });

  test('refuses nonsense by name, anywhere in its arguments', async () => {
    const bare: string[] = [];
    for (const [path, bad] of spoiled(values, 'arguments')) {
      if (!Array.isArray(bad)) continue;
      const error = await refusal(name, bad);
      if (error !== null && !(error instanceof HandoffError)) bare.push(`${path}: ${String(error)}`);
    }
    expect(bare).toEqual([]);
  });
});
