/**
 * Promises of the NIXL transport over GPU memory between real processes, on GPUs or over the stand-in for their driver:
 * every byte comes to its place and no other is touched, packed by kernels or read as it lies; whichever side is killed,
 * the other goes on and every transfer ends.
 */
import fc from 'fast-check';
import type { JsonObject } from '../../lib/json.js';
import { checkProgram } from '../../lib/transfer/check-program.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import type { NixlTransportOptions } from '../../lib/transfer/transports/nixl.js';
import { startChild, type Child } from './child-process.js';
import { blockProgram } from './host-fixture.js';
import { interleavedNests, layoutBoxes, unrelatedNests } from './program-arbitraries.js';
import { eachFragment } from './program-oracle.js';

export interface NixlGpuSetting {
  readonly env?: Readonly<Record<string, string>>;
  /** Of a region. */
  readonly bytes: number;
  readonly gpus: { readonly source: number; readonly target: number };
  /** Random programs of each kind. */
  readonly runs: number;
}

interface Pulled {
  readonly status: string;
  readonly error: string | null;
  readonly message: string | null;
  /** Bytes of the target that are not as they should be. */
  readonly wrong: number | null;
  readonly bytes: number;
}

const blockBytes = 32 << 10;

function fragmentsOf(program: CopyProgram): Float64Array {
  const values: number[] = [];
  eachFragment(program, (...each) => void values.push(...each));
  return Float64Array.from(values);
}

export function nixlGpuSuite({ env = {}, bytes, gpus, runs }: NixlGpuSetting): void {
  const count = bytes / blockBytes;
  // Every block once, each to another place.
  const source = Int32Array.from({ length: count }, (_, index) => (index * 7 + 1) % count);
  const target = Int32Array.from({ length: count }, (_, index) => (index * 11 + 3) % count);
  const blocks = blockProgram(source, target, blockBytes);

  /** Every second slice of each block, to where the other slices are. */
  const sliced = (sliceBytes: number): CopyProgram => {
    const loop = { count: blockBytes / sliceBytes / 2, sourceStride: 2 * sliceBytes, targetStride: 2 * sliceBytes };
    const slice = { ...blocks.rectangles[0]!, fragmentBytes: sliceBytes, targetOffset: sliceBytes, loops: [loop] };
    return { rectangles: [slice], tables: blocks.tables };
  };

  /** A process with regions on GPUs, or in host memory where a device is null. */
  async function open(
    values: { seed: number | null; devices: readonly (number | null)[]; bytes?: number },
    options: NixlTransportOptions = {},
  ): Promise<{ child: Child; grant: JsonObject }> {
    const child = startChild('nixl-gpu-end', [], env);
    return { child, grant: await child.ask<JsonObject>('open', { bytes, ...values, options }) };
  }
  const exporter = (seed: number, options?: NixlTransportOptions): Promise<{ child: Child; grant: JsonObject }> =>
    open({ seed, devices: [gpus.source] }, options);
  const importer = async (options: NixlTransportOptions = {}): Promise<Child> =>
    (await open({ seed: null, devices: [gpus.target] }, { exports: false, ...options })).child;

  const right = { status: 'done', error: null, wrong: 0 };
  const pull = (child: Child, grant: JsonObject, program: CopyProgram, seed: number): Promise<Pulled> =>
    child.ask<Pulled>('pull', { grant, program, seed, fragments: fragmentsOf(program) });
  const closed = async (...children: readonly Child[]): Promise<void> => {
    for (const child of children) expect(await child.ask('close')).toBeNull();
    await Promise.all(children.map((child) => child.kill()));
  };

  test('brings the right bytes to the right places and no others: packed by kernels, and as they lie', async () => {
    const { child, grant } = await exporter(5);
    for (const options of [{ packPatienceMs: 60_000 }, { gpuDirectBytesMin: 0 }]) {
      const reader = await importer(options);
      for (const program of [blocks, sliced(2048), sliced(64)]) {
        expect(await pull(reader, grant, program, 5)).toMatchObject(right);
      }
      expect(await reader.ask('counters')).toMatchObject({ packRefusals: 0 });
      const { packedChunks } = await child.ask<{ packedChunks: number }>('counters');
      expect(packedChunks).toBeGreaterThan(0);
      await closed(reader);
    }
    await closed(child);
  });

  test.each([
    ['host memory is read into GPU memory', null, gpus.target],
    ['GPU memory is read into host memory', gpus.source, null],
  ])('%s', async (_, from, to) => {
    const { child, grant } = await open({ seed: 6, devices: [from] });
    const { child: reader } = await open({ seed: null, devices: [to] }, { exports: false, packPatienceMs: 60_000 });
    for (const program of [blocks, sliced(2048)]) expect(await pull(reader, grant, program, 6)).toMatchObject(right);
    expect(await reader.ask('counters')).toMatchObject({ packRefusals: 0 });
    await closed(reader, child);
  });

  test('an exporter that packs nothing is read as it lies', async () => {
    const { child, grant } = await exporter(7, { slots: 0 });
    expect(grant['staging']).toBeNull();
    const reader = await importer();
    expect(await pull(reader, grant, sliced(2048), 7)).toMatchObject(right);
    await closed(reader, child);
  });

  test('refuses blocks outside either region before anything is read', async () => {
    const { child, grant } = await exporter(8);
    const reader = await importer();
    for (const [from, to] of [
      [count, 0],
      [0, count],
      [-1, 0],
    ] as const) {
      const program = blockProgram(Int32Array.of(from), Int32Array.of(to), blockBytes);
      const { status, error } = await reader.ask<Pulled>('pull', { grant, program, seed: 8 });
      expect(status).toBe('failed-quiet');
      expect(['PROGRAM_OUT_OF_RANGE', 'ARGUMENT_INVALID']).toContain(error);
    }
    await closed(reader, child);
  });

  test('a cancel ends, and what comes after it is right', async () => {
    const { child, grant } = await exporter(9);
    const reader = await importer();
    for (const program of [blocks, sliced(2048)]) {
      const cancelled = await reader.ask<Pulled>('pull', { grant, program, seed: 9, cancel: true });
      expect(['done', 'failed-quiet']).toContain(cancelled.status);
      if (cancelled.status !== 'done') expect(cancelled.error).toBe('TRANSFER_CANCELLED');
      expect(await pull(reader, grant, program, 9)).toMatchObject(right);
    }
    await closed(reader, child);
  });

  test.each([
    ['blocks', blocks],
    ['slices', sliced(2048)],
  ])('SIGKILL of the exporter under way, %s: every pull ends, and another exporter is read', async (_, program) => {
    const { child, grant } = await exporter(10);
    const reader = await importer({ packPatienceMs: 200 });
    expect(await pull(reader, grant, program, 10)).toMatchObject(right);
    const failing = reader.ask<Pulled>('pullUntilFailure', { grant, program, seed: 10 });
    await child.kill();
    const { status, error } = await failing;
    expect(status).toBe('failed-quiet');
    expect(error).toBe('PEER_LOST');
    const other = await exporter(11);
    expect(await pull(reader, other.grant, program, 11)).toMatchObject(right);
    await closed(reader, other.child);
  });

  test('SIGKILL of importers under way: the exporter serves the next', async () => {
    const { child, grant } = await exporter(12);
    for (const program of [blocks, sliced(2048)]) {
      const doomed = await importer();
      await doomed.ask('pull', { grant, program, seed: 12 });
      await doomed.ask('pullForEver', { grant, program, seed: 12 });
      await doomed.kill();
    }
    const reader = await importer();
    for (const program of [blocks, sliced(2048)]) expect(await pull(reader, grant, program, 12)).toMatchObject(right);
    await closed(reader, child);
  });

  test.each([
    ['nests of any strides', unrelatedNests],
    ['interleaved nests', interleavedNests],
    ["boxes of one buffer's layout", layoutBoxes],
  ])('random programs, %s: packed or not, every byte is what a plain copy makes of it', async (_, programs) => {
    const size = 64 << 10;
    const regions = 4;
    const on = (device: number): { bytes: number; devices: number[] } => ({
      bytes: size,
      devices: Array<number>(regions).fill(device),
    });
    const { child, grant } = await open({ ...on(gpus.source), seed: 13 }, { slots: 2, gpuSlotBytes: 4096 });
    // Packs whatever there is, and nothing.
    const options = [{ packedBytesMin: 0, packPatienceMs: 60_000 }, { gpuDirectBytesMin: 0 }];
    const readers = await Promise.all(
      options.map((each) => open({ ...on(gpus.target), seed: null }, { exports: false, ...each })),
    );
    const sizes = Array<number>(regions).fill(size);
    let ran = 0;
    await fc.assert(
      fc.asyncProperty(programs, async ({ program, ...needed }) => {
        const bytesOf = [...needed.sourceBytes, ...needed.targetBytes];
        if (bytesOf.some((each) => each > size) || needed.sourceBytes.length > regions) return;
        if (needed.targetBytes.length > regions) return;
        try {
          checkProgram(program, sizes, sizes);
        } catch {
          return;
        }
        ran += 1;
        for (const { child: reader } of readers) {
          expect(await pull(reader, grant, program, 13)).toMatchObject(right);
        }
      }),
      { numRuns: runs },
    );
    expect(ran).toBeGreaterThan(runs / 10);
    await closed(...readers.map((each) => each.child), child);
  });
}
