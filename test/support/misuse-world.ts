/**
 * Whole instances for misuse and field-report tests: test engines, scripted transports and `StateHandoff` over one
 * simulated clock, with any number of ranks and each carrier of the log. Everything that listeners hear is kept.
 */
import type { RequestId, SamplingParams } from '../../lib/engine-context.js';
import type { HandoffError } from '../../lib/errors.js';
import type { StateHandoffEvents } from '../../lib/events.js';
import type { StateHandoffOptions } from '../../lib/options.js';
import { StateHandoff } from '../../lib/state-handoff.js';
import { InProcessRankGroup, type InProcessRankGroupOptions } from '../../lib/control/in-process-rank-group.js';
import { ScriptedNetwork } from '../../lib/testing/scripted-network.js';
import { ScriptedTransport, type ScriptedTransportOptions } from '../../lib/testing/scripted-transport.js';
import { TestEngine, type PrefillRun, type TestEngineOptions } from '../../lib/testing/test-engine.js';
import { rankPositions, smallShape, type TestModelShape } from '../../lib/testing/test-memory.js';
import type { Ticket } from '../../lib/ticket.js';
import { outcomeOf, settle, type Outcome } from './outcome.js';

export { settle, type Outcome };

export type Role = 'prefill' | 'decode';
export type Carrier = 'local' | 'group' | 'host';
type EventName = keyof StateHandoffEvents;
type Notice = { readonly name: EventName; readonly notice: Readonly<Record<string, unknown>> };

export interface Rank {
  readonly engine: TestEngine;
  readonly transport: ScriptedTransport;
  readonly sdk: StateHandoff;
  readonly group: InProcessRankGroup | null;
  /** All that this rank's listeners heard, in order; `wake` left out. */
  readonly told: Notice[];
}

export interface InstanceOptions {
  readonly role: Role;
  readonly network: ScriptedNetwork;
  /** Default `local` for one rank, `group` for more. */
  readonly carrier?: Carrier;
  readonly size?: number;
  readonly engine?: Partial<TestEngineOptions>;
  readonly options?: StateHandoffOptions;
  readonly transport?: ScriptedTransportOptions;
  readonly group?: InProcessRankGroupOptions;
}

const eventNames: readonly EventName[] = [
  'kvTransferReady',
  'kvReadDone',
  'requestError',
  'requestAborted',
  'handoffAdmitted',
  'quarantined',
  'reclaimed',
  'pinned',
  'ticketReady',
  'released',
  'pinOverdue',
  'engineFailed',
  'warning',
];

export const hybridShape: TestModelShape = {
  ...smallShape,
  ssm: { layers: 2, dims: { nheads: 4, headdim: 2, dState: 2, ngroups: 2, dConv: 3 } },
};

export const world = (): ScriptedNetwork => new ScriptedNetwork();

/** The ranks of one instance that nobody has set up. */
export function newRanks(given: InstanceOptions): Rank[] {
  const { role, network, size = 1 } = given;
  const carrier = given.carrier ?? (size === 1 ? 'local' : 'group');
  const groups = carrier === 'local' ? null : InProcessRankGroup.create(size, given.group);
  return rankPositions(size, 1).map((position, rank) => {
    const engine = new TestEngine({ role, clock: network.clock, position, ...given.engine });
    const { blocks, slots } = engine;
    const generations = slots === null ? { blocks } : { blocks, slots };
    const transport = new ScriptedTransport(network, { generations, ...given.transport });
    const sdk = new StateHandoff(engine, {
      instance: role,
      incarnation: 'first',
      clock: network.clock,
      ...given.options,
    });
    const told: Notice[] = [];
    for (const name of eventNames) {
      sdk.on(name, (...notices: unknown[]) => told.push({ name, notice: notices[0] as Notice['notice'] }));
    }
    engine.onEnd = (end) => sdk.finishRequest(end.attemptId, { ...end, cachedTokens: 0 });
    return { engine, transport, sdk, group: groups?.[rank] ?? null, told };
  });
}

export function setUp(ranks: readonly Rank[], role: Role, carrier: Carrier): Promise<unknown> {
  return Promise.all(
    ranks.map(({ sdk, transport, group }) =>
      sdk.setupKvTransfer(role, transport, carrier === 'local' ? {} : { group, carrier }),
    ),
  );
}

/** The ranks of one instance, set up. */
export async function instance(given: InstanceOptions): Promise<Rank[]> {
  const ranks = newRanks(given);
  await setUp(ranks, given.role, given.carrier ?? (ranks.length === 1 ? 'local' : 'group'));
  return ranks;
}

export async function single(given: InstanceOptions): Promise<Rank> {
  return (await instance(given))[0]!;
}

/** A prefill and a decode engine of one rank each. */
export async function pair(
  network: ScriptedNetwork,
  prefill: Partial<InstanceOptions> = {},
  decode: Partial<InstanceOptions> = {},
): Promise<{ readonly prefill: Rank; readonly decode: Rank }> {
  const source = await single({ role: 'prefill', network, ...prefill });
  return { prefill: source, decode: await single({ role: 'decode', network, ...decode }) };
}

/** Ends of a two-sided transport. */
export const push = { transport: { direction: 'push', name: 'pushed' } } as const satisfies Partial<InstanceOptions>;

export function promptOf(length: number, seed = 0): Int32Array {
  return Int32Array.from({ length }, (_, index) => 1000 * seed + index + 1);
}

export interface Handed {
  readonly ticket: Ticket;
  readonly prompt: Int32Array;
}

export function compute(rank: Rank, requestId: RequestId, prompt: Int32Array, params: SamplingParams = {}): PrefillRun {
  const run = rank.engine.prefill(requestId, prompt, params);
  if (run === null) throw new Error(`no room to prefill ${String(requestId)}`);
  return run;
}

export const finishedOf = (run: PrefillRun) => ({
  ...run,
  promptTokens: run.prompt.length,
  doKvHandoff: true,
  returnLogProbs: run.resumeLogProbs !== null,
});

/** Prefills, pins and lets the engine clean up, on every rank; the ticket is rank 0's. */
export function handOff(
  ranks: Rank | readonly Rank[],
  requestId: RequestId = 'r',
  prompt = promptOf(10),
  params: SamplingParams = {},
): Handed {
  const tickets = [ranks].flat().map((rank) => {
    const run = compute(rank, requestId, prompt, params);
    const prepared = rank.sdk.prepareHandoffMetadataBatch([finishedOf(run)]);
    const ticket = rank.sdk.captureHandoffMeta(requestId, prepared, { ready: run.ready });
    rank.engine.endPrefill(run, true);
    return ticket;
  });
  return { ticket: tickets[0]!, prompt };
}

/** Adds a handoff on one rank and keeps what becomes of its promise. */
export function add(
  rank: Rank,
  { ticket, prompt }: Handed,
  params: SamplingParams = { num_tokens_to_generate: 3 },
  requestId: RequestId = ticket.requestId,
  options: Parameters<StateHandoff['addRequestWithKvHandoff']>[5] = {},
): Outcome {
  return outcomeOf(
    rank.sdk.addRequestWithKvHandoff(requestId, prompt, params, ticket.kvMeta, ticket.blockIds, options),
  );
}

/** One scheduling step of a decode instance: poll, admit, run. Returns how many rank 0 admitted. */
export function step(ranks: Rank | readonly Rank[]): number {
  const all = [ranks].flat();
  for (const { sdk } of all.toReversed()) sdk.pollPendingKvImports();
  const admitted = all.map(({ engine, sdk }) => {
    engine.isScheduling = true;
    try {
      return sdk.scheduleWaitingRequests(0);
    } finally {
      engine.isScheduling = false;
    }
  });
  for (const { engine } of all) engine.step();
  return admitted[0]!;
}

/** Steps, with time going on by `ms` each, until the outcome is there. */
export async function until(outcome: Outcome, ranks: Rank | readonly Rank[], ms = 1, stepsMax = 200): Promise<void> {
  for (let i = 0; outcome.settled === 0; i += 1) {
    if (i === stepsMax) throw new Error(`nothing settled in ${stepsMax} steps`);
    step(ranks);
    [ranks].flat()[0]!.transport.network.advance(ms);
    await settle();
  }
}

/** One step of a prefill instance of any carrier but `host`. */
export function prefillStep(ranks: Rank | readonly Rank[]): void {
  const all = [ranks].flat();
  for (const { sdk } of all.toReversed()) sdk.pollPendingKvPushes();
  for (const { sdk } of all) sdk.beginStep();
}

/** The `host` carrier: what the engine's own broadcast would do with what rank 0 drained. */
export function broadcast(ranks: readonly Rank[]): void {
  const records = ranks[0]!.sdk.drainHandoffCompletionNotifications();
  for (const { sdk } of ranks) for (const record of records) sdk.recordHandoffCompletionNotification(record);
}

/** What one rank's listeners heard of some events, in order. */
export function heard(rank: Rank, ...names: readonly EventName[]): readonly Notice[] {
  return rank.told.filter(({ name }) => names.includes(name));
}

/** Blocks of the pool that nothing references. */
export function unheldBlocks({ engine }: Rank): number {
  return engine.blocks.freeCount + engine.blocks.evictableCount;
}

/** The code of what `call` throws, or null when it returns. */
export function codeThrown(call: () => unknown): string | null {
  try {
    call();
    return null;
  } catch (error) {
    return (error as HandoffError).code ?? String(error);
  }
}

export async function codeRejected(promise: Promise<unknown>): Promise<string | null> {
  return promise.then(
    () => null,
    (error: HandoffError) => error.code ?? String(error),
  );
}
