/**
 * The NIXL transport over GPU memory without a GPU: every promise of the suite over a stand-in for the CUDA driver, whose
 * memory the real NIXL is told to be the host's; and a GPU that is lost, which no real one is on request.
 */
import type { JsonObject } from '../../lib/json.js';
import { startChild } from '../support/child-process.js';
import { useFakeVram } from '../support/fake-vram.js';
import { blockProgram } from '../support/host-fixture.js';
import { nixlMissing } from '../support/nixl-fixture.js';
import { nixlGpuSuite } from '../support/nixl-gpu-suite.js';
import { describeOptional } from '../support/optional.js';
import { eachFragment } from '../support/program-oracle.js';

describeOptional('nixl', nixlMissing(), 'the NIXL transport over memory of GPUs', () => {
  const env = useFakeVram();

  nixlGpuSuite({ env, bytes: 4 << 20, gpus: { source: 0, target: 1 }, runs: 40 });

  const bytes = 4 << 20;
  // One head of two, in pieces that travel packed.
  const ids = Int32Array.from({ length: 64 }, (_, index) => index);
  const blocks = blockProgram(ids, ids, 32 << 10);
  const loops = [{ count: 16, sourceStride: 2048, targetStride: 2048 }];
  const slices = { ...blocks.rectangles[0]!, fragmentBytes: 1024, loops };
  const program = { ...blocks, rectangles: [slices] };

  describe('an exporter with memory of several kinds', () => {
    const kinds = [
      ['another GPU', 1],
      ['the host', null],
    ] as const;
    const fragmentsOf = (region: number): Float64Array => {
      const values: number[] = [];
      eachFragment(
        { ...program, rectangles: [{ ...slices, sourceRegion: region }] },
        (...each) => void values.push(...each),
      );
      return Float64Array.from(values);
    };
    const from = (region: number, seed: number): Record<string, unknown> => ({
      program: { ...program, rectangles: [{ ...slices, sourceRegion: region }] },
      ...{ seed, fragments: fragmentsOf(region) },
    });

    test.each(kinds)('gathers from its first GPU; what lies in memory of %s is read as it lies', async (_, other) => {
      const exporter = startChild('nixl-gpu-end', [], env);
      const grant = await exporter.ask<JsonObject>('open', { bytes, seed: 3, devices: [0, other] });
      const reader = startChild('nixl-gpu-end', [], env);
      const options = { exports: false, packPatienceMs: 60_000 };
      await reader.ask('open', { bytes, seed: null, devices: [0, other], options });
      const packed = async (): Promise<number> =>
        (await exporter.ask<{ packedChunks: number }>('counters')).packedChunks;
      expect(await reader.ask('pull', { grant, ...from(1, 3) })).toMatchObject({ status: 'done', wrong: 0 });
      expect(await packed()).toBe(0);
      expect(await reader.ask('pull', { grant, ...from(0, 3) })).toMatchObject({ status: 'done', wrong: 0 });
      expect(await packed()).toBeGreaterThan(0);
      expect(await reader.ask('counters')).toMatchObject({ packRefusals: 0 });
      await Promise.all([reader.kill(), exporter.kill()]);
    });

    test.each(kinds)(
      'gathers nothing from memory of %s for a reader that believes it to be that GPU’s',
      async (_, other) => {
        const exporter = startChild('nixl-gpu-end', [], env);
        const grant = await exporter.ask<JsonObject>('open', { bytes, seed: 4, devices: [0, other] });
        const [first, second] = grant['regions'] as readonly [JsonObject, JsonObject];
        const reader = startChild('nixl-gpu-end', [], env);
        await reader.ask('open', {
          bytes,
          seed: null,
          devices: [0, 0],
          options: { exports: false, packPatienceMs: 1000 },
        });
        const lie = { ...grant, regions: [first, { ...second, kind: 'cuda', device: 0 }] };
        await reader.ask('pull', { grant: lie, ...from(1, 4), fragments: null });
        expect(await exporter.ask('counters')).toMatchObject({ packedChunks: 0 });
        await Promise.all([reader.kill(), exporter.kill()]);
      },
    );
  });

  describe('a lost GPU', () => {
    const lost = { ...env, FAKE_CUDA_LOSE_AFTER: '0' };
    test("of the target leaves its transfers in doubt; closing the transport is the end of the GPU's writing", async () => {
      const exporter = startChild('nixl-gpu-end', [], env);
      const grant = await exporter.ask<JsonObject>('open', { bytes, seed: 1, devices: [0] });
      const reader = startChild('nixl-gpu-end', [], lost);
      await reader.ask('open', { bytes, seed: null, devices: [0], options: { exports: false } });
      const pulled = await reader.ask<{ status: string; error: string; message: string }>('pull', {
        ...{ grant, program, seed: 1, atDoubt: true },
      });
      expect(pulled).toMatchObject({ status: 'failed-active', error: 'NATIVE_SYSTEM' });
      expect(pulled.message).toContain('restart the engine');
      expect(await reader.ask('close')).toBeNull();
      await Promise.all([reader.kill(), exporter.kill()]);
    });

    test('of the source costs the packing: slices are read as they lie', async () => {
      const exporter = startChild('nixl-gpu-end', [], lost);
      const grant = await exporter.ask<JsonObject>('open', { bytes, seed: 2, devices: [0] });
      const reader = startChild('nixl-gpu-end', [], env);
      await reader.ask('open', { bytes, seed: null, devices: [0], options: { exports: false, packPatienceMs: 50 } });
      const pulled = await reader.ask('pull', { grant, program, seed: 2 });
      expect(pulled).toMatchObject({ status: 'done', error: null, bytes: 1 << 20 });
      expect(await reader.ask('counters')).toMatchObject({ packRefusals: 1 });
      await Promise.all([reader.kill(), exporter.kill()]);
    });
  });
});
