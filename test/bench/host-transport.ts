/**
 * How fast the host transport is: 256 MiB from another process in scattered slices of 32 KiB and 128 KiB and head-sliced,
 * against a plain native memcpy over the same fragments, expanded beforehand, from the same mapping, with the same
 * chunks and threads. Once with page tables in place and once with a mapping that was never touched. Bytes are compared
 * after every measurement.
 */
import { availableParallelism, cpus } from 'node:os';
import type { JsonObject } from '../../lib/json.js';
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import type { Region } from '../../lib/memory/region.js';
import { addon } from '../../lib/native/addon.js';
import { programBytes, type CopyProgram, type Loop } from '../../lib/transfer/copy-program.js';
import { HostTransport } from '../../lib/transfer/transports/host.js';
import type { BrokerLink } from '../../lib/transfer/transports/broker-link.js';
import type { LinkPeer } from '../../lib/transfer/transports/shared-link.js';
import type { BenchRow } from '../support/bench-row.js';
import { BenchChild } from '../support/bench-child.js';
import { eachFragment } from '../support/program-oracle.js';
import { scattered } from '../support/scattered.js';

type HostPeer = LinkPeer<BrokerLink> & { readonly link: BrokerLink };

export const poolBytes = 512 << 20;
const movedBytes = 256 << 20;
const seed = 12_345;
export const threads = Math.min(4, availableParallelism());
const warmRuns = 9;
const coldRuns = 5;
const target = 0.9;

interface Layout {
  readonly name: string;
  readonly sourceBlock: number;
  readonly targetBlock: number;
  readonly fragmentBytes: number;
  readonly loops: readonly Loop[];
}

const layouts: readonly Layout[] = [
  { name: '32 KiB slices', sourceBlock: 32 << 10, targetBlock: 32 << 10, fragmentBytes: 32 << 10, loops: [] },
  { name: '128 KiB slices', sourceBlock: 128 << 10, targetBlock: 128 << 10, fragmentBytes: 128 << 10, loops: [] },
  {
    // Four heads of 128 two-byte values a token, into blocks of 16 tokens of eight heads.
    name: 'head slices of 1 KiB',
    sourceBlock: 16 << 10,
    targetBlock: 32 << 10,
    fragmentBytes: 1 << 10,
    loops: [{ count: 16, sourceStride: 1 << 10, targetStride: 2 << 10 }],
  },
];

function programOf({ sourceBlock, targetBlock, fragmentBytes, loops }: Layout): CopyProgram {
  const perBlock = loops.reduce((bytes, loop) => bytes * loop.count, fragmentBytes);
  const rows = movedBytes / perBlock;
  return {
    rectangles: [
      {
        ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: rows },
        ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes, loops },
      },
    ],
    tables: [
      {
        source: scattered(poolBytes / sourceBlock, rows, 1),
        target: scattered(poolBytes / targetBlock, rows, 2),
        strides: { sourceBlock, targetBlock, sourceSub: 0, targetSub: 0 },
      },
    ],
  };
}

/** The native transport, which the plain copies ask for a peer's memory. */
function endpointOf(transport: HostTransport): object {
  return (transport as unknown as { side: { setting: { endpoint: object } } }).side.setting.endpoint;
}

/** Two processes with a region of 512 MiB each, and both ways to copy between them. */
export class Rig {
  private readonly region: Region;
  private readonly transport: HostTransport;
  private readonly expected: Uint8Array;
  private readonly bytes: Uint8Array;

  private constructor(
    private readonly exporter: BenchChild,
    private readonly grant: JsonObject,
  ) {
    this.region = allocateHostRegion({ bytes: poolBytes });
    this.bytes = new Uint8Array(this.region.buffer as ArrayBuffer);
    this.bytes.fill(1);
    this.transport = new HostTransport({ threads });
    this.transport.register(this.region);
    // What the exporter's region holds; see test/support/host-end-child.js.
    const words = new Uint32Array(poolBytes / 4);
    for (let at = 0; at < words.length; at += 1) words[at] = Math.imul(at + seed, 2654435761) >>> 0;
    this.expected = new Uint8Array(words.buffer);
  }

  static async start(): Promise<Rig> {
    const child = new BenchChild('host-end');
    return new Rig(child, await child.ask('open', { bytes: poolBytes, seed }));
  }

  async connect(): Promise<HostPeer> {
    const peer = this.transport.connect(this.grant) as HostPeer;
    while (peer.status() === 'connecting') await new Promise((resolve) => setTimeout(resolve, 1));
    if (peer.error !== null) throw peer.error;
    return peer;
  }

  /** Seconds that one pull takes, from `begin` to the wake-up. */
  async pull(program: CopyProgram, peer: HostPeer): Promise<number> {
    const woken = new Promise<void>((resolve) => {
      this.transport.onWake = () => {
        if (this.transport.takeChanged().length > 0) resolve();
      };
    });
    const started = performance.now();
    const handle = this.transport.begin({ programs: [program], generations: null, tag: 'bench' }, peer);
    await woken;
    const seconds = (performance.now() - started) / 1000;
    if (handle.poll() !== 'done') throw handle.error ?? new Error('the pull is not done');
    return seconds;
  }

  /** Seconds of the plain copy. */
  plain(fragments: Float64Array, peer: HostPeer): number {
    const host = endpointOf(this.transport);
    return addon().debugCopyFragments(host, peer.link.id, this.region.native as object, fragments, threads) / 1e9;
  }

  /** Seconds of the native loops for halves of a token, over the one rectangle of `program`. */
  halfHeads({ rectangles, tables }: CopyProgram, peer: HostPeer): number {
    const host = endpointOf(this.transport);
    const [table, bytes] = [tables[0]!, rectangles[0]!.fragmentBytes];
    const region = this.region.native as object;
    return addon().debugCopyHalfHeads(host, peer.link.id, region, table.source, table.target, bytes, threads) / 1e9;
  }

  /** @throws Error when a byte is not what the program puts there; then clears the target */
  verify(program: CopyProgram): void {
    eachFragment(program, (_sourceRegion, source, _targetRegion, at, length) => {
      const theirs = this.expected.subarray(source, source + length);
      if (Buffer.compare(this.bytes.subarray(at, at + length), theirs) !== 0) {
        throw new Error(`the ${length} bytes at ${at} are not those of the source`);
      }
    });
    this.bytes.fill(1);
  }

  async stop(): Promise<void> {
    await this.transport.close();
    this.region.close();
    this.exporter.end();
  }
}

function fragmentsOf(program: CopyProgram): Float64Array {
  const triples: number[] = [];
  eachFragment(program, (_sourceRegion, source, _targetRegion, at, length) => triples.push(source, at, length));
  return Float64Array.from(triples);
}

export const best = (times: readonly number[]): number => Math.min(...times);

/** One row: the transport's best time against the plain copy's best. */
function rowOf(name: string, ours: readonly number[], plain: readonly number[], isTarget: boolean): BenchRow {
  const speed = (seconds: number): number => movedBytes / seconds / 1e9;
  const ratio = best(plain) / best(ours);
  return {
    name,
    value: speed(best(ours)),
    unit: 'GB/s',
    against: `plain memcpy, ${threads} threads: ${speed(best(plain)).toFixed(2)} GB/s`,
    ratio,
    target: isTarget ? `≥ ${target.toFixed(2)}` : null,
    ok: !isTarget || ratio >= target,
  };
}

export async function run(): Promise<BenchRow[]> {
  const rig = await Rig.start();
  const rows: BenchRow[] = [];
  try {
    for (const layout of layouts) {
      const program = programOf(layout);
      if (programBytes(program) !== movedBytes) throw new Error(`${layout.name}: moves ${programBytes(program)} bytes`);
      const fragments = fragmentsOf(program);
      const warm = { ours: [] as number[], plain: [] as number[] };
      const peer = await rig.connect();
      await rig.pull(program, peer);
      rig.plain(fragments, peer);
      // Taken in turns, so that both see the same machine.
      for (let round = 0; round < warmRuns; round += 1) {
        warm.ours.push(await rig.pull(program, peer));
        rig.verify(program);
        warm.plain.push(rig.plain(fragments, peer));
        rig.verify(program);
      }
      peer.close();
      rows.push(rowOf(`host pull, ${layout.name}, page tables in place`, warm.ours, warm.plain, true));

      const cold = { ours: [] as number[], plain: [] as number[] };
      for (let round = 0; round < coldRuns; round += 1) {
        const first = await rig.connect();
        cold.ours.push(await rig.pull(program, first));
        rig.verify(program);
        first.close();
        const second = await rig.connect();
        cold.plain.push(rig.plain(fragments, second));
        rig.verify(program);
        second.close();
      }
      rows.push(rowOf(`host pull, ${layout.name}, mapping never touched`, cold.ours, cold.plain, true));
    }
  } finally {
    await rig.stop();
  }
  return rows;
}

async function main(): Promise<void> {
  console.log(
    `${cpus()[0]?.model ?? 'unknown processor'}, ${availableParallelism()} processors, node ${process.version}`,
  );
  console.table(await run());
}

if (require.main === module) void main();
