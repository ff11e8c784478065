/** Why this machine cannot run the tests of real GPUs; null when it can. And which GPUs they use. */
import { describeCuda } from '../../lib/memory/cuda-driver-path.js';
import { addon } from '../../lib/native/addon.js';

export function gpuMissing(): string | null {
  try {
    describeCuda();
    return addon().cudaKernelsMissing();
  } catch (error) {
    return (error as Error).message;
  }
}

/** Why these tests have no NCCL; null when they have. */
export function ncclMissing(): string | null {
  return process.env['STATE_HANDOFF_NCCL'] === undefined ? 'STATE_HANDOFF_NCCL names no library' : null;
}

/** Prefill's GPU and decode's: `STATE_HANDOFF_GPUS=0,1`, or else 0 for both. */
export function testGpus(): { readonly source: number; readonly target: number } {
  const [source = 0, target = source] = (process.env['STATE_HANDOFF_GPUS'] ?? '0').split(',').map(Number);
  return { source, target };
}
