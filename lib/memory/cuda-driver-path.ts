/** Which CUDA driver this process uses: the loader's own libcuda.so.1, unless `STATE_HANDOFF_CUDA` names one by path. */
import { addon } from '../native/addon.js';
import { native } from '../native/addon-errors.js';
import type { NativeCudaDescription } from '../native/cuda-types.js';

/** The path, or null for the loader's own. */
export function cudaDriverPath(): string | null {
  const path = process.env['STATE_HANDOFF_CUDA'];
  return path === undefined || path === '' ? null : path;
}

/**
 * The driver and its devices.
 *
 * @throws `TRANSPORT_UNAVAILABLE` when there is no driver or no device; the message says which
 */
export function describeCuda(): NativeCudaDescription {
  return native(() => addon().cudaDescribe(cudaDriverPath()));
}
