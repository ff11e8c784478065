/**
 * Promises of every one-sided transport between real processes with GPU memory: whichever side is killed, the other goes
 * on, every transfer ends, and nothing wrong is delivered.
 */
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import type { Child } from './child-process.js';
import { right, type GpuEnds, type Pulled } from './gpu-ends.js';
import { blockProgram } from './host-fixture.js';

const blockBytes = 32 << 10;

/**
 * Every block of a region once, each to another place; every second slice of each, to where the other slices are; and one
 * head of two of 64 blocks, 1 MiB that travels packed.
 */
export function gpuPrograms(bytes: number): {
  readonly count: number;
  readonly blocks: CopyProgram;
  readonly sliced: (sliceBytes: number) => CopyProgram;
  readonly heads: (sourceRegion?: number) => CopyProgram;
} {
  const count = bytes / blockBytes;
  const source = Int32Array.from({ length: count }, (_, index) => (index * 7 + 1) % count);
  const target = Int32Array.from({ length: count }, (_, index) => (index * 11 + 3) % count);
  const blocks = blockProgram(source, target, blockBytes);
  const sliced = (sliceBytes: number): CopyProgram => {
    const loop = { count: blockBytes / sliceBytes / 2, sourceStride: 2 * sliceBytes, targetStride: 2 * sliceBytes };
    const slice = { ...blocks.rectangles[0]!, fragmentBytes: sliceBytes, targetOffset: sliceBytes, loops: [loop] };
    return { rectangles: [slice], tables: blocks.tables };
  };
  const heads = (sourceRegion = 0): CopyProgram => {
    const ids = Int32Array.from({ length: 64 }, (_, index) => index);
    const { rectangles, tables } = blockProgram(ids, ids, blockBytes);
    const loops = [{ count: 16, sourceStride: 2048, targetStride: 2048 }];
    return { rectangles: [{ ...rectangles[0]!, sourceRegion, fragmentBytes: 1024, loops }], tables };
  };
  return { count, blocks, sliced, heads };
}

export interface GpuPullSetting {
  readonly ends: GpuEnds;
  /** Of a region. */
  readonly bytes: number;
  /** Of readers whose exporter is killed. */
  readonly lossOptions?: object;
  /** Resolves once a reader that has no pull under way has let go of every peer's memory. */
  readonly letGo?: (reader: Child) => Promise<void>;
}

export function gpuPullSuite({ ends, bytes, lossOptions, letGo = async () => {} }: GpuPullSetting): void {
  const { count, blocks, sliced } = gpuPrograms(bytes);
  const programs = [
    ['blocks', blocks],
    ['slices', sliced(2048)],
  ] as const;

  test('refuses blocks outside either region before anything is read', async () => {
    const { child, grant } = await ends.exporter(1);
    const reader = await ends.importer();
    for (const [from, to] of [
      [count, 0],
      [0, count],
      [-1, 0],
    ] as const) {
      const program = blockProgram(Int32Array.of(from), Int32Array.of(to), blockBytes);
      const { status, error } = await reader.ask<Pulled>('pull', { grant, program, seed: 1 });
      expect(status).toBe('failed-quiet');
      expect(['PROGRAM_OUT_OF_RANGE', 'ARGUMENT_INVALID']).toContain(error);
    }
    await ends.close(reader, child);
  });

  test('a cancel ends, and what comes after it is right', async () => {
    const { child, grant } = await ends.exporter(2);
    const reader = await ends.importer();
    for (const [, program] of programs) {
      const cancelled = await reader.ask<Pulled>('pull', { grant, program, seed: 2, cancel: true });
      expect(['done', 'failed-quiet']).toContain(cancelled.status);
      if (cancelled.status !== 'done') expect(cancelled.error).toBe('TRANSFER_CANCELLED');
      expect(await ends.pull(reader, grant, program, 2)).toMatchObject(right);
    }
    await ends.close(reader, child);
  });

  test.each(programs)(
    'SIGKILL of the exporter under way, %s: nothing wrong arrives, every pull ends, and another exporter is read',
    async (_, program) => {
      const { child, grant } = await ends.exporter(3);
      const reader = await ends.importer(lossOptions);
      await ends.pullOn(reader, grant, program, 3);
      await child.kill();
      const { status, error, wrong } = await reader.ask<Pulled>('failure');
      expect(status).toBe('failed-quiet');
      expect(['PEER_LOST', 'PEER_UNREACHABLE']).toContain(error);
      expect(wrong).toBe(0);
      await letGo(reader);
      const other = await ends.exporter(4);
      expect(await ends.pull(reader, other.grant, program, 4)).toMatchObject(right);
      await ends.close(reader, other.child);
    },
  );

  test('SIGKILL of importers under way: the exporter serves the next', async () => {
    const { child, grant } = await ends.exporter(5);
    for (const [, program] of programs) {
      const doomed = await ends.importer();
      await ends.pullOn(doomed, grant, program, 5);
      await doomed.kill();
    }
    const reader = await ends.importer();
    for (const [, program] of programs) expect(await ends.pull(reader, grant, program, 5)).toMatchObject(right);
    await ends.close(reader, child);
  });

  test('the grant of a dead exporter leads nowhere', async () => {
    const { child, grant } = await ends.exporter(6);
    await child.kill();
    const reader = await ends.importer();
    const { status, error } = await reader.ask<Pulled>('pull', { grant, program: blocks, seed: 6 });
    expect({ status, error }).toEqual({ status: 'failed-quiet', error: 'PEER_UNREACHABLE' });
    await ends.close(reader);
  });
}
