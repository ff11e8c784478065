/**
 * What one seed means: which instances there are, what goes wrong and when. Plain data, drawn before anything runs.
 */
import {
  kvAxesDefault,
  SeededRandom,
  type FaultRates,
  type KvAxisName,
  type StageEnds,
  type TestModelShape,
} from '../../lib/testing/index.js';

export interface InstancePlan {
  readonly name: string;
  readonly role: 'prefill' | 'decode';
  readonly tpSize: number;
  readonly ppSize: number;
  /** Where its stages end, when they are not as even as can be: uneven, or without a layer. */
  readonly stageEnds: StageEnds | null;
  readonly poolSize: number;
  readonly maxRequests: number;
  readonly kvAxes: readonly KvAxisName[];
  /** Mean time between two looks of a rank at the world; ranks differ. */
  readonly tickMs: number;
}

export interface WorldPlan {
  readonly seed: number;
  readonly shape: TestModelShape;
  readonly numSpeculativeTokens: number;
  readonly instances: readonly InstancePlan[];
  readonly requestCount: number;
  /** Over which requests arrive. */
  readonly arrivalMs: number;
  readonly direction: 'pull' | 'push';
  readonly provesQuietOnCancel: boolean;
  /** Whether sources have generations, so that a reader that comes too late notices. */
  readonly noticesLateReads: boolean;
  /** Whether anything at all goes wrong; without faults every request must finish. */
  readonly hasFaults: boolean;
  readonly faults: FaultRates;
  /** Of control messages between router and engines. */
  readonly messages: { readonly loss: number; readonly duplicate: number; readonly delayMsMax: number };
  /** How often a message between the ranks of an instance is held back, and for how long at most. */
  readonly hold: { readonly rate: number; readonly msMax: number };
  readonly restarts: readonly { readonly instance: number; readonly atMs: number }[];
  /** One worker of an instance of several ranks dies; the whole instance is started anew some time later. */
  readonly losses: readonly {
    readonly instance: number;
    readonly rank: number;
    readonly atMs: number;
    readonly restartAfterMs: number;
  }[];
  readonly abortRate: number;
  /** How often a step of a decode instance takes blocks away, and gives all back. */
  readonly hogRate: number;
  readonly engineFailRate: number;
  /** Late fences: state that is ready after its ticket, targets that are still used by earlier work. */
  readonly lateFenceRate: number;
  readonly claims: boolean;
  readonly deadlines: {
    readonly queueMs: number;
    readonly handshakeMs: number;
    readonly transferMs: number;
    readonly pinMs: number;
  };
  readonly maxPinnedHandoffs: number;
  readonly maxInFlightBlocks: number | null;
}

/** Ranks of one instance; more only make a world slow. */
const ranksMax = 8;

/** Tensor by pipeline: every layout of a model of so many layers that an instance may have. Stages may be uneven. */
function layoutsOf(layers: number): (readonly [tpSize: number, ppSize: number])[] {
  const stages = Array.from({ length: layers }, (_, index) => index + 1);
  return [1, 2, 4, 8].flatMap((tpSize) =>
    stages.filter((ppSize) => tpSize * ppSize <= ranksMax).map((ppSize) => [tpSize, ppSize] as const),
  );
}

/** Cuts anywhere: stages of any length, and some without a layer. */
function cuts(random: SeededRandom, layers: number, stages: number): readonly number[] {
  const ends = Array.from({ length: stages - 1 }, () => random.int(0, layers));
  return [...ends.sort((a, b) => a - b), layers];
}

export function planWorld(seed: number): WorldPlan {
  // What came later draws from a source of its own, so that older seeds are still the same worlds.
  const later = new SeededRandom(seed ^ 0x1a7e);
  const random = new SeededRandom(seed);
  const isHybrid = random.chance(0.3);
  const layers = random.int(1, 5);
  const shape: TestModelShape = {
    layers,
    // Fewer than tensor ranks: neighbours share a head.
    kvHeads: random.pick([1, 2, 4, 4, 8]),
    headDim: 1,
    blockSize: random.pick([2, 4]),
    elementBytes: 4,
    ssm: isHybrid ? { layers, dims: { nheads: 8, headdim: 1, dState: 1, ngroups: 8, dConv: 2 } } : null,
  };
  const layouts = layoutsOf(layers);
  const hasFaults = random.chance(0.8);
  const isBig = random.chance(0.02);
  const noticesLateReads = random.chance(0.85);
  const instances: InstancePlan[] = [];
  for (const role of ['prefill', 'decode'] as const) {
    const count = random.int(1, 3);
    for (let index = 0; index < count; index++) {
      // Small instances are more: what goes wrong in a large one mostly goes wrong in one of two ranks.
      const isSmall = random.chance(0.8);
      const [tpSize, ppSize] = random.chance(0.4)
        ? [1, 1]
        : random.pick(layouts.filter(([tp, pp]) => !isSmall || tp * pp <= 4));
      instances.push({
        name: `${role}${index}`,
        role,
        tpSize,
        ppSize,
        stageEnds:
          ppSize > 1 && later.chance(0.4)
            ? { layers: cuts(later, layers, ppSize), ssmLayers: cuts(later, layers, ppSize) }
            : null,
        poolSize: random.int(20, role === 'prefill' ? 60 : 48),
        maxRequests: random.int(2, 6),
        kvAxes: random.chance(0.5) ? kvAxesDefault : random.shuffle(kvAxesDefault),
        tickMs: random.pick([1, 1.5, 2.5]),
      });
    }
  }
  const rate = (most: number): number => (hasFaults && random.chance(0.5) ? random.float() * most : 0);
  const faults: FaultRates = {
    drop: rate(0.06),
    stall: rate(0.06),
    error: rate(0.15),
    lateDone: rate(0.1),
    duplicate: rate(0.2),
    beginThrows: rate(0.06),
    pollThrows: rate(0.1),
    connectFails: rate(0.2),
    connectHangs: rate(0.1),
    delayMsMax: random.pick([0.5, 3, 8]),
    piecesMax: random.int(1, 4),
  };
  const restartCount = hasFaults && random.chance(0.35) ? random.int(1, 3) : 0;
  const requestCount = isBig ? 500 : random.int(20, 80);
  const arrivalMs = requestCount * random.pick([0.5, 1.5, 4]);
  const several = instances.flatMap(({ tpSize, ppSize }, index) => (tpSize * ppSize > 1 ? [index] : []));
  const lossCount = hasFaults && several.length > 0 && later.chance(0.3) ? later.int(1, 2) : 0;
  const losses = Array.from({ length: lossCount }, () => {
    const instance = later.pick(several);
    const { tpSize, ppSize } = instances[instance]!;
    return {
      instance,
      rank: later.int(1, tpSize * ppSize - 1),
      atMs: later.float() * arrivalMs,
      restartAfterMs: 2 + later.float() * 60,
    };
  });
  return {
    seed,
    shape,
    numSpeculativeTokens: random.chance(0.7) ? 0 : random.int(1, 2),
    instances,
    requestCount,
    arrivalMs,
    direction: random.chance(0.15) ? 'push' : 'pull',
    provesQuietOnCancel: random.chance(0.7),
    noticesLateReads,
    hasFaults,
    faults,
    messages: { loss: rate(0.2), duplicate: rate(0.2), delayMsMax: random.pick([1, 4, 15]) },
    hold: { rate: random.chance(0.6) ? random.float() * 0.5 : 0, msMax: random.pick([2, 10, 30]) },
    restarts: Array.from({ length: restartCount }, () => ({
      instance: random.int(0, instances.length - 1),
      atMs: random.float() * (arrivalMs + 60),
    })),
    losses,
    abortRate: random.chance(0.7) ? random.float() * 0.4 : 0,
    hogRate: random.chance(0.5) ? random.float() * 0.3 : 0,
    engineFailRate: rate(0.05),
    lateFenceRate: random.chance(0.4) ? random.float() * 0.5 : 0,
    // Where nobody notices a late read, a claim is what keeps a second reader out.
    claims: !noticesLateReads || random.chance(0.4),
    deadlines: hasFaults
      ? {
          queueMs: random.pick([60, 300, 900]),
          handshakeMs: random.pick([15, 60]),
          transferMs: random.pick([30, 120]),
          pinMs: random.pick([80, 600, 6000]),
        }
      : { queueMs: 1e6, handshakeMs: 1e6, transferMs: 1e6, pinMs: 1e6 },
    maxPinnedHandoffs: random.chance(0.5) ? 1000 : random.int(2, 8),
    maxInFlightBlocks: random.chance(0.7) ? null : random.int(4, 20),
  };
}
