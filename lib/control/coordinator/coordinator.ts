/**
 * The coordinator's core (spec 1.6-1.8): messages and time in, effects out. It knows who is a client and who an engine, takes
 * requests and control signals, and gives what engines say to their desk. What comes from a peer without a say in it is
 * logged and changes nothing.
 */
import { EngineChooser } from '../routing/engine-chooser.js';
import type {
  ControlSignal,
  SubmitRequest,
  SubmitRequestWithKv,
  ToClient,
  ToCoordinator,
  ToEngine,
} from '../protocol/messages.js';
import type { Wire } from '../protocol/wire-value.js';
import { coordinatorSignals, type CoordinatorState } from './control-signals.js';
import { settleOptions, type CoordinatorOptions, type SettledOptions } from './coordinator-options.js';
import { snapshotOf, statusMap } from './coordinator-snapshot.js';
import { EngineDesk } from './engine-desk.js';
import { EngineRegistry } from './engine-registry.js';
import { readSsm } from './handoff-body.js';
import { HeldPins } from './held-pins.js';
import type { CoordinatorCore, CoordinatorSnapshot, Effect, PeerId, Registration } from './interface.js';
import { OwnershipDesk } from './ownership-desk.js';
import { OwnershipLedger } from './ownership-ledger.js';
import { Outbox } from './outbox.js';
import { Placement } from './placement.js';
import { promptBytes } from './prompt-bytes.js';
import { RequestFlow } from './request-flow.js';
import { ClientRecord, RequestRecord } from './request-record.js';
import type { RequestTimingsSnapshot } from './request-timings.js';

type Of<H extends ToCoordinator['header']> = Extract<ToCoordinator, { readonly header: H }>;

/** What crossed an end or an abort on its way: nobody has done anything wrong. */
const ordinary: ReadonlySet<string> = new Set(['nobody waits for the delta', 'the request is not alive']);

/** Of one prompt; a million tokens in blocks of 16. Who sent millions would hold up all others while they are looked up. */
const hashesMax = 65_536;

const noHashes = new BigInt64Array(0);

export class Coordinator implements CoordinatorCore {
  readonly #options: SettledOptions;
  readonly #outbox = new Outbox();
  readonly #clients = new Map<PeerId, ClientRecord>();
  readonly #chooser: EngineChooser;
  readonly #placement: Placement;
  readonly #flow: RequestFlow;
  readonly #ledger = new OwnershipLedger();
  readonly #heldPins = new HeldPins();
  readonly #registry: EngineRegistry;
  readonly #desk: OwnershipDesk;
  readonly #engineDesk: EngineDesk;
  readonly #counters = { refused: 0, ignored: 0 };
  #state: CoordinatorState = 'RUNNING';
  #epoch: number | null = null;
  #isDraining = false;
  #nextId: number;

  /** @throws `OPTION_INVALID` */
  constructor(options: CoordinatorOptions) {
    this.#options = settleOptions(options);
    this.#nextId = this.#options.firstRequestId;
    this.#chooser = new EngineChooser(this.#options);
    this.#placement = new Placement(this.#options, this.#chooser);
    this.#flow = new RequestFlow(this.#options, this.#outbox, this.#chooser, this.#placement);
    const parts = {
      options: this.#options,
      outbox: this.#outbox,
      chooser: this.#chooser,
      placement: this.#placement,
      flow: this.#flow,
      ledger: this.#ledger,
      heldPins: this.#heldPins,
      isMinted: (id: number) => id >= this.#options.firstRequestId && id < this.#nextId,
    };
    this.#registry = new EngineRegistry(parts);
    this.#desk = new OwnershipDesk(parts, this.#registry);
    this.#engineDesk = new EngineDesk(parts, this.#registry, this.#desk);
  }

  receive(nowMs: number, peer: PeerId, message: ToCoordinator): readonly Effect[] {
    this.#flow.nowMs = nowMs;
    const ignored = this.#handle(peer, message);
    if (ignored !== null) {
      this.#counters.ignored++;
      const level = ordinary.has(ignored) ? 'debug' : 'warn';
      this.#outbox.log(level, 'message ignored', { peer, header: message.header, because: ignored });
    }
    this.#flow.drain();
    return this.#outbox.take();
  }

  tick(nowMs: number): readonly Effect[] {
    this.#flow.nowMs = nowMs;
    for (const request of this.#flow.timed.values()) {
      if (nowMs >= request.deadlineAt)
        this.#flow.raise(request, 'expire', { reason: `its time as ${request.state} is over` });
    }
    this.#flow.drain();
    return this.#outbox.take();
  }

  peerLost(nowMs: number, peer: PeerId): readonly Effect[] {
    this.#flow.nowMs = nowMs;
    this.#leave(peer, 'its connection is lost');
    this.#flow.drain();
    return this.#outbox.take();
  }

  dismiss(nowMs: number, peer: PeerId, reason: string): readonly Effect[] {
    this.#flow.nowMs = nowMs;
    const client = this.#clients.get(peer);
    this.#clients.delete(peer);
    for (const request of [...(client?.requests.values() ?? [])]) this.#flow.dismiss(request, reason);
    this.#leave(peer, reason);
    this.#flow.drain();
    return this.#outbox.take();
  }

  refusalOf(peer: PeerId, message: Registration): string | null {
    return this.#registry.refusalOf(peer, message);
  }

  clientsToProbe(): readonly PeerId[] {
    const isFull = this.#clients.size >= this.#options.limits.clientsMax;
    return [...this.#clients.values()].flatMap(({ peer, requests }) => (isFull || requests.size > 0 ? [peer] : []));
  }

  undelivered(
    nowMs: number,
    peer: PeerId,
    message: ToEngine | ToClient,
    reason: string | null = null,
  ): readonly Effect[] {
    this.#flow.nowMs = nowMs;
    if (reason !== null) return this.#notTaken(peer, message, reason);
    const isSubmit = message.header === 'SUBMIT_REQUEST' || message.header === 'SUBMIT_REQUEST_WITH_KV';
    const request = isSubmit ? this.#flow.requests.get(message.requestId) : undefined;
    if (isSubmit && (request?.state === 'running' || request?.state === 'reading'))
      this.#flow.keepPrompt(request, message);
    const engine = this.#placement.engines.get(peer);
    if (engine !== undefined) this.#registry.remove(engine, 'there is no route to it', request?.id ?? null);
    else if (request !== undefined && (request.decode ?? request.prefill)?.peer === peer)
      this.#flow.raise(request, 'undelivered');
    this.#leave(peer, 'there is no route to it');
    this.#flow.drain();
    return this.#outbox.take();
  }

  /** The engine stays: what it was sent before it will read, and what it says still counts. */
  #notTaken(peer: PeerId, message: ToEngine | ToClient, reason: string): readonly Effect[] {
    const request = 'requestId' in message ? this.#flow.requests.get(message.requestId) : undefined;
    if (request !== undefined && (request.decode ?? request.prefill)?.peer === peer) {
      const { state } = request;
      // Elsewhere it would be placed again: here, for all that is known.
      const event = state === 'prefill' || state === 'running' || state === 'reading' ? 'failSafe' : 'undelivered';
      this.#flow.raise(request, event, { reason });
    }
    this.#flow.drain();
    return this.#outbox.take();
  }

  drain(): void {
    this.#isDraining = true;
  }

  /** What an operator may ask, now. */
  snapshot(nowMs: number): CoordinatorSnapshot {
    return snapshotOf({
      nowMs,
      instance: this.#options.instance,
      state: this.#state,
      epoch: this.#epoch,
      clients: this.#clients.size,
      engines: this.#placement.engines.values(),
      expected: this.#options.engines,
      requests: this.#flow.requests.values(),
      ownership: this.#ledger.records.values(),
      heldPins: this.#heldPins.pins,
      affinityEntries: this.#chooser.affinity.size,
      promptBytes: this.#flow.promptBytes,
      counters: { ...this.#flow.counters, ...this.#registry.counters, ...this.#counters },
    });
  }

  /** How long requests took, since the start. */
  timings(): RequestTimingsSnapshot {
    return this.#flow.timings.snapshot();
  }

  /** @returns why the message changes nothing; null when it did what it is for */
  #handle(peer: PeerId, message: ToCoordinator): string | null {
    switch (message.header) {
      case 'CONNECT':
        return this.#connect(peer);
      case 'REGISTER':
        return this.#register(peer, () => this.#registry.registerPlain(peer));
      case 'REGISTER_ROLE':
        return this.#register(peer, () => this.#registry.register(peer, message));
      case 'DISCONNECT':
        return this.#leave(peer, 'it left') ? null : 'the peer is not known';
      case 'STATUS':
        this.#outbox.send(peer, { header: 'STATUS_REPLY', status: statusMap(this.snapshot(this.#flow.nowMs)) });
        return null;
      case 'SHUTDOWN':
        if (!this.#clients.has(peer)) return 'the sender is no connected client';
        this.#outbox.push({ kind: 'stop', reason: 'a client asked for it' });
        return null;
      case 'SUBMIT_REQUEST':
      case 'SUBMIT_REQUEST_WITH_KV':
      case 'ABORT_REQUEST':
      case 'RELEASE_KV':
      case 'CLAIM_KV':
      case 'RELEASE_KV_OWNER':
      case 'PAUSE':
      case 'UNPAUSE':
      case 'SUSPEND':
      case 'RESUME':
      case 'STOP':
      case 'SET_GENERATION_EPOCH':
      case 'START_CUDA_PROFILER':
      case 'STOP_CUDA_PROFILER': {
        const client = this.#clients.get(peer);
        return client === undefined ? 'the sender is no connected client' : this.#fromClient(client, message);
      }
      default: {
        const engine = this.#placement.engines.get(peer);
        engine?.silence.heard(message, this.#flow.nowMs);
        if (engine !== undefined) return this.#engineDesk.hear(engine, message);
        return this.#registry.wasRegistered(peer)
          ? this.#engineDesk.hearFormer(peer, message)
          : 'the sender is no registered engine';
      }
    }
  }

  #connect(peer: PeerId): string | null {
    if (this.#placement.engines.has(peer)) return 'the sender is an engine';
    const known = this.#clients.has(peer);
    if (known && this.#options.behaviour === 'gen-b') return 'the client is connected';
    if (!known && this.#clients.size >= this.#options.limits.clientsMax) return 'there are too many clients';
    if (!known) this.#clients.set(peer, new ClientRecord(peer));
    this.#outbox.send(peer, { header: 'CONNECT_ACK', instance: this.#options.instance });
    return null;
  }

  #register(peer: PeerId, register: () => void): string | null {
    if (this.#clients.has(peer)) return 'the sender is a client';
    register();
    return null;
  }

  #leave(peer: PeerId, reason: string): boolean {
    const engine = this.#placement.engines.get(peer);
    if (engine !== undefined) this.#registry.remove(engine, reason);
    const client = this.#clients.get(peer);
    if (client === undefined) return engine !== undefined;
    this.#clients.delete(peer);
    for (const request of client.requests.values()) {
      request.client = null;
      this.#flow.raise(request, 'abort');
    }
    return true;
  }

  #fromClient(client: ClientRecord, message: ClientMessage): string | null {
    switch (message.header) {
      case 'SUBMIT_REQUEST':
      case 'SUBMIT_REQUEST_WITH_KV':
        return this.#submit(client, message);
      case 'ABORT_REQUEST': {
        const request = client.requests.get(message.requestId);
        if (request === undefined) return 'the request is not alive';
        return this.#flow.raise(request, 'abort') ? null : `the request is ${request.state}`;
      }
      case 'RELEASE_KV':
        return this.#desk.release(client.peer, message);
      case 'CLAIM_KV':
        return this.#desk.claim(client.peer, message);
      case 'RELEASE_KV_OWNER':
        return this.#desk.releaseOwner(client.peer, message);
      default:
        return this.#signal(message);
    }
  }

  #submit(client: ClientRecord, message: SubmitRequest | SubmitRequestWithKv): string | null {
    const { requestId } = message;
    // The same id once more is the same request once more; a second answer would be one too many.
    if (client.requests.has(requestId) || client.hasEnded(requestId)) return 'the request was submitted before';
    const isPlain = message.header === 'SUBMIT_REQUEST';
    const ssm = isPlain || !this.#options.isDisaggregated ? false : readSsm(message.kvMeta);
    const bytes = promptBytes(message);
    const refusal = this.#refusal(client, message, bytes) ?? (typeof ssm === 'string' ? ssm : null);
    if (refusal !== null) {
      this.#counters.refused++;
      client.end(requestId);
      this.#outbox.send(client.peer, { header: 'REQUEST_ERROR', requestId, reason: refusal, sourceSafe: true });
      return null;
    }
    const hashes = this.#hashesOf(message);
    const state = isPlain ? (this.#options.isDisaggregated ? 'waitingPrefill' : 'running') : 'reading';
    const request = new RequestRecord(this.#nextId++, client, requestId, message, hashes, state, bytes);
    if (ssm === true) request.slots = 1;
    this.#flow.add(request);
    this.#flow.place(request);
    return null;
  }

  #refusal(
    client: ClientRecord,
    { header, sampling }: SubmitRequest | SubmitRequestWithKv,
    bytes: number,
  ): string | null {
    const { limits, isDisaggregated } = this.#options;
    if (this.#isDraining) return 'the coordinator is draining';
    if (client.requests.size >= limits.requestsPerClientMax) return 'this client has too many requests alive';
    if (this.#flow.requests.size >= limits.requestsMax) return 'too many requests are alive';
    if (this.#flow.promptBytes + bytes > limits.promptBytesMax)
      return 'the coordinator keeps as many bytes of prompts as it may';
    const wantsPromptLogProbs =
      isTrue(sampling.get('return_log_probs')) && !isTrue(sampling.get('skip_prompt_log_probs') ?? true);
    if (isDisaggregated && header === 'SUBMIT_REQUEST' && wantsPromptLogProbs)
      return 'prompt log probabilities are not supported by native disaggregation';
    return null;
  }

  #hashesOf(message: SubmitRequest | SubmitRequestWithKv): BigInt64Array {
    const said = message.header === 'SUBMIT_REQUEST' ? message.blockHashes : null;
    const hashes = said ?? (this.#chooser.usesPrefixes ? this.#options.hashPrompt(message.prompt) : null) ?? noHashes;
    return hashes.length <= hashesMax ? hashes : hashes.slice(0, hashesMax);
  }

  #signal(message: ControlSignal): string | null {
    if (message.header === 'SET_GENERATION_EPOCH') this.#epoch = message.epoch;
    else if (message.header !== 'START_CUDA_PROFILER' && message.header !== 'STOP_CUDA_PROFILER') {
      const next = coordinatorSignals[this.#state][message.header];
      if (next === undefined) return `the coordinator is ${this.#state}`;
      this.#state = next;
    }
    for (const peer of this.#placement.engines.keys()) this.#outbox.send(peer, message);
    // Engines that stopped are gone; new ones may join.
    if (this.#state === 'STOPPING') this.#state = 'RUNNING';
    return null;
  }
}

type ClientMessage =
  | Of<'SUBMIT_REQUEST' | 'SUBMIT_REQUEST_WITH_KV' | 'ABORT_REQUEST' | 'RELEASE_KV' | 'CLAIM_KV' | 'RELEASE_KV_OWNER'>
  | ControlSignal;

/** As the reference's language reads a value as a condition. */
function isTrue(value: Wire | undefined): boolean {
  return value === undefined || typeof value !== 'object' ? Boolean(value) : value !== null;
}
