/** Token identity with pools on real GPUs: one, or two with `STATE_HANDOFF_GPUS=0,1`. */
import { cudaEngineSuite } from '../support/cuda-engine-suite.js';
import { gpuMissing, testGpus } from '../support/gpu-missing.js';
import { describeOptional } from '../support/optional.js';

describeOptional('gpu', gpuMissing(), 'engines over GPU memory', () => cudaEngineSuite({ gpus: testGpus() }));
