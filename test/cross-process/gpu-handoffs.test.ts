/** Token identity over NCCL and NIXL without a GPU: engines over stand-ins for what is missing, ranks on two GPUs. */
import { useFakeNccl } from '../support/fake-nccl.js';
import { useFakeVram } from '../support/fake-vram.js';
import { gpuHandoffSuite } from '../support/gpu-handoff-suite.js';
import { nixlMissing } from '../support/nixl-fixture.js';
import { describeOptional } from '../support/optional.js';

const env = useFakeNccl();

describe('instances on two GPUs', () =>
  gpuHandoffSuite({ env, gpus: { source: 0, target: 1 }, nccl: true, nixl: false, isWhole: false }));

describeOptional('nixl', nixlMissing(), 'instances on two GPUs, over NIXL', () =>
  gpuHandoffSuite({ env: useFakeVram(), gpus: { source: 0, target: 1 }, nccl: false, nixl: true, isWhole: false }),
);
