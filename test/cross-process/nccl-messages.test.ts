/**
 * The unpacked mode of the NCCL transport between two processes, over stand-ins for NCCL and CUDA: what is sent is, message
 * by message and byte by byte, what the reference's backend sends (spec 7.4), and it arrives where it belongs.
 */
import { allocateCudaRegion, type CudaRegion } from '../../lib/memory/cuda-region.js';
import type { JsonObject } from '../../lib/json.js';
import { rowMajorBuffer } from '../../lib/memory/axes-geometry.js';
import { makeKvLayout } from '../../lib/memory/kv-layout.js';
import { makeSsmLayout } from '../../lib/memory/ssm-layout.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import { planKv, type KvEndpoint } from '../../lib/transfer/plan-kv.js';
import { planSsm, type SsmEndpoint } from '../../lib/transfer/plan-ssm.js';
import { lowerToDescriptors } from '../../lib/transfer/program-descriptors.js';
import { programOver } from '../../lib/transfer/program-table.js';
import { NcclTransport } from '../../lib/transfer/transports/nccl.js';
import type { Peer, TransferHandle } from '../../lib/transfer/transport.js';
import { startChild, type Child } from '../support/child-process.js';
import { noteSent, useFakeNccl } from '../support/fake-nccl.js';
import { blockProgram, waitFor } from '../support/host-fixture.js';
import { eachFragment } from '../support/program-oracle.js';

const bytes = 1 << 18;
const filler = 0xee;
const options = { chunkBytes: 4096, packed: false };

let env: Record<string, string> = {};
let region: CudaRegion;
let transport: NcclTransport;
let peer: Peer;
let child: Child;

beforeAll(() => {
  env = useFakeNccl();
});

beforeEach(async () => {
  region = allocateCudaRegion({ bytes });
  region.write(0, new Uint8Array(bytes).fill(filler));
  transport = new NcclTransport({ pushes: false, ...options });
  transport.register(region);
  await transport.open();
  child = startChild('nccl-end', [], env);
  const grant = await child.ask<JsonObject>('open', { bytes, seed: 5, options });
  expect(await child.ask('connect', { grant: transport.grant() })).toBeNull();
  peer = transport.connect(grant);
});

afterEach(async () => {
  await transport.close();
  region.close();
});

function kv(tpSize: number, tpRank: number, axes: 'row-major' | 'block-first'): KvEndpoint {
  const layout = makeKvLayout({ numLayersGlobal: 3, numKvHeadsGlobal: 4, headDim: 8, tpSize, tpRank });
  const [outer, inner] = [[['plane', 2] as const, ['layer', 3] as const], [['token', 4] as const]];
  const blocks = ['block', 12] as const;
  const order = axes === 'row-major' ? [...outer, blocks, ...inner] : [blocks, ...outer, ...inner];
  const buffer = rowMajorBuffer({ elementBytes: 2, axes: [...order, ['head', 4 / tpSize], ['dim', 8]] });
  return { layout, buffers: [buffer], layerStarts: [0] };
}

const dims = { nheads: 4, headdim: 2, dState: 3, ngroups: 2, dConv: 2 };

/** Behind the attention state, in the same region. */
function ssm(tpSize: number, tpRank: number): SsmEndpoint {
  const buffer = (offsetBytes: number, unit: 'channel' | 'head', size: number, dim: number) =>
    rowMajorBuffer({
      ...{ offsetBytes, elementBytes: 2 },
      axes: [
        ['layer', 3],
        ['slot', 3],
        [unit, size / tpSize],
        ['dim', dim],
      ],
    });
  const layout = makeSsmLayout({ globalRank: tpRank, tpSize, tpRank, layerStart: 0, numLayers: 3, dims });
  return { layout, conv: buffer(1 << 16, 'channel', 20, 2), recurrent: buffer(1 << 17, 'head', 4, 6) };
}

const rows = { source: Int32Array.of(7, 0, 3, 11, 5), target: Int32Array.of(1, 2, 9, 4, 0) };

function handoff(): CopyProgram[] {
  const attention = programOver(planKv(kv(1, 0, 'row-major'), kv(2, 1, 'block-first')), rows);
  const state = programOver(planSsm(ssm(1, 0), ssm(2, 1)), { source: Int32Array.of(2), target: Int32Array.of(1) });
  return [attention, state];
}

const cases: readonly (readonly [string, readonly CopyProgram[]])[] = [
  ['attention and SSM state, heads split', handoff()],
  // More than are posted together; each lies in one piece, so none of them is staged.
  ['700 whole blocks', [blockProgram(...permuted(700), 256)]],
  ['one piece larger than a chunk', [blockProgram(Int32Array.of(0), Int32Array.of(0), bytes)]],
];

function permuted(count: number): [Int32Array, Int32Array] {
  const ids = Int32Array.from({ length: count }, (_, index) => (index * 37 + 5) % count);
  return [ids, ids.slice().reverse()];
}

function sourceBytes(): Uint8Array {
  const words = Uint32Array.from({ length: bytes / 4 }, (_, i) => Math.imul(i + 5, 2654435761) >>> 0);
  return new Uint8Array(words.buffer);
}

/** As the source sees it: it does not know where blocks go over there. */
const asSource = (programs: readonly CopyProgram[]): CopyProgram[] =>
  programs.map(({ rectangles, tables }) => ({
    rectangles,
    tables: tables.map((table) => ({ ...table, target: Int32Array.from(table.target, (_, row) => row) })),
  }));

async function quiet(handle: TransferHandle): Promise<void> {
  await waitFor('a transfer to be quiet', () => {
    transport.takeChanged();
    return ['done', 'failed-quiet'].includes(handle.poll());
  });
}

test.each(cases)(
  'field report 55: %s: the messages of the reference, in an order both sides derive, and every byte in its place',
  async (_, programs) => {
    const sent = noteSent(child.process.pid!);
    const handle = transport.begin({ programs, generations: null, tag: 'h' }, peer);
    await child.ask('push', { tag: 'h', programs: asSource(programs) });
    await quiet(handle);
    expect(handle.error).toBeNull();
    expect(await child.ask('ended', { tag: 'h' })).toMatchObject({ status: 'done', bytes: handle.bytesDone });

    const from = sourceBytes();
    const messages = programs
      .flatMap((program) => lowerToDescriptors(program, 'nccl'))
      .map(({ source, bytes: each }) => Buffer.concat([...source].map((at) => from.subarray(at, at + each))));
    const got = sent();
    expect(got.map(({ length }) => length)).toEqual(messages.map(({ length }) => length));
    expect(got.every((message, index) => Buffer.compare(message, messages[index]!) === 0)).toBe(true);

    const expected = new Uint8Array(bytes).fill(filler);
    for (const program of programs) {
      eachFragment(program, (__, at, ___, to, length) => expected.set(from.subarray(at, at + length), to));
    }
    const now = new Uint8Array(bytes);
    region.read(0, now);
    expect(Buffer.compare(now, expected)).toBe(0);
  },
);

test('a scattered block that is larger than a chunk is refused on both sides', async () => {
  const [rectangle] = blockProgram(Int32Array.of(0), Int32Array.of(0), 16_384).rectangles;
  const { tables } = blockProgram(Int32Array.of(0), Int32Array.of(0), 16_384);
  const loops = [{ count: 8, sourceStride: 2048, targetStride: 2048 }];
  const programs = [{ rectangles: [{ ...rectangle!, fragmentBytes: 1024, loops }], tables }];
  const handle = transport.begin({ programs, generations: null, tag: 'h' }, peer);
  await child.ask('push', { tag: 'h', programs });
  await quiet(handle);
  expect(handle.error?.code).toMatch(/NATIVE_LIMIT|PEER_LOST/);
  expect(await child.ask('ended', { tag: 'h' })).toMatchObject({
    status: 'failed-quiet',
    error: expect.stringMatching(/NATIVE_LIMIT|PEER_LOST/),
  });
});

test('a peer that packs is refused', async () => {
  const grant = { ...transport.grant(), packed: true };
  expect(await child.ask('connect', { grant })).toBe('PEER_REFUSED');
});
