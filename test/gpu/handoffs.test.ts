/** Token identity between instances with pools on real GPUs: one GPU, or two with `STATE_HANDOFF_GPUS=0,1`. */
import { gpuHandoffSuite } from '../support/gpu-handoff-suite.js';
import { gpuMissing, ncclMissing, testGpus } from '../support/gpu-missing.js';
import { nixlMissing } from '../support/nixl-fixture.js';
import { describeOptional } from '../support/optional.js';

const missing = gpuMissing() ?? ncclMissing() ?? nixlMissing();

describeOptional('gpu', missing, 'instances over GPU memory', () =>
  gpuHandoffSuite({ gpus: testGpus(), nccl: true, nixl: true, isWhole: true }),
);
