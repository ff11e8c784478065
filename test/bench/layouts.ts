/**
 * What another layout costs. Planning: 32,768 tokens of 64 layers and 8 heads from TP 4 to one rank of TP 2, to a checked
 * program, against listing what the program stands for, and for other lengths and buffers. Pulling: half of each token's heads
 * (8 → 4, 64-token blocks) over the host transport, for slices of 64 bytes to 64 KiB, against a plain memcpy over the
 * same slices, listed beforehand. The slice of 128 two-byte dims is 1 KiB.
 */
import { rowMajorBuffer, type AxisName, type BufferGeometry } from '../../lib/memory/axes-geometry.js';
import { makeKvLayout } from '../../lib/memory/kv-layout.js';
import { checkProgram } from '../../lib/transfer/check-program.js';
import { programBytes, type CopyProgram } from '../../lib/transfer/copy-program.js';
import type { PeerRank } from '../../lib/transfer/peer-pairing.js';
import { PeerPlans } from '../../lib/transfer/peer-plans.js';
import { lowerToDescriptors } from '../../lib/transfer/program-descriptors.js';
import type { Peer, Transport } from '../../lib/transfer/transport.js';
import type { BenchRow } from '../support/bench-row.js';
import { choiceOf } from '../support/transport-choice.js';
import { best, poolBytes, Rig, threads } from './host-transport.js';
import { scattered } from '../support/scattered.js';

const model = { numLayersGlobal: 64, numKvHeadsGlobal: 8, headDim: 128 };
const planMsMax = 1;
const pullMin = 0.9;
const blockTokens = 64;
const rounds = 9;

type Buffers = 'one buffer' | 'a buffer a layer for K and for V';

/** Ranks of a tensor-parallel instance with a pool of `blocks` blocks of 16 tokens. */
function ranks(tpSize: number, blocks: number, buffers: Buffers): PeerRank[] {
  return Array.from({ length: tpSize }, (_, tpRank) => {
    const layout = makeKvLayout({ ...model, tpSize, tpRank, globalRank: tpRank });
    const inner: readonly (readonly [AxisName, number])[] = [
      ['block', blocks],
      ['token', 16],
      ['head', model.numKvHeadsGlobal / tpSize],
      ['dim', model.headDim],
    ];
    const made: BufferGeometry[] = [];
    const layerStarts: number[] = [];
    if (buffers === 'one buffer') {
      made.push(rowMajorBuffer({ elementBytes: 2, axes: [['plane', 2], ['layer', model.numLayersGlobal], ...inner] }));
      layerStarts.push(0);
    } else {
      for (let layer = 0; layer < model.numLayersGlobal; layer += 1) {
        for (const planeStart of [0, 1]) {
          made.push(rowMajorBuffer({ region: made.length, elementBytes: 2, axes: inner, planeStart }));
          layerStarts.push(layer);
        }
      }
    }
    return {
      key: `peer/${tpRank}`,
      ...{ kv: { layout, buffers: made, layerStarts }, ssm: null, transports: { fake: tpRank } },
    };
  });
}

const peer = { status: () => 'ready', error: null, close: () => undefined } as unknown as Peer;
const transport = { name: 'fake', capabilities: { direction: 'pull' }, connect: () => peer } as unknown as Transport;

/** Milliseconds from the peer's ranks to checked programs: the first time, and with the pair's plan kept. */
function plan(tokens: number, buffers: Buffers): { first: number; kept: number; programs: readonly CopyProgram[] } {
  const blocks = tokens / 16;
  const pool = 2 * blocks + 1;
  const source = ranks(4, pool, buffers);
  const [own] = ranks(2, pool, buffers);
  const regions = own!.kv.buffers.length;
  const sizes = (tpSize: number): number[] => {
    const whole = 2 * pool * 16 * model.numLayersGlobal * model.numKvHeadsGlobal * model.headDim * 2;
    return new Array<number>(regions).fill(whole / regions / tpSize);
  };
  const [sourceIds, targetIds] = [scattered(pool, blocks, 1), scattered(pool, blocks, 2)];
  const times: { first: number[]; kept: number[] } = { first: [], kept: [] };
  let programs: readonly CopyProgram[] = [];
  for (let round = 0; round < 4 * rounds; round += 1) {
    const plans = new PeerPlans(own!, choiceOf(transport));
    const peerRanks = [...source];
    for (const kind of ['first', 'kept'] as const) {
      const started = performance.now();
      const legs = plans.legs({
        ranks: peerRanks,
        shares: peerRanks.map(() => ({ blockIds: sourceIds, slot: null })),
        ...{ skipBlocks: 0, localBlocks: targetIds, localSlot: null },
        ...{ blockGenerations: null, slotGeneration: null, tag: 'bench' },
      });
      programs = legs.flatMap(({ request }) => request.programs);
      for (const program of programs) checkProgram(program, sizes(4), sizes(2));
      times[kind].push(performance.now() - started);
    }
  }
  return { first: best(times.first), kept: best(times.kept), programs };
}

function planRows(): BenchRow[] {
  const rows: BenchRow[] = [];
  const { first, kept, programs } = plan(32_768, 'one buffer');
  const started = performance.now();
  const listed = programs
    .flatMap((program) => lowerToDescriptors(program, 'nixl'))
    .reduce((count, { source }) => count + source.length, 0);
  const listMs = performance.now() - started;
  const rectangles = programs.reduce((count, program) => count + program.rectangles.length, 0);
  rows.push({
    name: `plan, 32,768 tokens, TP 4 → TP 2, ${rectangles} rectangles, first of a pair`,
    ...{ value: first, unit: 'ms', against: `listing ${listed} descriptors: ${listMs.toFixed(0)} ms` },
    ...{ ratio: listMs / first, target: `≤ ${planMsMax} ms`, ok: first <= planMsMax },
  });
  const row = (name: string, value: number, against: string, ratio: number): BenchRow => ({
    ...{ name, value, unit: 'ms', against, ratio, target: `≤ ${planMsMax} ms`, ok: value <= planMsMax },
  });
  rows.push(row('plan, the same with the pair’s plan kept', kept, `the first: ${first.toFixed(3)} ms`, first / kept));
  const short = plan(2_048, 'one buffer');
  const against = `of 32,768 tokens: ${first.toFixed(3)} ms`;
  rows.push(row('plan, 2,048 tokens, first of a pair', short.first, against, first / short.first));
  const many = plan(32_768, 'a buffer a layer for K and for V');
  const pairs = many.programs.reduce((count, program) => count + program.rectangles.length, 0);
  const name = `plan, 32,768 tokens, ${pairs} pairs of buffers`;
  rows.push(
    row(`${name}, first of a pair`, many.first, `one buffer: ${first.toFixed(3)} ms`, first / many.first),
    row(`${name}, the pair’s plan kept`, many.kept, `one buffer: ${kept.toFixed(3)} ms`, kept / many.kept),
  );
  return rows;
}

/** Slices of half the bytes of each token: the source has eight heads, the target four. */
function slices(fragmentBytes: number): CopyProgram {
  const targetBlock = blockTokens * fragmentBytes;
  const sourceBlock = 2 * targetBlock;
  const moved = Math.min(128 << 20, fragmentBytes * 2 ** 18);
  const count = moved / targetBlock;
  return {
    rectangles: [
      {
        ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: count },
        ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes },
        loops: [{ count: blockTokens, sourceStride: 2 * fragmentBytes, targetStride: fragmentBytes }],
      },
    ],
    tables: [
      {
        source: scattered(Math.min(poolBytes / sourceBlock, 8 * count), count, 1),
        target: scattered(Math.min(poolBytes / targetBlock, 8 * count), count, 2),
        strides: { sourceBlock, targetBlock, sourceSub: 0, targetSub: 0 },
      },
    ],
  };
}

async function pullRows(): Promise<BenchRow[]> {
  const rig = await Rig.start();
  const rows: BenchRow[] = [];
  try {
    const connection = await rig.connect();
    for (let bytes = 64; bytes <= 64 << 10; bytes *= 4) {
      const program = slices(bytes);
      const ours: number[] = [];
      const loop: number[] = [];
      await rig.pull(program, connection);
      rig.verify(program);
      rig.halfHeads(program, connection);
      rig.verify(program);
      for (let round = 0; round < rounds; round += 1) {
        ours.push(await rig.pull(program, connection));
        loop.push(rig.halfHeads(program, connection));
      }
      rig.verify(program);
      const speed = (seconds: number): number => programBytes(program) / seconds / 1e9;
      const ratio = best(loop) / best(ours);
      const isTarget = bytes === 1 << 10;
      rows.push({
        name: `host pull, 8 → 4 heads, 64-token blocks, slices of ${bytes < 1024 ? `${bytes} B` : `${bytes >> 10} KiB`}`,
        ...{ value: speed(best(ours)), unit: 'GB/s', ratio },
        against: `loops written for this shape, ${threads} threads: ${speed(best(loop)).toFixed(2)} GB/s`,
        ...{ target: isTarget ? `≥ ${pullMin.toFixed(2)}` : null, ok: !isTarget || ratio >= pullMin },
      });
    }
    connection.close();
  } finally {
    await rig.stop();
  }
  return rows;
}

export async function run(): Promise<BenchRow[]> {
  return [...planRows(), ...(await pullRows())];
}
