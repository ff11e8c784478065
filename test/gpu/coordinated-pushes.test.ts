/** NCCL itself behind a coordinator, on real GPUs: one, or two with `STATE_HANDOFF_GPUS=0,1`. */
import { coordinatedPushSuite, standsStill } from '../support/coordinated-push-suite.js';
import { gpuMissing, ncclMissing, testGpus } from '../support/gpu-missing.js';
import { describeOptional } from '../support/optional.js';

// Only a fault waits that long.
jest.setTimeout(240_000);

describeOptional('gpu', gpuMissing() ?? ncclMissing(), 'engines behind a coordinator', () =>
  coordinatedPushSuite({ gpus: testGpus(), holds: [standsStill] }),
);
