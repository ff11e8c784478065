/** Token identity over NCCL without a GPU: engines over stand-ins for NCCL and the CUDA driver, ranks on two GPUs. */
import { useFakeNccl } from '../support/fake-nccl.js';
import { gpuHandoffSuite } from '../support/gpu-handoff-suite.js';

const env = useFakeNccl();

describe('instances on two GPUs', () =>
  gpuHandoffSuite({ env, gpus: { source: 0, target: 1 }, nccl: true, isWhole: false }));
