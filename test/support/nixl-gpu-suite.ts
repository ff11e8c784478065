/**
 * Promises of the NIXL transport over GPU memory between real processes, on GPUs or over the stand-in for their driver:
 * those of every one-sided transport; besides, every byte comes to its place and no other is touched, packed by kernels or
 * read as it lies.
 */
import fc from 'fast-check';
import type { JsonObject } from '../../lib/json.js';
import { checkProgram } from '../../lib/transfer/check-program.js';
import { GpuEnds, right, type GpuSetting } from './gpu-ends.js';
import { gpuPrograms, gpuPullSuite } from './gpu-pull-suite.js';
import { interleavedNests, layoutBoxes, unrelatedNests } from './program-arbitraries.js';

export interface NixlGpuSetting extends GpuSetting {
  /** Random programs of each kind. */
  readonly runs: number;
}

export function nixlGpuSuite({ runs, ...setting }: NixlGpuSetting): void {
  const { bytes, gpus } = setting;
  const ends = new GpuEnds('nixl', setting);
  const { blocks, sliced, heads } = gpuPrograms(bytes);

  gpuPullSuite({ ends, bytes, lossOptions: { packPatienceMs: 200 } });

  test('brings the right bytes to the right places and no others: packed by kernels, and as they lie', async () => {
    const { child, grant } = await ends.exporter(5);
    for (const options of [{ packPatienceMs: 60_000 }, { gpuDirectBytesMin: 0 }]) {
      const reader = await ends.importer(options);
      for (const program of [blocks, sliced(2048), sliced(64)]) {
        expect(await ends.pull(reader, grant, program, 5)).toMatchObject(right);
      }
      expect(await reader.ask('counters')).toMatchObject({ packRefusals: 0 });
      const { packedChunks } = await child.ask<{ packedChunks: number }>('counters');
      expect(packedChunks).toBeGreaterThan(0);
      await ends.close(reader);
    }
    await ends.close(child);
  });

  test.each([
    ['host memory is read into GPU memory', null, gpus.target],
    ['GPU memory is read into host memory', gpus.source, null],
  ])('%s', async (_, from, to) => {
    const { child, grant } = await ends.open({ seed: 6, devices: [from] });
    const { child: reader } = await ends.open(
      { seed: null, devices: [to] },
      { exports: false, packPatienceMs: 60_000 },
    );
    for (const program of [blocks, sliced(2048)])
      expect(await ends.pull(reader, grant, program, 6)).toMatchObject(right);
    expect(await reader.ask('counters')).toMatchObject({ packRefusals: 0 });
    await ends.close(reader, child);
  });

  test('an exporter that packs nothing is read as it lies', async () => {
    const { child, grant } = await ends.exporter(7, { slots: 0 });
    expect(grant['staging']).toBeNull();
    const reader = await ends.importer();
    expect(await ends.pull(reader, grant, sliced(2048), 7)).toMatchObject(right);
    await ends.close(reader, child);
  });

  describe('an exporter with memory of several kinds', () => {
    const kinds: readonly (readonly [string, number | null])[] = [
      ...(gpus.source === gpus.target ? [] : [['another GPU', gpus.target] as const]),
      ['the host', null],
    ];

    test.each(kinds)('gathers from its first GPU; what lies in memory of %s is read as it lies', async (_, other) => {
      const { child, grant } = await ends.open({ seed: 14, devices: [gpus.source, other] });
      const options = { exports: false, packPatienceMs: 60_000 };
      const { child: reader } = await ends.open({ seed: null, devices: [gpus.target, other] }, options);
      const packed = async (): Promise<number> => (await child.ask<{ packedChunks: number }>('counters')).packedChunks;
      expect(await ends.pull(reader, grant, heads(1), 14)).toMatchObject(right);
      expect(await packed()).toBe(0);
      expect(await ends.pull(reader, grant, heads(0), 14)).toMatchObject(right);
      expect(await packed()).toBeGreaterThan(0);
      expect(await reader.ask('counters')).toMatchObject({ packRefusals: 0 });
      await ends.close(reader, child);
    });

    test.each(kinds)(
      'gathers nothing from memory of %s for a reader that believes it to be that GPU’s',
      async (_, other) => {
        const { child, grant } = await ends.open({ seed: 15, devices: [gpus.source, other] });
        const [first, second] = grant['regions'] as readonly [JsonObject, JsonObject];
        const { child: reader } = await ends.open(
          { seed: null, devices: [gpus.target, gpus.target] },
          { exports: false, packPatienceMs: 1000 },
        );
        const lie = { ...grant, regions: [first, { ...second, kind: 'cuda', device: gpus.source }] };
        await reader.ask('pull', { grant: lie, program: heads(1) });
        expect(await child.ask('counters')).toMatchObject({ packedChunks: 0 });
        await ends.close(reader, child);
      },
    );
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
    const { child, grant } = await ends.open({ ...on(gpus.source), seed: 13 }, { slots: 2, gpuSlotBytes: 4096 });
    // Packs whatever there is, and nothing.
    const options = [{ packedBytesMin: 0, packPatienceMs: 60_000 }, { gpuDirectBytesMin: 0 }];
    const readers = await Promise.all(
      options.map((each) => ends.open({ ...on(gpus.target), seed: null }, { exports: false, ...each })),
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
          expect(await ends.pull(reader, grant, program, 13)).toMatchObject(right);
        }
      }),
      { numRuns: runs },
    );
    expect(ran).toBeGreaterThan(runs / 10);
    await ends.close(...readers.map((each) => each.child), child);
  });
}
