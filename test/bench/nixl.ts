/**
 * How fast the nixl transport is over host memory, between two processes of this machine: matching layouts against NIXL's
 * own read of as many contiguous bytes, head slices against the way with one descriptor for each token, which is what
 * the reference does. Both are made by one agent, as NIXL by itself reads; the transport reads with two threads, so what it
 * makes of contiguous bytes stands beside it. Taken in turns, medians; one value of every slice is compared after each
 * measurement.
 */
import { isAbsolute } from 'node:path';
import type { JsonObject } from '../../lib/json.js';
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import type { Region } from '../../lib/memory/region.js';
import { programBytes, type CopyProgram, type Loop } from '../../lib/transfer/copy-program.js';
import { nixlCandidates } from '../../lib/transfer/transports/nixl-library.js';
import { NixlTransport, type NixlTransportOptions } from '../../lib/transfer/transports/nixl.js';
import type { Peer } from '../../lib/transfer/transport.js';
import type { BenchRow } from '../support/bench-row.js';
import { BenchChild } from '../support/bench-child.js';
import { contiguous } from '../support/contiguous.js';
import { median } from '../support/median.js';
import { eachFragment } from '../support/program-oracle.js';
import { scattered } from '../support/scattered.js';

const poolBytes = 512 << 20;
const seed = 12_345;
const rounds = 7;

const word = (at: number): number => Math.imul(at + seed, 2654435761) >>> 0;

interface End {
  readonly transport: NixlTransport;
  readonly region: Region;
  readonly peer: Peer;
}

function blocksOf(blockBytes: number, count: number, fragmentBytes: number, loops: readonly Loop[]): CopyProgram {
  const below = poolBytes / blockBytes;
  const strides = { sourceBlock: blockBytes, targetBlock: blockBytes, sourceSub: 0, targetSub: 0 };
  return {
    rectangles: [
      {
        ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: count },
        ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes, loops },
      },
    ],
    tables: [{ source: scattered(below, count, 7), target: scattered(below, count, 11), strides }],
  };
}

/** Blocks of 64 tokens of eight heads; the first `heads` of them move. */
function headSlices(heads: number, headBytes: number, bytes: number): CopyProgram {
  const tokenBytes = 8 * headBytes;
  const loop = { count: 64, sourceStride: tokenBytes, targetStride: tokenBytes };
  return blocksOf(64 * tokenBytes, bytes / (64 * heads * headBytes), heads * headBytes, [loop]);
}

async function connect(grant: JsonObject, options: NixlTransportOptions): Promise<End> {
  const region = allocateHostRegion({ bytes: poolBytes });
  const transport = new NixlTransport({ exports: false, ...options });
  transport.register(region);
  await transport.open();
  const peer = transport.connect(grant);
  while (peer.status() === 'connecting') await new Promise((resolve) => setTimeout(resolve, 1));
  if (peer.error !== null) throw peer.error;
  return { transport, region, peer };
}

/** Seconds from the request until its end shows. */
async function pull({ transport, region, peer }: End, program: CopyProgram): Promise<number> {
  const ended = new Promise<void>((resolve, reject) => {
    transport.onWake = () => {
      for (const handle of transport.takeChanged()) {
        if (handle.poll() === 'done') resolve();
        else reject(handle.error ?? new Error('the pull failed'));
      }
    };
  });
  const started = process.hrtime.bigint();
  transport.begin({ programs: [program], generations: null, tag: 'bench' }, peer);
  await ended;
  const seconds = Number(process.hrtime.bigint() - started) / 1e9;
  const words = new Uint32Array(region.buffer as ArrayBuffer);
  eachFragment(program, (_, from, __, to) => {
    if (words[to / 4] !== word(from / 4)) throw new Error(`byte ${to} is not the source's byte ${from}`);
    words[to / 4] = 0;
  });
  return seconds;
}

async function compare(
  name: string,
  against: string,
  target: number,
  [ours, program]: readonly [End, CopyProgram],
  [theirs, other]: readonly [End, CopyProgram],
): Promise<BenchRow> {
  const measured: number[] = [];
  const compared: number[] = [];
  for (let round = -1; round < rounds; round += 1) {
    const mine = programBytes(program) / (await pull(ours, program)) / 1e9;
    const plain = programBytes(other) / (await pull(theirs, other)) / 1e9;
    // The first touches memory that was never touched.
    if (round < 0) continue;
    measured.push(mine);
    compared.push(plain);
  }
  const [value, plain] = [median(measured), median(compared)];
  const ratio = value / plain;
  return {
    ...{ name, value, unit: 'GB/s', against: `${against}: ${plain.toPrecision(3)} GB/s`, ratio },
    ...{ target: target >= 1 ? `≥ ${target}` : `≥ ${target.toFixed(2)}`, ok: ratio >= target },
  };
}

export async function run(): Promise<BenchRow[]> {
  if (!nixlCandidates().some((path) => isAbsolute(path))) {
    throw new Error('no NIXL library was found; `npm run fetch:nixl` brings one');
  }
  const child = new BenchChild('nixl-end');
  try {
    const grant = await child.ask('open', { bytes: poolBytes, seed });
    const packs = await connect(grant, {});
    const plain = await connect(grant, { directBytesMin: 0, readThreads: 1 });
    const rows: BenchRow[] = [];
    const moved = 256 << 20;
    const merged = [plain, contiguous(moved)] as const;
    for (const kib of [32, 128]) {
      const program = blocksOf(kib << 10, moved / (kib << 10), kib << 10, []);
      const name = `nixl pull over host memory, ${kib} KiB slices`;
      rows.push(await compare(name, 'contiguous read of one agent', 0.9, [packs, program], merged));
    }
    const together = await compare(
      'nixl pull, contiguous',
      'the same by one agent',
      0,
      [packs, contiguous(moved)],
      merged,
    );
    rows.push({ ...together, target: null, ok: true });
    for (const [heads, headBytes, bytes] of [
      [4, 256, 128 << 20],
      [1, 256, 64 << 20],
      [1, 128, 64 << 20],
    ] as const) {
      const program = headSlices(heads, headBytes, bytes);
      const name = `nixl pull, 8 → ${heads} heads, slices of ${heads * headBytes} bytes, packed`;
      rows.push(await compare(name, 'one descriptor a token', 10, [packs, program], [plain, program]));
    }
    for (const { transport, region } of [packs, plain]) {
      transport.onWake = null;
      await transport.close();
      region.close();
    }
    return rows;
  } finally {
    child.end();
  }
}
