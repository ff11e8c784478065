/** What one seed means for a simulated control plane: engines, clients, and what goes wrong. */
import { SeededRandom } from '../../../lib/testing/index.js';
import type { CoordinatorLimits } from '../../../lib/control/coordinator/coordinator-options.js';

export interface EnginePlan {
  readonly peer: string;
  readonly role: 'prefill' | 'decode';
  readonly requestCapacity: number;
  readonly slotCapacity: number;
}

export interface ControlPlan {
  readonly seed: number;
  readonly behaviour: 'gen-b' | 'gen-c';
  readonly transport: 'nixl' | 'nccl';
  /** Whether engines are this package's: they say which process they are, and what they hold. */
  readonly areOurs: boolean;
  readonly isHybrid: boolean;
  readonly engines: readonly EnginePlan[];
  readonly clients: number;
  readonly requests: number;
  readonly arrivalMs: number;
  readonly abortRate: number;
  readonly delayMsMax: number;
  readonly duplicate: number;
  readonly loss: number;
  /** Of imports and prefills. */
  readonly failRate: number;
  /** How long a reader reads, at most. */
  readonly readMsMax: number;
  /** How long peers need to connect again. */
  readonly reconnectMsMax: number;
  readonly breaks: readonly { readonly engine: number; readonly atMs: number }[];
  readonly deaths: readonly { readonly engine: number; readonly atMs: number; readonly isAttested: boolean }[];
  readonly coordinatorRestarts: readonly number[];
  readonly clientBreaks: readonly number[];
  readonly limits: Partial<CoordinatorLimits>;
}

export function planControl(seed: number): ControlPlan {
  const random = new SeededRandom(seed);
  const isHybrid = random.chance(0.3);
  const engines: EnginePlan[] = [];
  for (const role of ['prefill', 'decode'] as const) {
    const count = random.int(1, 3);
    for (let index = 0; index < count; index++) {
      const requestCapacity = random.int(1, 6);
      const slotCapacity = isHybrid ? random.int(1, requestCapacity) : 0;
      engines.push({ peer: `${role}_s${index}_dp0`, role, requestCapacity, slotCapacity });
    }
  }
  const hasFaults = random.chance(0.8);
  const areOurs = random.chance(0.8);
  const requests = random.int(15, 80);
  const arrivalMs = requests * random.pick([1, 4, 10]);
  const times = (rate: number, most: number): number[] =>
    hasFaults && random.chance(rate)
      ? Array.from({ length: random.int(1, most) }, () => random.float() * arrivalMs * 1.5)
      : [];
  const engine = (): number => random.int(0, engines.length - 1);
  const loss = hasFaults && areOurs && random.chance(0.3) ? random.float() * 0.05 : 0;
  const deadline = random.int(300, 900);
  return {
    seed,
    behaviour: random.chance(0.3) ? 'gen-b' : 'gen-c',
    transport: random.chance(0.25) ? 'nccl' : 'nixl',
    areOurs,
    isHybrid,
    engines,
    clients: random.int(1, 3),
    requests,
    arrivalMs,
    abortRate: random.pick([0, 0.1, 0.4]),
    delayMsMax: random.pick([0, 2, 10]),
    duplicate: hasFaults && random.chance(0.5) ? random.float() * 0.2 : 0,
    loss,
    failRate: hasFaults && random.chance(0.5) ? random.float() * 0.3 : 0,
    readMsMax: random.pick([20, 60, 120]),
    reconnectMsMax: random.pick([10, 100]),
    // An engine that does not say who it is registers once in its life.
    breaks: areOurs ? times(0.4, 3).map((atMs) => ({ engine: engine(), atMs })) : [],
    // Lives of one that does not say who it is cannot be told apart: one death for all of them.
    deaths: times(0.4, areOurs ? 2 : 1).map((atMs) => ({ engine: engine(), atMs, isAttested: random.chance(0.5) })),
    coordinatorRestarts: areOurs ? times(0.2, 2) : [],
    clientBreaks: times(0.15, 2),
    // What is lost without a trace is noticed by time only.
    limits: loss > 0 || random.chance(0.2) ? { queueMs: deadline * 4, prefillMs: deadline, decodeMs: deadline } : {},
  };
}
