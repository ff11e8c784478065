/**
 * The cuda-ipc transport without a GPU: every promise of the suite over a stand-in for the CUDA driver, and what happens
 * when a GPU is lost, which no real one does on request. `test/gpu` runs the same suite on a real one.
 */
import { startChild } from '../support/child-process.js';
import { cudaIpcSuite } from '../support/cuda-ipc-suite.js';
import { useFakeCuda } from '../support/fake-cuda.js';
import { GpuEnds, type Pulled } from '../support/gpu-ends.js';
import { blockProgram } from '../support/host-fixture.js';

const env = useFakeCuda();

describe('on one GPU', () => cudaIpcSuite({ env, bytes: 4 << 20, gpus: { source: 0, target: 0 } }));

describe('a lost GPU', () => {
  test('leaves its transfers in doubt for good, and the transport does not close', async () => {
    const setting = { env, bytes: 1 << 20, gpus: { source: 0, target: 0 } };
    const { child: exporter, grant } = await new GpuEnds('cuda-ipc', setting).exporter(1);
    const losing = { ...setting, env: { ...env, FAKE_CUDA_LOSE_AFTER: '0' } };
    const reader = await new GpuEnds('cuda-ipc', losing).importer();
    const program = blockProgram(Int32Array.of(0, 1), Int32Array.of(0, 1), 1024);
    const pulled = await reader.ask<Pulled>('pull', { grant, program, atDoubt: true });
    expect(pulled).toMatchObject({ status: 'failed-active', error: 'TRANSFER_FAILED' });
    expect(pulled.message).toContain('restart the engine');
    expect(await reader.ask('close')).toBe('MEMORY_IN_DOUBT');
    await Promise.all([reader.kill(), exporter.kill()]);
  });
});

describe('without a GPU', () => {
  test('the transport says what is missing', async () => {
    const child = startChild('gpu-end', [], { STATE_HANDOFF_CUDA: './no-such-driver.so' });
    const values = { transport: 'cuda-ipc', bytes: 1024, seed: null, devices: [] };
    await expect(child.ask('open', values)).rejects.toThrow(/TRANSPORT_UNAVAILABLE.*no-such-driver/s);
    await child.kill();
  });
});
