/**
 * The NIXL transport over GPU memory without a GPU: every promise of the suite over a stand-in for the CUDA driver, whose
 * memory the real NIXL is told to be the host's; and a GPU that is lost, which no real one is on request.
 */
import type { JsonObject } from '../../lib/json.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import { useFakeVram } from '../support/fake-vram.js';
import { GpuEnds, right } from '../support/gpu-ends.js';
import { blockProgram } from '../support/host-fixture.js';
import { nixlMissing } from '../support/nixl-fixture.js';
import { nixlGpuSuite } from '../support/nixl-gpu-suite.js';
import { describeOptional } from '../support/optional.js';

describeOptional('nixl', nixlMissing(), 'the NIXL transport over memory of GPUs', () => {
  const env = useFakeVram();

  const setting = { env, bytes: 4 << 20, gpus: { source: 0, target: 1 } };
  const ends = new GpuEnds('nixl', setting);

  nixlGpuSuite({ ...setting, runs: 40 });

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
    const from = (region: number): CopyProgram => ({
      ...program,
      rectangles: [{ ...slices, sourceRegion: region }],
    });

    test.each(kinds)('gathers from its first GPU; what lies in memory of %s is read as it lies', async (_, other) => {
      const { child: exporter, grant } = await ends.open({ seed: 3, devices: [0, other] });
      const options = { exports: false, packPatienceMs: 60_000 };
      const { child: reader } = await ends.open({ seed: null, devices: [0, other] }, options);
      const packed = async (): Promise<number> =>
        (await exporter.ask<{ packedChunks: number }>('counters')).packedChunks;
      expect(await ends.pull(reader, grant, from(1), 3)).toMatchObject(right);
      expect(await packed()).toBe(0);
      expect(await ends.pull(reader, grant, from(0), 3)).toMatchObject(right);
      expect(await packed()).toBeGreaterThan(0);
      expect(await reader.ask('counters')).toMatchObject({ packRefusals: 0 });
      await Promise.all([reader.kill(), exporter.kill()]);
    });

    test.each(kinds)(
      'gathers nothing from memory of %s for a reader that believes it to be that GPU’s',
      async (_, other) => {
        const { child: exporter, grant } = await ends.open({ seed: 4, devices: [0, other] });
        const [first, second] = grant['regions'] as readonly [JsonObject, JsonObject];
        const options = { exports: false, packPatienceMs: 1000 };
        const { child: reader } = await ends.open({ seed: null, devices: [0, 0] }, options);
        const lie = { ...grant, regions: [first, { ...second, kind: 'cuda', device: 0 }] };
        await reader.ask('pull', { grant: lie, program: from(1) });
        expect(await exporter.ask('counters')).toMatchObject({ packedChunks: 0 });
        await Promise.all([reader.kill(), exporter.kill()]);
      },
    );
  });

  describe('a lost GPU', () => {
    const losing = new GpuEnds('nixl', { ...setting, env: { ...env, FAKE_CUDA_LOSE_AFTER: '0' } });
    const readers = { seed: null, devices: [0] };
    test("of the target leaves its transfers in doubt; closing the transport is the end of the GPU's writing", async () => {
      const { child: exporter, grant } = await ends.exporter(1);
      const { child: reader } = await losing.open(readers, { exports: false });
      const pulled = await reader.ask<{ status: string; error: string; message: string }>('pull', {
        ...{ grant, program, atDoubt: true },
      });
      expect(pulled).toMatchObject({ status: 'failed-active', error: 'NATIVE_SYSTEM' });
      expect(pulled.message).toContain('restart the engine');
      expect(await reader.ask('close')).toBeNull();
      await Promise.all([reader.kill(), exporter.kill()]);
    });

    test('of the source costs the packing: slices are read as they lie', async () => {
      const { child: exporter, grant } = await losing.exporter(2);
      const { child: reader } = await ends.open(readers, { exports: false, packPatienceMs: 50 });
      const pulled = await reader.ask('pull', { grant, program });
      expect(pulled).toMatchObject({ status: 'done', error: null, bytes: 1 << 20 });
      expect(await reader.ask('counters')).toMatchObject({ packRefusals: 1 });
      await Promise.all([reader.kill(), exporter.kill()]);
    });
  });
});
