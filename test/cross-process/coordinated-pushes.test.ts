/** NCCL behind a coordinator without a GPU: engines as processes over stand-ins for NCCL and the CUDA driver. */
import { coordinatedPushSuite, standsStill } from '../support/coordinated-push-suite.js';
import { stallNccl, useFakeNccl } from '../support/fake-nccl.js';

const env = useFakeNccl();
// Only a fault waits that long.
jest.setTimeout(240_000);

const stalls = {
  title: 'while receives wait',
  hold: (isHeld: boolean, { pid }: { readonly pid?: number | undefined }) => stallNccl(isHeld, pid!),
};

describe('engines on two GPUs', () =>
  coordinatedPushSuite({ env, gpus: { source: 0, target: 1 }, holds: [stalls, standsStill] }));
