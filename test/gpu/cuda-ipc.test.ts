/** The cuda-ipc transport on real GPUs: one, or two with `STATE_HANDOFF_GPUS=0,1`. */
import { cudaIpcSuite } from '../support/cuda-ipc-suite.js';
import { gpuMissing, testGpus } from '../support/gpu-missing.js';
import { describeOptional } from '../support/optional.js';

const missing = gpuMissing();

describeOptional('gpu', missing, 'cuda-ipc between processes', () => {
  cudaIpcSuite({ bytes: 256 << 20, gpus: testGpus() });
});
