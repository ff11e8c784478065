/** Token identity between instances with pools on real GPUs: one GPU, or two with `STATE_HANDOFF_GPUS=0,1`. */
import { gpuHandoffSuite } from '../support/gpu-handoff-suite.js';
import { gpuMissing, testGpus } from '../support/gpu-missing.js';
import { describeOptional } from '../support/optional.js';

const library = process.env['STATE_HANDOFF_NCCL'] === undefined ? 'STATE_HANDOFF_NCCL names no library' : null;

describeOptional('gpu', gpuMissing() ?? library, 'instances over GPU memory', () =>
  gpuHandoffSuite({ gpus: testGpus(), nccl: true, isWhole: true }),
);
