/**
 * The NIXL transport over GPU memory without a GPU: every promise of the suite over a stand-in for the CUDA driver, whose
 * memory the real NIXL is told to be the host's; and a GPU that is lost, which no real one is on request.
 */
import { useFakeVram } from '../support/fake-vram.js';
import { GpuEnds } from '../support/gpu-ends.js';
import { gpuPrograms } from '../support/gpu-pull-suite.js';
import { nixlMissing } from '../support/nixl-fixture.js';
import { nixlGpuSuite } from '../support/nixl-gpu-suite.js';
import { describeOptional } from '../support/optional.js';

describeOptional('nixl', nixlMissing(), 'the NIXL transport over memory of GPUs', () => {
  const env = useFakeVram();

  const setting = { env, bytes: 4 << 20, gpus: { source: 0, target: 1 } };
  const ends = new GpuEnds('nixl', setting);

  nixlGpuSuite({ ...setting, runs: 40 });

  const program = gpuPrograms(setting.bytes).heads();

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
