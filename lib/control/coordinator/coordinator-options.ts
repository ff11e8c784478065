/** What a coordinator is told when it starts: which generation it follows, what it bounds, and what it cannot know. */
import { argumentError } from '../../errors.js';
import { checkFunctions, checkOptions } from '../option-checks.js';
import type { Opaque } from '../protocol/wire-value.js';
import type { RoutingPolicy } from '../routing/engine-chooser.js';
import type { ExpectedEngine } from './expected-engines.js';
import type { Behaviour } from '../routing/scoring.js';

/** Bounds and deadlines; every one may be lowered or raised. Times in ms; null: none. */
export interface CoordinatorLimits {
  readonly clientsMax: number;
  readonly requestsPerClientMax: number;
  /** Requests that are alive at once, of all clients. */
  readonly requestsMax: number;
  /** Bytes of requests that are kept until they are sent on for the last time, of all clients. */
  readonly promptBytesMax: number;
  /** In the queue of an engine. */
  readonly queueMs: number | null;
  /** On a prefill engine. */
  readonly prefillMs: number | null;
  /** On the engine that generates, and waiting for an engine that was told to stop. */
  readonly decodeMs: number | null;
  /** How long the reply of an engine without a role that is gone may still come. */
  readonly lateReplyMs: number;
}

/** What a coordinator is told when it starts. */
export interface CoordinatorOptions {
  /** Names this run of the coordinator: fences ids that another run minted. */
  readonly instance: string;
  /** With roles, requests go from a prefill to a decode engine. */
  readonly isDisaggregated: boolean;
  readonly behaviour?: Behaviour;
  readonly policy?: RoutingPolicy;
  readonly alpha?: number;
  readonly affinityTtlMs?: number | null;
  readonly affinityBlocksMax?: number;
  readonly affinitySeed?: readonly [number, number];
  /** Whether all engines must use the transport of the first. Default: as the generation does (Gen C: no). */
  readonly oneTransport?: boolean;
  /** Transports whose source sends once its target is ready (KV_TRANSFER_READY, SEND_KV). Default: `nccl`. */
  readonly pushTransports?: readonly string[];
  /** The deployment's engines (`expectedEngines`); others are refused. Null or absent: whoever comes. */
  readonly engines?: readonly ExpectedEngine[] | null;
  /** Requests an engine without a role takes at once, for scoring. */
  readonly engineRequestsMax?: number;
  /**
   * The first request id. Ids below it are another run's; so a run that engines may outlive starts above every id that
   * the run before it can have minted, for example at microseconds since 1970.
   */
  readonly firstRequestId?: number;
  /** Hashes of a prompt's complete blocks, where the client sent none; null or absent: routed by load. */
  readonly hashPrompt?: (prompt: Opaque) => BigInt64Array | null;
  readonly limits?: Partial<CoordinatorLimits>;
}

/** What routing has its own defaults for. */
type RoutingDefault = 'alpha' | 'affinityTtlMs' | 'affinityBlocksMax' | 'affinitySeed';

/** {@link CoordinatorOptions} with every default filled in. */
export type SettledOptions = Required<Omit<CoordinatorOptions, RoutingDefault | 'limits'>> &
  Pick<CoordinatorOptions, RoutingDefault> & { readonly limits: CoordinatorLimits };

/** Far above what an honest deployment needs. */
export const coordinatorLimitsDefault: CoordinatorLimits = Object.freeze({
  clientsMax: 65_536,
  requestsPerClientMax: 65_536,
  requestsMax: 1_048_576,
  promptBytesMax: 2 ** 30,
  queueMs: null,
  prefillMs: null,
  decodeMs: null,
  lateReplyMs: 5000,
});

const engineRequestsDefault = 256;
/** As a message may have it. */
const nameLengthMax = 512;

/** @throws `OPTION_INVALID` naming the option */
export function settleOptions(options: CoordinatorOptions): SettledOptions {
  checkOptions(options);
  checkFunctions(options, ['hashPrompt'], '');
  if (options.limits !== undefined) checkOptions(options.limits, 'limits');
  const { instance, firstRequestId = 0, engineRequestsMax = engineRequestsDefault, behaviour = 'gen-c' } = options;
  const { pushTransports = ['nccl'], engines = null } = options;
  const fail = (path: string, expected: string, got: unknown): never => {
    throw argumentError(path, expected, got, 'OPTION_INVALID');
  };
  if (typeof instance !== 'string' || instance === '' || instance.length > nameLengthMax)
    fail('instance', `a name of at most ${nameLengthMax} characters`, instance);
  if (typeof options.isDisaggregated !== 'boolean') fail('isDisaggregated', 'true or false', options.isDisaggregated);
  if (!Number.isSafeInteger(firstRequestId) || firstRequestId < 0)
    fail('firstRequestId', 'an integer of at least 0', firstRequestId);
  if (!Number.isSafeInteger(engineRequestsMax) || engineRequestsMax < 1)
    fail('engineRequestsMax', 'an integer of at least 1', engineRequestsMax);
  const areNames = Array.isArray(pushTransports) && pushTransports.every((name) => typeof name === 'string' && name);
  if (!areNames) fail('pushTransports', 'a list of names', pushTransports);
  const areEngines = Array.isArray(engines) && engines.every((engine) => typeof engine?.identity === 'string');
  if (engines !== null && !areEngines) fail('engines', 'what expectedEngines gives, or null', engines);
  const limits = { ...coordinatorLimitsDefault, ...options.limits };
  for (const [name, limit] of Object.entries(limits) as [keyof CoordinatorLimits, number | null][]) {
    if (!Object.hasOwn(coordinatorLimitsDefault, name)) fail(`limits.${name}`, 'no such limit', limit);
    const isTime = name.endsWith('Ms');
    if (limit === null ? !isTime || name === 'lateReplyMs' : !(limit >= (isTime ? 0 : 1)))
      fail(`limits.${name}`, isTime ? 'milliseconds' : 'at least 1', limit);
  }
  return {
    instance,
    isDisaggregated: options.isDisaggregated,
    behaviour,
    policy: options.policy ?? 'load_balanced',
    pushTransports,
    engines,
    oneTransport: options.oneTransport ?? behaviour === 'gen-b',
    engineRequestsMax,
    firstRequestId,
    hashPrompt: options.hashPrompt ?? (() => null),
    limits,
    ...(options.alpha === undefined ? {} : { alpha: options.alpha }),
    ...(options.affinityBlocksMax === undefined ? {} : { affinityBlocksMax: options.affinityBlocksMax }),
    ...(options.affinityTtlMs === undefined ? {} : { affinityTtlMs: options.affinityTtlMs }),
    ...(options.affinitySeed === undefined ? {} : { affinitySeed: options.affinitySeed }),
  };
}
