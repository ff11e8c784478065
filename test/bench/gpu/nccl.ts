/**
 * Pushes over NCCL to another process, packed, against one raw send of as many bytes and against one send a block, in one
 * run. A stream of large pushes, one behind the other; the time of one is that between two ends.
 */
import { allocateCudaRegion } from '../../../lib/memory/cuda-region.js';
import type { JsonValue } from '../../../lib/json.js';
import type { CopyProgram } from '../../../lib/transfer/copy-program.js';
import { NcclTransport, type NcclTransportOptions } from '../../../lib/transfer/transports/nccl.js';
import type { BenchRow } from '../../support/bench-row.js';
import { BenchChild } from '../../support/bench-child.js';
import { testGpus } from '../../support/gpu-missing.js';
import { median } from '../../support/median.js';
import { scatteredBlocks } from './scattered-blocks.js';

const pushes = 6;
const GiB = 2 ** 30;

type Cut = Pick<NcclTransportOptions, 'chunkBytes' | 'packed'>;

const now = (): number => Number(process.hrtime.bigint()) / 1000;

/** @param chunkSizes - of packed pushes; the transport's own by default */
export async function run(chunkSizes: readonly (number | null)[] = [null]): Promise<BenchRow[]> {
  const gpus = testGpus();
  const isOneGpu = gpus.source === gpus.target;
  // On one GPU, NCCL goes through loopback sockets, and only between what it believes to be two machines.
  const loopback = { NCCL_NET: 'Socket', NCCL_SOCKET_IFNAME: 'lo' };
  if (isOneGpu) Object.assign(process.env, { NCCL_HOSTID: 'target', ...loopback });
  const bytes = isOneGpu ? GiB / 4 : 4 * GiB;
  const source = new BenchChild('nccl-end', isOneGpu ? { NCCL_HOSTID: 'source', ...loopback } : {});
  const region = allocateCudaRegion({ bytes, device: gpus.target });

  /** Microseconds a push. */
  const time = async (cut: Cut, programs: readonly CopyProgram[]): Promise<number[]> => {
    const transport = new NcclTransport({ pushes: false, ...cut });
    transport.register(region);
    await transport.open();
    // Twice as much on that side, so that head slices have something to leave out.
    const grant = await source.ask('open', { bytes: 2 * bytes, seed: null, device: gpus.source, options: cut });
    const failure = await source.ask<JsonValue>('connect', { grant: transport.grant() });
    if (failure !== null) throw new Error(`the source cannot connect: ${String(failure)}`);
    const peer = transport.connect(grant);
    const times: number[] = [];
    for (const [which, program] of programs.entries()) {
      const tags = Array.from({ length: pushes }, (_, index) => `${which}-${index}`);
      const handles = tags.map((tag) => transport.begin({ programs: [program], generations: null, tag }, peer));
      const asSource = { ...program, tables: program.tables.map((each) => ({ ...each, target: places(each.target) })) };
      for (const tag of tags) await source.ask('push', { tag, programs: [asSource] });
      const ends: number[] = [];
      while (ends.length < pushes) {
        transport.takeChanged();
        if (handles[ends.length]!.poll() !== 'active') {
          const { error } = handles[ends.length]!;
          if (error !== null) throw error;
          ends.push(now());
        }
        await new Promise((resolve) => setImmediate(resolve));
      }
      times.push(median(ends.slice(1).map((end, index) => end - ends[index]!)));
    }
    peer.close();
    await transport.close();
    await source.ask('close');
    return times;
  };

  const whole = scatteredBlocks(1, { source: bytes, target: bytes }, bytes);
  const flat = (size: number): CopyProgram => scatteredBlocks(bytes / size, { source: size, target: size }, size);
  // 64 layers, K and V.
  const planes = 128;
  const layered = (size: number): CopyProgram => {
    const count = bytes / planes / size;
    const loop = { count: planes, sourceStride: count * size, targetStride: count * size };
    return scatteredBlocks(count, { source: size, target: size }, size, [loop]);
  };
  // 64 tokens of 8 heads × 128 × fp16 in the source, 4 of the heads in the target.
  const heads = (): CopyProgram => {
    const count = bytes / planes / 65536;
    return scatteredBlocks(count, { source: 131072, target: 65536 }, 1024, [
      { count: planes, sourceStride: count * 131072, targetStride: count * 65536 },
      { count: 64, sourceStride: 2048, targetStride: 1024 },
    ]);
  };
  const packed: readonly (readonly [name: string, program: CopyProgram, least: number | null])[] = [
    ['64 layers × K/V × blocks of 32 KiB', layered(32768), 0.9],
    ['64 layers × K/V × blocks of 128 KiB', layered(131072), 0.9],
    ['64 layers × K/V, head slices, 8 to 4 heads', heads(), 0.9],
    ['a table of blocks of 32 KiB', flat(32768), null],
    ['a table of blocks of 128 KiB', flat(131072), null],
  ];
  const blocks = packed.slice(3);

  const speed = (micros: number): number => bytes / micros / 1000;
  const [raw, ...eachBlock] = await time({ packed: false }, [whole, ...blocks.map(([, program]) => program)]);
  const against = `one raw ncclSend of ${(bytes / GiB).toString()} GiB: ${speed(raw!).toFixed(isOneGpu ? 2 : 0)} GB/s`;
  const rows: BenchRow[] = [];
  const add = (name: string, micros: number, least: number | null): void => {
    const ratio = raw! / micros;
    const target = least === null ? null : `≥ ${least.toFixed(2)}`;
    const ok = least === null || ratio >= least;
    rows.push({ name: `nccl push, ${name}`, value: speed(micros), unit: 'GB/s', against, ratio, target, ok });
  };
  for (const chunk of chunkSizes) {
    const cut = chunk === null ? {} : { chunkBytes: chunk };
    const times = await time(
      cut,
      packed.map(([, program]) => program),
    );
    const note = chunk === null ? '' : `, chunks of ${chunk / 2 ** 20} MiB`;
    for (const [index, [name, , least]] of packed.entries()) add(`${name}, packed${note}`, times[index]!, least);
  }
  for (const [index, [name]] of blocks.entries()) add(`${name}, one send a block`, eachBlock[index]!, null);
  source.end();
  region.close();
  return rows;
}

/** The source does not know where blocks go. */
function places(target: Int32Array): Int32Array {
  return Int32Array.from(target, (_, row) => row);
}
