/**
 * Pulls over NIXL from another process's GPU memory, on one GPU or between two, in one run: a contiguous read, slices as
 * engines have them and head slices, packed by kernels and read as they lie; beside each what cuda-ipc makes of the same.
 */
import { allocateCudaRegion } from '../../../lib/memory/cuda-region.js';
import type { JsonObject } from '../../../lib/json.js';
import { addon } from '../../../lib/native/addon.js';
import { programBytes, type CopyProgram } from '../../../lib/transfer/copy-program.js';
import { CudaIpcTransport } from '../../../lib/transfer/transports/cuda-ipc.js';
import { NixlTransport, type NixlTransportOptions } from '../../../lib/transfer/transports/nixl.js';
import type { Peer, Transport } from '../../../lib/transfer/transport.js';
import type { BenchRow } from '../../support/bench-row.js';
import { BenchChild } from '../../support/bench-child.js';
import { contiguous } from '../../support/contiguous.js';
import { testGpus } from '../../support/gpu-missing.js';
import { median } from '../../support/median.js';
import { scatteredBlocks } from './scattered-blocks.js';

const GiB = 2 ** 30;
const roundsMax = 9;
/** Rounds of one measurement end after this; the slow ways take a second a round. */
const secondsMax = 4;

const even = (bytes: number): { source: number; target: number } => ({ source: bytes, target: bytes });

/** 64 tokens of 8 heads × 128 × fp16 in the source, 4 of the heads in the target. */
const headSlices = (bytes: number): CopyProgram =>
  scatteredBlocks(bytes / 65536, { source: 131072, target: 65536 }, 1024, [
    { count: 64, sourceStride: 2048, targetStride: 1024 },
  ]);

interface Reader {
  readonly transport: Transport;
  readonly peer: Peer;
}

/** Another process that exports 2 GiB of a GPU, and its grant. */
function exporterOf(transport: string, device: number): { child: BenchChild; grant: Promise<JsonObject> } {
  const child = new BenchChild('gpu-end');
  return { child, grant: child.ask('open', { transport, bytes: 2 * GiB, seed: null, devices: [device] }) };
}

async function connected(transport: Transport, grant: JsonObject): Promise<Reader> {
  const peer = transport.connect(grant);
  while (peer.status() === 'connecting') await new Promise((resolve) => setImmediate(resolve));
  if (peer.error !== null) throw peer.error;
  return { transport, peer };
}

/** GB/s of one pull at a time, begin to done; the median of some, after one that is not counted. */
async function speedOf({ transport, peer }: Reader, program: CopyProgram): Promise<number> {
  const times: number[] = [];
  const end = performance.now() + secondsMax * 1000;
  for (let round = -1; round < roundsMax && (round < 1 || performance.now() < end); round += 1) {
    const started = performance.now();
    const handle = transport.begin({ programs: [program], generations: null, tag: 'bench' }, peer);
    while (handle.poll() === 'active') await new Promise((resolve) => setImmediate(resolve));
    if (handle.error !== null) throw handle.error;
    if (round >= 0) times.push(performance.now() - started);
    transport.takeChanged();
  }
  return programBytes(program) / median(times) / 1e6;
}

export async function run(): Promise<BenchRow[]> {
  const gpus = testGpus();
  const [read, mapped] = [exporterOf('nixl', gpus.source), exporterOf('cuda-ipc', gpus.source)];
  const target = allocateCudaRegion({ bytes: GiB, device: gpus.target });
  const own = allocateCudaRegion({ bytes: GiB, device: gpus.source });
  const open: Transport[] = [];
  const nixl = async (options: NixlTransportOptions): Promise<Reader> => {
    const transport = new NixlTransport({ exports: false, ...options });
    open.push(transport);
    transport.register(target);
    await transport.open();
    return connected(transport, await read.grant);
  };
  const ipc = new CudaIpcTransport();
  open.push(ipc);
  ipc.register(target);
  const beside = await connected(ipc, await mapped.grant);
  const packs = await nixl({});
  const lies = await nixl({ gpuDirectBytesMin: 0 });

  const micros = addon().debugCudaTimeCopies(own.native!, target.native!, Float64Array.of(0, 0, GiB), false, 11);
  const limit = GiB / micros / 1000;
  const where = gpus.source === gpus.target ? 'on one GPU' : `from GPU ${gpus.source} to GPU ${gpus.target}`;
  const digits = (value: number): string => value.toPrecision(3);
  const rows: BenchRow[] = [];
  const add = async (name: string, reader: Reader, program: CopyProgram): Promise<void> => {
    const value = await speedOf(reader, program);
    const theirs = await speedOf(beside, program);
    const against = `cuda-ipc, the same: ${digits(theirs)} GB/s; one contiguous copy ${where}: ${digits(limit)} GB/s`;
    rows.push({ name, value, unit: 'GB/s', against, ratio: value / theirs, target: null, ok: true });
  };
  await add('nixl pull of 1 GiB of GPU memory, contiguous', lies, contiguous(GiB));
  for (const [name, program, part] of [
    ['32 KiB slices', scatteredBlocks(32768, even(32768), 32768), scatteredBlocks(8192, even(32768), 32768)],
    ['128 KiB slices', scatteredBlocks(8192, even(131072), 131072), scatteredBlocks(4096, even(131072), 131072)],
    ['head slices of 1 KiB, 8 to 4 heads', headSlices(GiB), headSlices(GiB / 16)],
  ] as const) {
    await add(`nixl pull of 1 GiB of GPU memory, ${name}, packed by kernels`, packs, program);
    await add(`nixl pull of ${programBytes(part) >> 20} MiB of GPU memory, ${name}, as they lie`, lies, part);
  }
  for (const transport of open) await transport.close();
  for (const { child } of [read, mapped]) child.end();
  target.close();
  own.close();
  return rows;
}
