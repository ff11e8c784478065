/**
 * The cuda-ipc transport without a GPU: every promise of the suite over a stand-in for the CUDA driver, and what happens
 * when a GPU is lost, which no real one does on request. `test/gpu` runs the same suite on a real one.
 */
import type { JsonObject } from '../../lib/json.js';
import { startChild } from '../support/child-process.js';
import { cudaIpcSuite } from '../support/cuda-ipc-suite.js';
import { useFakeCuda } from '../support/fake-cuda.js';

const env = useFakeCuda();

describe('on one GPU', () => cudaIpcSuite({ env, bytes: 4 << 20, gpus: { source: 0, target: 0 } }));

describe('a lost GPU', () => {
  test('leaves its transfers in doubt for good, and the transport does not close', async () => {
    const bytes = 1 << 20;
    const exporter = startChild('cuda-end', [], env as Record<string, string>);
    const grant = await exporter.ask<JsonObject>('open', { bytes, seed: 1 });
    const reader = startChild('cuda-end', [], { ...(env as Record<string, string>), FAKE_CUDA_LOSE_AFTER: '0' });
    await reader.ask('open', { bytes, seed: null });
    const pulled = await reader.ask<{ status: string; error: string; message: string }>('pull', {
      ...{ grant, blockBytes: 1024, source: [0, 1], target: [0, 1] },
    });
    expect(pulled).toMatchObject({ status: 'failed-active', error: 'TRANSFER_FAILED' });
    expect(pulled.message).toContain('restart the engine');
    expect(await reader.ask('close')).toBe('MEMORY_IN_DOUBT');
    await Promise.all([reader.kill(), exporter.kill()]);
  });
});

describe('without a GPU', () => {
  test('the transport says what is missing', async () => {
    const child = startChild('cuda-end', [], { STATE_HANDOFF_CUDA: './no-such-driver.so' });
    await expect(child.ask('open', { bytes: 1024, seed: null })).rejects.toThrow(
      /TRANSPORT_UNAVAILABLE.*no-such-driver/s,
    );
    await child.kill();
  });
});
