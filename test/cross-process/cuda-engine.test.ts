/** Token identity over cuda-ipc without a GPU: engines over a stand-in for the CUDA driver, one GPU and two. */
import { cudaEngineSuite } from '../support/cuda-engine-suite.js';
import { useFakeCuda } from '../support/fake-cuda.js';

const env = useFakeCuda();

describe('engines on two GPUs', () => cudaEngineSuite({ env, gpus: { source: 0, target: 1 } }));
