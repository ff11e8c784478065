/**
 * Pulls over cuda-ipc from another process against one contiguous copy on the same GPU, or between the two GPUs, in one
 * run: slices as engines have them, head slices, many layers, and a small handoff; beside them the driver's own batch copy
 * and the kernels alone.
 */
import { allocateCudaRegion } from '../../../lib/memory/cuda-region.js';
import { addon } from '../../../lib/native/addon.js';
import { encodePrograms } from '../../../lib/native/encoded-program.js';
import { programBytes, type CopyProgram } from '../../../lib/transfer/copy-program.js';
import { CudaIpcTransport } from '../../../lib/transfer/transports/cuda-ipc.js';
import type { TransferHandle } from '../../../lib/transfer/transport.js';
import type { BenchRow } from '../../support/bench-row.js';
import { eachFragment } from '../../support/program-oracle.js';
import { BenchChild } from '../../support/bench-child.js';
import { testGpus } from '../../support/gpu-missing.js';
import { median } from '../../support/median.js';
import { scatteredBlocks } from './scattered-blocks.js';

const GiB = 2 ** 30;
const rounds = 21;

const even = (bytes: number): { source: number; target: number } => ({ source: bytes, target: bytes });
const programs = {
  '32 KiB slices': scatteredBlocks(32768, even(32768), 32768),
  '128 KiB slices': scatteredBlocks(8192, even(131072), 131072),
  // 64 tokens of 8 heads × 128 × fp16 in the source, 4 of the heads in the target.
  'head slices, 8 to 4 heads': scatteredBlocks(16384, { source: 131072, target: 65536 }, 1024, [
    { count: 64, sourceStride: 2048, targetStride: 1024 },
  ]),
  '64 layers × K/V × 512 blocks of 16 KiB': scatteredBlocks(512, even(16384), 16384, [
    { count: 128, sourceStride: 512 * 16384, targetStride: 512 * 16384 },
  ]),
};
const small = scatteredBlocks(32, even(32768), 32768);

const now = (): number => Number(process.hrtime.bigint()) / 1000;

export async function run(): Promise<BenchRow[]> {
  const gpus = testGpus();
  const child = new BenchChild('gpu-end');
  const answer = child.ask('open', { transport: 'cuda-ipc', bytes: 2 * GiB, seed: null, devices: [gpus.source] });
  const target = allocateCudaRegion({ bytes: GiB, device: gpus.target });
  const own = allocateCudaRegion({ bytes: 2 * GiB, device: gpus.source });
  const importer = new CudaIpcTransport();
  importer.register(target);
  const peer = importer.connect(await answer);
  while (peer.status() === 'connecting') await new Promise((resolve) => setImmediate(resolve));
  if (peer.error !== null) throw peer.error;

  const finish = (handle: TransferHandle): void => {
    while (handle.poll() === 'active');
    if (handle.error !== null) throw handle.error;
  };
  const begin = (program: CopyProgram): TransferHandle =>
    importer.begin({ programs: [program], generations: null, tag: 'bench' }, peer);
  /** Microseconds from `begin` until `poll` says done. */
  const pull = (program: CopyProgram, count: number): number => {
    const times: number[] = [];
    for (let round = 0; round <= count; round += 1) {
      const started = now();
      finish(begin(program));
      if (round > 0) times.push(now() - started);
      importer.takeChanged();
    }
    return median(times);
  };
  /** Microseconds of one of a steady stream, eight under way at any time, as a busy decode engine has them; start included. */
  const stream = (program: CopyProgram): number => {
    const count = 512;
    const started = now();
    const handles = Array.from({ length: 8 }, () => begin(program));
    for (let begun = handles.length; handles.length > 0; begun += 1) {
      finish(handles.shift()!);
      if (begun < count) handles.push(begin(program));
    }
    importer.takeChanged();
    return (now() - started) / count;
  };
  /** The first maps the peer and makes room for plans. */
  const warmStream = (program: CopyProgram): number => {
    stream(program);
    return stream(program);
  };
  const kernel = (program: CopyProgram): number => {
    const { rectangles, tables, rows } = encodePrograms([program]);
    return addon().debugCudaTimeKernel(own.native!, target.native!, rectangles, tables, rows, rounds, 0);
  };
  const copies = (fragments: Float64Array, batch: boolean, count: number): number =>
    addon().debugCudaTimeCopies(own.native!, target.native!, fragments, batch, count);

  const contiguous = copies(Float64Array.of(0, 0, GiB), false, rounds);
  const speed = (bytes: number, time: number): number => bytes / time / 1000;
  const where = gpus.source === gpus.target ? 'on the GPU' : `from GPU ${gpus.source} to GPU ${gpus.target}`;
  const against = `one contiguous copy ${where}: ${speed(GiB, contiguous).toFixed(0)} GB/s`;
  const rows: BenchRow[] = [];
  if (gpus.source !== gpus.target) {
    const back = addon().debugCudaTimeCopies(target.native!, own.native!, Float64Array.of(0, 0, GiB), false, rounds);
    const ratio = contiguous / back;
    const name = `one contiguous copy of 1 GiB from GPU ${gpus.target} to GPU ${gpus.source}`;
    rows.push({ name, value: speed(GiB, back), unit: 'GB/s', against, ratio, target: null, ok: true });
  }
  const add = (name: string, program: CopyProgram, time: number, least: number | null): void => {
    const value = speed(programBytes(program), time);
    const ratio = value / speed(GiB, contiguous);
    const target = least === null ? null : `≥ ${least.toFixed(2)}`;
    rows.push({ name, value, unit: 'GB/s', against, ratio, target, ok: least === null || ratio >= least });
  };
  for (const [name, program] of Object.entries(programs)) {
    const least = name.startsWith('head') ? 0.85 : 0.9;
    add(`cuda-ipc pull of 1 GiB, ${name}, a steady stream`, program, warmStream(program), least);
    add(`cuda-ipc pull of 1 GiB, ${name}, one alone, begin to done`, program, pull(program, rounds), null);
    add(`copy kernel alone, ${name}`, program, kernel(program), name.includes('slices') ? 0.9 : null);
  }
  for (const name of ['32 KiB slices', '128 KiB slices'] as const) {
    const fragments: number[] = [];
    eachFragment(programs[name], (_, source, __, to, bytes) => void fragments.push(source, to, bytes));
    const batch = copies(Float64Array.from(fragments), true, 1);
    const ratio = batch / warmStream(programs[name]);
    const text = `cuMemcpyBatchAsync of the same: ${speed(GiB, batch).toFixed(1)} GB/s`;
    const row = { name: `cuda-ipc pull of 1 GiB, ${name}`, value: speed(GiB, batch / ratio), unit: 'GB/s' };
    rows.push({ ...row, against: text, ratio, target: '≥ 40', ok: ratio >= 40 });
  }
  const alone = kernel(small);
  const over = pull(small, 201) - alone;
  rows.push({
    ...{ name: 'cuda-ipc pull of 1 MiB, begin to done, over the kernel alone', value: over, unit: 'µs' },
    ...{
      against: `limit 60 µs; the kernel: ${alone.toFixed(1)} µs`,
      ratio: over / 60,
      target: '≤ 1.00',
      ok: over <= 60,
    },
  });
  peer.close();
  await importer.close();
  child.end();
  target.close();
  own.close();
  return rows;
}
