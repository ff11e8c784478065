/**
 * The turns of one rank of an engine: what came in, the handoff SDK's calls in their places, one step. All ranks of an
 * instance take the same turns with the same input, so their schedulers and pools stay equal; the leader says what the
 * input is. Instances that share experts take their turns together, and stop together.
 */
import {
  decodeTicket,
  type Finished,
  type HandoffRef,
  type LogRecord,
  type RequestId,
  type SamplingParams,
  type StateHandoff,
  type Ticket,
} from 'state-handoff';
import { badInput } from './bad-input.js';
import { consensus } from './collectives.js';
import type { Engine } from './engine.js';
import type { FinishedPrefill } from './finished-prefills.js';
import type { PromptRequest } from './intake.js';
import { receive, type Peers, type Steps } from './peers.js';
import type { RankPlace } from './rank-place.js';

/** A request that another engine prefilled. */
export interface Handoff {
  readonly requestId: RequestId;
  readonly prompt: readonly number[];
  readonly samplingParams: SamplingParams;
  /** As `encodeTicket` made it. */
  readonly ticket: string;
}

/** What the leader tells the other ranks of its instance at the start of a turn. */
interface Turn {
  readonly prompts: readonly { requestId: RequestId; prompt: number[]; samplingParams: SamplingParams }[];
  readonly aborts: readonly RequestId[];
  /** With the `host` carrier: handoffs to take over, releases, and what the SDK's rank 0 has for all ranks. */
  readonly handoffs: readonly Handoff[];
  readonly releases: readonly HandoffRef[];
  readonly notifications: readonly LogRecord[];
  /** Nothing more will come to this instance. */
  readonly isEnding: boolean;
}

export interface TurnOutcome {
  /** Prompt and other tokens that ran through this rank. */
  readonly tokens: number;
  /** Whether some instance has something to compute; if none has, the next turn can wait for input. */
  readonly isBusy: boolean;
  /** Every instance was told to end and has nothing left to compute: there is no next turn. */
  readonly hasEnded: boolean;
}

export interface RankLoopOptions {
  readonly engine: Engine;
  /** Null for an engine that computes its prompts to their ends. */
  readonly handoff: StateHandoff | null;
  readonly place: RankPlace;
  readonly peers: Peers;
  /**
   * What brings the SDK's log to all ranks: its own group (default), or these turns. The same as in `setupKvTransfer`;
   * this engine needs no group but for that and for reports.
   */
  readonly carrier?: 'group' | 'host';
  /** At the beginning of each turn, before the SDK is polled: what a control plane has sent can be taken here. */
  readonly onTurn?: () => void;
  /** Leader of a prefill instance: the state of a prompt is in place and pinned. */
  readonly onTicket?: (finished: FinishedPrefill, ticket: Ticket) => void;
  /** After each part of a turn in which something may have moved. */
  readonly onMoment?: (moment: 'polled' | 'scheduled' | 'stepped') => void;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export class RankLoop {
  private readonly prompts: PromptRequest[] = [];
  /** The prompts and handoffs of this turn. */
  private given: readonly PromptRequest[] = [];
  private taken: readonly Handoff[] = [];
  private readonly aborts: RequestId[] = [];
  private readonly handoffs: Handoff[] = [];
  private readonly releases: HandoffRef[] = [];
  private readonly notifications: LogRecord[] = [];
  private isEnding = false;
  /** Since the last turn began. */
  private isWoken = false;
  /** Callers of `submit` and `takeOver`, whose requests wait for the next turn. */
  private readonly callers = new Map<PromptRequest | Handoff, (result: Promise<Finished>) => void>();
  private readonly others: readonly number[];
  /** The ranks in this rank's place in every instance. */
  private readonly counterparts: readonly number[];

  constructor(private readonly options: RankLoopOptions) {
    const { place, peers } = options;
    if (peers.size !== place.worldSize) throw badInput('peers.size', String(place.worldSize), peers.size);
    this.others = place.instanceRanks.filter((rank) => rank !== peers.rank);
    this.counterparts = place.leaders.map((leader) => leader + place.instanceRank);
  }

  /** Leader. Queues a prompt on all ranks; see `Engine.addRequest`. */
  submit(request: PromptRequest): Promise<Finished> {
    this.prompts.push(request);
    this.wake();
    return new Promise((resolve) => this.callers.set(request, resolve));
  }

  /** Leader of a decode instance. Takes a handoff over on all ranks; see `StateHandoff.addRequestWithKvHandoff`. */
  takeOver(request: Handoff): Promise<Finished> {
    this.wake();
    if (!this.carriesLog) return this.add(request);
    this.handoffs.push(request);
    return new Promise((resolve) => this.callers.set(request, resolve));
  }

  /** Leader of a prefill instance. Nobody reads that pin any more. */
  release(handoff: HandoffRef): void {
    this.wake();
    if (this.carriesLog) this.releases.push(handoff);
    else this.options.handoff!.releaseHandoffBlocks(handoff);
  }

  /** Leader. Aborts a request of `submit` on all ranks. */
  abort(requestId: RequestId): void {
    this.aborts.push(requestId);
    this.wake();
  }

  /** Leader. Turns go on until nothing is left to compute here or where this instance's experts are needed. */
  end(): void {
    this.isEnding = true;
    this.wake();
  }

  /** Leader. Something happened outside of a turn that a turn must carry: a release, an arrival, a call of the SDK. */
  wake(): void {
    this.isWoken = true;
  }

  /** Leader, between turns. Whether there is something for the next one; another instance may have begun it already. */
  get hasInput(): boolean {
    const { engine, handoff, peers } = this.options;
    const hasRecords = this.notifications.length > 0;
    return this.isWoken || hasRecords || peers.hasMail || engine.hasWork || handoff?.hasAdmittableKvImport === true;
  }

  private get carriesLog(): boolean {
    return this.options.carrier === 'host';
  }

  /** One turn. Ranks of an instance, and instances that share experts, wait for each other in it. */
  *turn(): Steps<TurnOutcome> {
    const { engine, handoff, place, peers, onMoment } = this.options;
    this.isWoken = false;
    this.options.onTurn?.();
    const turn = place.isLeader ? this.lead() : yield* this.follow();
    if (engine.role === 'decode') handoff?.pollPendingKvImports();
    else handoff?.pollPendingKvPushes();
    if (this.carriesLog && place.isLeader) this.notifications.push(...handoff!.drainHandoffCompletionNotifications());
    onMoment?.('polled');
    this.apply(turn);
    while (handoff !== null && !handoff.stepReady) yield;
    if (engine.role === 'decode') handoff?.scheduleWaitingRequests(engine.waitingCount);
    else handoff?.beginStep();
    onMoment?.('scheduled');
    const goesOn = !turn.isEnding || (handoff?.pendingKvImportCount ?? 0) > 0;
    const own = [Number(engine.hasWork), Number(goesOn)];
    const [works, someGoOn] = place.sharesExperts ? yield* consensus(peers, this.counterparts, own) : own;
    const tokens = yield* engine.stepping(place.sharesExperts && works === 1);
    if (handoff !== null && engine.role !== 'decode') this.handOff(handoff);
    engine.cleanupFinished();
    onMoment?.('stepped');
    return { tokens, isBusy: works === 1, hasEnded: works === 0 && someGoOn === 0 };
  }

  private lead(): Turn {
    const { peers } = this.options;
    this.given = this.prompts.splice(0);
    const prompts = this.given.map(({ requestId, prompt, samplingParams }) => ({
      requestId,
      prompt: Array.from(prompt),
      samplingParams: samplingParams ?? {},
    }));
    this.taken = this.handoffs.splice(0);
    const turn: Turn = {
      prompts,
      aborts: this.aborts.splice(0),
      handoffs: this.taken,
      releases: this.releases.splice(0),
      notifications: this.notifications.splice(0),
      isEnding: this.isEnding,
    };
    for (const rank of this.others) peers.send(rank, encoder.encode(JSON.stringify(turn)));
    return turn;
  }

  private *follow(): Steps<Turn> {
    const bytes = yield* receive(this.options.peers, this.options.place.instanceRanks[0]!);
    return JSON.parse(decoder.decode(bytes)) as Turn;
  }

  private apply({ prompts, aborts, handoffs, releases, notifications }: Turn): void {
    const { engine, handoff } = this.options;
    for (const record of notifications) handoff!.recordHandoffCompletionNotification(record);
    for (const released of releases) handoff!.releaseHandoffBlocks(released);
    for (const [index, request] of handoffs.entries()) this.answer(this.taken[index], this.add(request));
    for (const [index, request] of prompts.entries()) this.answer(this.given[index], engine.addRequest(request));
    for (const requestId of aborts) engine.abort(requestId);
  }

  /** Rejects for a ticket that is none, on all ranks alike. */
  private async add({ requestId, prompt, samplingParams, ticket }: Handoff): Promise<Finished> {
    const { kvMeta, blockIds } = decodeTicket(ticket);
    return this.options.handoff!.addRequestWithKvHandoff(requestId, prompt, samplingParams, kvMeta, blockIds);
  }

  /** The leader's caller hears of it; the other ranks come to the same end. */
  private answer(request: PromptRequest | Handoff | undefined, result: Promise<Finished>): void {
    if (request === undefined) return void result.catch(() => undefined);
    this.callers.get(request)?.(result);
    this.callers.delete(request);
  }

  private handOff(handoff: StateHandoff): void {
    const { engine, place, onTicket } = this.options;
    const finished = engine.takeFinishedPrefills();
    if (finished.length === 0) return;
    const prepared = handoff.prepareHandoffMetadataBatch(
      finished.map((each) => ({
        ...each,
        promptTokens: each.prompt.length,
        doKvHandoff: true,
        returnLogProbs: each.resumeLogProbs !== null,
      })),
    );
    for (const each of finished) {
      const ticket = handoff.captureHandoffMeta(each, prepared, { ready: each.ready });
      if (place.isLeader) onTicket?.(each, ticket);
    }
  }
}
