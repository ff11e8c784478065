/** The NIXL transport over memory of real GPUs: one, or two with `STATE_HANDOFF_GPUS=0,1`. */
import { gpuMissing, testGpus } from '../support/gpu-missing.js';
import { nixlMissing } from '../support/nixl-fixture.js';
import { nixlGpuSuite } from '../support/nixl-gpu-suite.js';
import { describeOptional } from '../support/optional.js';

describeOptional('gpu', gpuMissing() ?? nixlMissing(), 'nixl between processes', () =>
  nixlGpuSuite({ bytes: 32 << 20, gpus: testGpus(), runs: 60 }),
);
