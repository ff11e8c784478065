/**
 * Engines come, go and come back: registration with its checks, removal with what it means for every request routed
 * through the engine, and what a returning engine proves about handoffs of before (spec 1.6).
 */
import { HandoffError, isHandoffError } from '../../errors.js';
import type { EngineExtension, HeldHandoff, RegisterRole } from '../protocol/messages.js';
import { toldReason } from '../protocol/told-reason.js';
import type { EngineChooser } from '../routing/engine-chooser.js';
import type { SettledOptions } from './coordinator-options.js';
import { EngineRecord } from './engine-record.js';
import { checkExpected } from './expected-engines.js';
import type { HeldPins, HeldPin } from './held-pins.js';
import type { PeerId, Registration } from './interface.js';
import type { Outbox } from './outbox.js';
import type { OwnershipLedger } from './ownership-ledger.js';
import type { Placement } from './placement.js';
import { incompatible, readRegistration, type EngineCard } from './registration.js';
import { Remembered } from './remembered.js';
import type { RequestFlow } from './request-flow.js';
import type { RequestRecord } from './request-record.js';

export interface RegistryParts {
  readonly options: SettledOptions;
  readonly outbox: Outbox;
  readonly chooser: EngineChooser;
  readonly placement: Placement;
  readonly flow: RequestFlow;
  readonly ledger: OwnershipLedger;
  readonly heldPins: HeldPins;
  /** Whether this run of the coordinator minted an id. */
  readonly isMinted: (requestId: number) => boolean;
}

export class EngineRegistry {
  readonly counters = { enginesRegistered: 0, enginesRejected: 0, enginesRemoved: 0 };
  /** Of the first engine; all must agree while any is registered. */
  #signature: string | null = null;
  #transport: string | null = null;
  /** Identities that were registered: their late replies are no breach of the protocol. */
  readonly #known = new Remembered<PeerId>();

  constructor(private readonly parts: RegistryParts) {}

  wasRegistered(peer: PeerId): boolean {
    return this.#known.has(peer);
  }

  /** Why a registration would be refused; null when it would not. Changes nothing. */
  refusalOf(peer: PeerId, message: Registration): string | null {
    const before = this.parts.placement.engines.get(peer) ?? null;
    try {
      if (message.header === 'REGISTER') this.#checkPlain(peer);
      else this.#check(peer, message, before);
      return null;
    } catch (error) {
      if (!isHandoffError(error)) throw error;
      return error.message;
    }
  }

  /** An engine without a role (the empty frame). What it was before ends, whether it is accepted or not. */
  registerPlain(peer: PeerId): void {
    const { options, placement } = this.parts;
    const before = placement.engines.get(peer);
    if (before !== undefined) this.remove(before, 'it registered again');
    try {
      this.#checkPlain(peer);
      this.#rebindOwnership(this.#join(peer, null, options.engineRequestsMax));
    } catch (error) {
      this.#reject(peer, error);
    }
  }

  /** What it was before ends, whether it is accepted or not: who says it is another engine now is not that one. */
  register(peer: PeerId, message: RegisterRole): void {
    const { placement, outbox } = this.parts;
    const before = placement.engines.get(peer);
    if (before !== undefined) this.remove(before, 'it registered again');
    try {
      const card = this.#check(peer, message, before ?? null);
      const engine = this.#join(peer, card, card.requestCapacity);
      this.#signature = card.signature;
      this.#transport ??= message.transport;
      outbox.send(peer, { header: 'REGISTER_ROLE_ACK' });
      this.#reconcile(engine);
    } catch (error) {
      this.#reject(peer, error);
    }
  }

  /** @param undelivered - the request whose message this engine never got */
  remove(engine: EngineRecord, reason: string, undelivered: number | null = null): void {
    const { options, placement, outbox, flow, heldPins } = this.parts;
    placement.remove(engine);
    this.counters.enginesRemoved++;
    if (placement.engines.size === 0) this.#signature = this.#transport = null;
    heldPins.drop(engine);
    outbox.log('warn', 'engine removed', { peer: engine.peer, reason, requests: engine.requests.size });
    for (const request of engine.requests.values()) {
      const lost = request.decode === engine ? 'decodeLost' : 'prefillLost';
      const content = { reason: `its ${engine.role} engine is gone: ${reason}` };
      if (request.id !== undelivered || !flow.raise(request, 'undelivered', content))
        flow.raise(request, lost, content);
      // Only the source itself touches what it sends: that its target is gone leaves nothing to prove.
      if (request.isPushed && request.decode === engine && options.behaviour === 'gen-c') flow.raise(request, 'proven');
      this.#endWithoutSource(request);
    }
  }

  /** The engine no longer reads, or never will write, what it held before it registered. */
  settleHeld(engine: EngineRecord, requestId: number): boolean {
    const held = engine.held.get(requestId);
    if (held === undefined) return false;
    engine.held.delete(requestId);
    engine.readBefore.set(requestId, held);
    this.#settlePins();
    return true;
  }

  /**
   * Every process of `owner` is dead: nothing reads what it read. Not believed of an engine that is registered.
   *
   * @returns false when it is not believed
   */
  attest(owner: string): boolean {
    const { placement, flow, heldPins } = this.parts;
    for (const engine of placement.engines.values()) if (engine.owner === owner) return false;
    for (const request of flow.requests.values()) {
      if (request.decode?.owner === owner) flow.raise(request, 'proven');
      else if (request.prefill?.owner === owner) flow.raise(request, 'sourceGone');
    }
    this.#release(heldPins.attest(owner));
    return true;
  }

  #checkPlain(peer: PeerId): void {
    const { options } = this.parts;
    if (options.isDisaggregated) throw refusal('this coordinator takes engines with a role only');
    checkExpected(options.engines, peer, null);
  }

  /** @param before - its earlier registration, whether it still stands or not */
  #check(peer: PeerId, message: RegisterRole, before: EngineRecord | null): EngineCard {
    const { options } = this.parts;
    if (!options.isDisaggregated) throw refusal('this coordinator takes engines without a role only');
    const card = readRegistration(message);
    checkExpected(options.engines, peer, card);
    this.#checkFleet(card, before);
    this.#checkProcess(peer, card.extension);
    return card;
  }

  #checkFleet(card: EngineCard, before: EngineRecord | null): void {
    if (before !== null && before.role !== card.role)
      throw refusal(`an engine may not change its role: expected ${before.role}, got ${card.role}`);
    if (before !== null && before.card!.transports[0] !== card.transports[0])
      throw refusal(
        `an engine may not change its transport: expected ${before.card!.transports[0]}, got ${card.transports[0]}`,
      );
    // Alone, it may come back as an engine of another model.
    const others = this.parts.placement.engines.size - (before?.isRegistered === true ? 1 : 0);
    if (others === 0) return;
    if (this.parts.options.oneTransport && this.#transport !== null && !card.transports.includes(this.#transport))
      throw refusal('prefill and decode engines must use the same state transport');
    if (this.#signature !== null && card.signature !== this.#signature)
      throw incompatible(`expected ${this.#signature}, got ${card.signature}`);
  }

  /** Two names for one process: the second could say of the first what it reads no more. */
  #checkProcess(name: PeerId, extension: EngineExtension | null): void {
    if (extension === null) return;
    for (const { extension: other, peer } of this.parts.placement.engines.values())
      if (peer !== name && other?.instance === extension.instance && other.incarnation === extension.incarnation)
        throw refusal(`this process is registered as ${peer}: one has one name`);
  }

  #join(peer: PeerId, card: EngineCard | null, requestCapacity: number): EngineRecord {
    const { chooser, placement, outbox } = this.parts;
    const column = chooser.affinity.join();
    if (column === null) throw refusal('this coordinator has as many engines as it can take');
    const engine = new EngineRecord(peer, card, column, requestCapacity, this.parts.flow.nowMs);
    placement.add(engine);
    this.#known.add(peer);
    this.counters.enginesRegistered++;
    outbox.log('info', 'engine registered', { peer, role: engine.role, owner: engine.owner, requestCapacity });
    return engine;
  }

  #reject(peer: PeerId, error: unknown): void {
    if (!isHandoffError(error)) throw error;
    this.counters.enginesRejected++;
    this.parts.outbox.log('error', 'registration rejected', { peer, reason: error.message });
    this.parts.outbox.send(peer, { header: 'REGISTRATION_ERROR', reason: toldReason(error.message) });
  }

  /** What an engine's return says about the requests that its loss left in doubt. */
  #reconcile(engine: EngineRecord): void {
    const { flow } = this.parts;
    for (const request of flow.requests.values()) {
      const { prefill, decode } = request;
      if (prefill !== null && prefill !== engine && prefill.peer === engine.peer)
        this.#reconcileSource(request, engine);
      if (decode !== null && decode !== engine && decode.peer === engine.peer && decode.isSameProcess(engine))
        this.#reconcileReader(request, engine);
    }
    this.#rebindOwnership(engine);
    for (const held of [...engine.held.values()]) this.#reconcileHeld(engine, held);
    this.#settlePins();
  }

  #rebindOwnership(engine: EngineRecord): void {
    const { ledger } = this.parts;
    for (const { engine: source } of [...ledger.records.values()]) {
      if (source === engine || source.peer !== engine.peer) continue;
      // One that does not say which process it is gets the benefit of the doubt: a release it does not know is nothing.
      if (engine.extension === null || source.isSameProcess(engine)) ledger.rebind(source, engine);
      else ledger.drop(source);
    }
  }

  #reconcileSource(request: RequestRecord, engine: EngineRecord): void {
    const { flow } = this.parts;
    if (!request.prefill!.isSameProcess(engine) || !engine.held.has(request.id)) {
      request.isPinned = false;
      this.#endWithoutSource(request);
      return;
    }
    // Without a reader there is nothing to wait for.
    if (request.decode === null) flow.raise(request, 'proven');
  }

  /** Nothing is left to guard once the source's memory is gone and no reader takes up room. */
  #endWithoutSource(request: RequestRecord): void {
    if (!request.isPinned && !request.holdsDecode) this.parts.flow.raise(request, 'sourceGone');
  }

  #reconcileReader(request: RequestRecord, engine: EngineRecord): void {
    const { flow, outbox } = this.parts;
    if (!engine.held.has(request.id)) {
      flow.raise(request, 'proven');
      return;
    }
    request.decode = engine;
    engine.requests.set(request.id, request);
    engine.held.delete(request.id);
    // Its client was told that it failed.
    outbox.send(engine.peer, { header: 'ABORT_REQUEST', requestId: request.id });
  }

  #reconcileHeld(engine: EngineRecord, held: HeldHandoff): void {
    const { flow, outbox, ledger, heldPins, isMinted } = this.parts;
    const { requestId } = held;
    const request = flow.requests.get(requestId);
    // A pin whose request goes on without it was released, too.
    const isReleased = held.state === 'pinned' && request?.isPinned === false;
    if ((request !== undefined && !isReleased) || ledger.records.has(requestId)) return;
    if (held.state !== 'pinned') {
      // Whoever asked for it is gone; what may still be written is the engine's to wait for.
      if (held.state === 'importing') outbox.send(engine.peer, { header: 'ABORT_REQUEST', requestId });
    } else if (isMinted(requestId)) {
      // It was released here; the message was lost with the connection.
      engine.held.delete(requestId);
      outbox.send(engine.peer, { header: 'RELEASE_KV', requestId, instance: null });
    } else {
      const owner = held.peerInstance === null ? null : `${held.peerInstance}/${held.peerIncarnation ?? ''}`;
      heldPins.add({ requestId, engine, owner, since: flow.nowMs - held.ageMs });
    }
  }

  #settlePins(): void {
    this.#release(this.parts.heldPins.settle(this.parts.placement.engines.values()));
  }

  #release(pins: readonly HeldPin[]): void {
    for (const { engine, requestId } of pins) {
      engine.held.delete(requestId);
      this.parts.outbox.log('info', 'held pin released', { peer: engine.peer, request: requestId });
      this.parts.outbox.send(engine.peer, { header: 'RELEASE_KV', requestId, instance: null });
    }
  }
}

function refusal(reason: string): HandoffError {
  return new HandoffError('INCOMPATIBLE', reason);
}
