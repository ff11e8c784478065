/**
 * What a copy takes of a GPU: packing and unpacking alone against one contiguous copy, how many blocks of threads it needs,
 * what it costs a matrix product beside it, and both directions between two GPUs at once.
 */
import { Worker } from 'node:worker_threads';
import { join } from 'node:path';
import { allocateCudaRegion, type CudaRegion } from '../../../lib/memory/cuda-region.js';
import { addon } from '../../../lib/native/addon.js';
import { encodePrograms } from '../../../lib/native/encoded-program.js';
import { programBytes, type CopyProgram } from '../../../lib/transfer/copy-program.js';
import { CudaIpcTransport } from '../../../lib/transfer/transports/cuda-ipc.js';
import type { TransferHandle } from '../../../lib/transfer/transport.js';
import type { BenchRow } from '../../support/bench-row.js';
import { BenchChild } from '../../support/bench-child.js';
import { testGpus } from '../../support/gpu-missing.js';
import { scatteredBlocks } from './scattered-blocks.js';

const GiB = 2 ** 30;
const rounds = 11;
const driver = process.env['STATE_HANDOFF_CUDA'] ?? null;

/** Every source block to the place that is next in staging. */
function packed(program: CopyProgram): CopyProgram {
  const tables = program.tables.map((each) => ({ ...each, target: each.target.map((_, row) => row) }));
  return { ...program, tables };
}

/** The other way round: what `packed` wrote, to scattered blocks. */
function unpacked({ rectangles, tables }: CopyProgram): CopyProgram {
  return {
    rectangles: rectangles.map((each) => ({
      ...each,
      loops: each.loops.map(({ count, sourceStride, targetStride }) => ({
        ...{ count, sourceStride: targetStride, targetStride: sourceStride },
      })),
    })),
    tables: tables.map(({ source, strides, ...table }) => ({
      ...table,
      ...{ source: source.map((_, row) => row), target: source },
      strides: { ...strides, sourceBlock: strides.targetBlock, targetBlock: strides.sourceBlock },
    })),
  };
}

export async function run(): Promise<BenchRow[]> {
  const gpus = testGpus();
  const rows: BenchRow[] = [];
  const speed = (bytes: number, micros: number): number => bytes / micros / 1000;
  const regions: CudaRegion[] = [];
  const region = (bytes: number, device: number): CudaRegion => {
    const made = allocateCudaRegion({ bytes, device });
    regions.push(made);
    return made;
  };
  const target = region(2 * GiB, gpus.target);
  const local = region(2 * GiB, gpus.target);
  const far = gpus.source === gpus.target ? local : region(2 * GiB, gpus.source);
  const contiguous = (from: CudaRegion): number =>
    speed(GiB, addon().debugCudaTimeCopies(from.native!, target.native!, Float64Array.of(0, 0, GiB), false, rounds));
  const kernel = (from: CudaRegion, program: CopyProgram, blocks = 0): number => {
    const { rectangles, tables, rows: ids } = encodePrograms([program]);
    const micros = addon().debugCudaTimeKernel(
      ...[from.native!, target.native!, rectangles, tables, ids, rounds, blocks],
    );
    return speed(programBytes(program), micros);
  };
  const add = (
    row: Pick<BenchRow, 'name' | 'value' | 'unit'>,
    against: readonly [text: string, value: number],
    least: number | null = null,
  ): void => {
    const ratio = row.value / against[1];
    const bound = least === null ? null : `≥ ${least.toFixed(2)}`;
    rows.push({ ...row, against: against[0], ratio, target: bound, ok: least === null || ratio >= least });
  };

  const slices = scatteredBlocks(GiB / 32768, { source: 32768, target: 32768 }, 32768);
  const programs = {
    '32 KiB slices': slices,
    '128 KiB slices': scatteredBlocks(GiB / 131072, { source: 131072, target: 131072 }, 131072),
    // 64 tokens of 8 heads × 128 × fp16 in the source, 4 of the heads in the target.
    'head slices, 8 to 4 heads': scatteredBlocks(GiB / 65536, { source: 131072, target: 65536 }, 1024, [
      { count: 64, sourceStride: 2048, targetStride: 1024 },
    ]),
  };
  const onGpu = contiguous(local);
  const copyOnGpu = [`one contiguous copy on the GPU: ${onGpu.toFixed(0)} GB/s`, onGpu] as const;
  for (const [name, program] of Object.entries(programs)) {
    const pack = packed(program);
    add({ name: `pack kernel alone, 1 GiB, ${name}`, value: kernel(local, pack), unit: 'GB/s' }, copyOnGpu, 0.9);
    const unpack = unpacked(pack);
    add({ name: `unpack kernel alone, 1 GiB, ${name}`, value: kernel(local, unpack), unit: 'GB/s' }, copyOnGpu, 0.9);
  }

  const isFar = far !== local;
  const limit = isFar ? contiguous(far) : onGpu;
  const where = isFar ? `from GPU ${gpus.source} to GPU ${gpus.target}` : 'on the GPU';
  const link = [`one contiguous copy ${where}: ${limit.toFixed(0)} GB/s`, limit] as const;
  for (const blocks of [4, 8, 16, 32, 64, 132, 264, 528, 1056]) {
    const value = kernel(far, slices, blocks);
    add({ name: `copy kernel, 32 KiB slices ${where}, by ${blocks} blocks of 128 threads`, value, unit: 'GB/s' }, link);
  }

  if (isFar) rows.push(...(await bothWays(gpus, slices, [far, target])));
  rows.push(...(await besideProducts(gpus, target, slices)));
  for (const each of regions) each.close();
  return rows;
}

/** Copies each way, alone and at once; a thread for the way back. */
async function bothWays(
  gpus: { readonly source: number; readonly target: number },
  slices: CopyProgram,
  [from, to]: readonly [CudaRegion, CudaRegion],
): Promise<BenchRow[]> {
  const rows: BenchRow[] = [];
  const encoded = encodePrograms([slices]);
  const kinds = { 'one contiguous copy of 1 GiB': null, 'copy kernel, 1 GiB in 32 KiB slices': encoded };
  for (const [name, program] of Object.entries(kinds)) {
    const once = (): number =>
      GiB /
      1000 /
      (program === null
        ? addon().debugCudaTimeCopies(from.native!, to.native!, Float64Array.of(0, 0, GiB), false, 51)
        : addon().debugCudaTimeKernel(
            ...([from.native!, to.native!, program.rectangles, program.tables, program.rows, 51, 0] as const),
          ));
    const alone = once();
    const stop = new Int32Array(new SharedArrayBuffer(4));
    const worker = new Worker(join(__dirname, '..', '..', 'support', 'gpu-copies-worker.js'), {
      workerData: { source: gpus.target, target: gpus.source, bytes: GiB, encoded: program, stop },
    });
    const next = (): Promise<unknown> => new Promise((resolve) => worker.once('message', resolve));
    await next();
    const there = once();
    const median = next();
    Atomics.store(stop, 0, 1);
    const back = GiB / 1000 / Number(await median);
    const against = `one direction alone, twice: ${(2 * alone).toFixed(0)} GB/s`;
    const value = there + back;
    const row = { name: `${name}, both directions at once, together`, value, unit: 'GB/s', against };
    rows.push({ ...row, ratio: value / (2 * alone), target: null, ok: true });
  }
  return rows;
}

/** Pulls from another process while cuBLAS multiplies on the same GPU: what each loses. */
async function besideProducts(
  gpus: { readonly source: number; readonly target: number },
  target: CudaRegion,
  slices: CopyProgram,
): Promise<BenchRow[]> {
  const size = 8192;
  const count = 200;
  const names = ['libcublas.so.13', 'libcublas.so.12', 'libcublas.so'];
  const candidates = [...['/usr/local/cuda/lib64/', ''].flatMap((at) => names.map((name) => at + name))];
  let products;
  try {
    products = addon().debugCudaProductsOpen(driver, gpus.target, candidates.join('\n'), size);
  } catch (error) {
    console.error(`left out: matrix products: ${(error as Error).message}`);
    return [];
  }
  const child = new BenchChild('gpu-end');
  const granted = child.ask('open', { transport: 'cuda-ipc', bytes: 2 * GiB, seed: null, devices: [gpus.source] });
  const importer = new CudaIpcTransport();
  importer.register(target);
  const peer = importer.connect(await granted);
  while (peer.status() === 'connecting') await new Promise((resolve) => setImmediate(resolve));
  if (peer.error !== null) throw peer.error;

  const begin = (): TransferHandle => importer.begin({ programs: [slices], generations: null, tag: 'bench' }, peer);
  /** Pulls, four under way at a time, until `isOver`; GB/s. */
  const pullUntil = (isOver: (pulls: number) => boolean): number => {
    const under: TransferHandle[] = [];
    const started = process.hrtime.bigint();
    let pulls = 0;
    while (!isOver(pulls)) {
      while (under.length < 4) under.push(begin());
      if (under[0]!.poll() === 'active') continue;
      if (under[0]!.error !== null) throw under[0]!.error;
      under.shift();
      pulls += 1;
      importer.takeChanged();
    }
    const value = (pulls * GiB) / Number(process.hrtime.bigint() - started);
    while (under.some((handle) => handle.poll() === 'active'));
    importer.takeChanged();
    return value;
  };
  const timeOf = (): number => addon().debugCudaProductsTime(products);
  const alone = (): number => {
    addon().debugCudaProductsStart(products, count);
    while (timeOf() < 0);
    return timeOf();
  };
  alone();
  const undisturbed = alone();
  pullUntil((pulls) => pulls === 16);
  const pulled = pullUntil((pulls) => pulls === 64);
  addon().debugCudaProductsStart(products, count);
  const beside = pullUntil(() => timeOf() >= 0);
  const disturbed = timeOf();
  const tera = (micros: number): number => (2 * size ** 3 * count) / micros / 1e6;
  peer.close();
  await importer.close();
  child.end();
  return [
    {
      ...{ name: `matrix products of ${size}² half floats, beside pulls in 32 KiB slices`, value: tera(disturbed) },
      ...{ unit: 'TFLOP/s', against: `alone: ${tera(undisturbed).toFixed(0)} TFLOP/s` },
      ...{ ratio: undisturbed / disturbed, target: null, ok: true },
    },
    {
      ...{ name: 'cuda-ipc pulls of 1 GiB, 32 KiB slices, beside matrix products', value: beside, unit: 'GB/s' },
      ...{ against: `alone: ${pulled.toFixed(0)} GB/s`, ratio: beside / pulled, target: null, ok: true },
    },
  ];
}
