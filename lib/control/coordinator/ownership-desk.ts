/**
 * The ownership protocol (spec 1.7): offers by sources, claims and releases by outside routers, with their fences and
 * acknowledgements. What the coordinator hands over itself is never released from outside.
 */
import type { ToCoordinator } from '../protocol/messages.js';
import type { SettledOptions } from './coordinator-options.js';
import type { EngineRecord } from './engine-record.js';
import type { EngineRegistry, RegistryParts } from './engine-registry.js';
import type { PeerId } from './interface.js';

type Of<H extends ToCoordinator['header']> = Extract<ToCoordinator, { readonly header: H }>;

export class OwnershipDesk {
  readonly #options: SettledOptions;

  constructor(
    private readonly parts: RegistryParts,
    private readonly registry: EngineRegistry,
  ) {
    this.#options = parts.options;
  }

  /** A source says that it will publish a handle. @returns why that means nothing here; else null */
  offer(engine: EngineRecord, requestId: number): string | null {
    const { flow, ledger } = this.parts;
    const request = flow.requests.get(requestId);
    // A handoff that goes to one of our own decode engines is nobody else's.
    if ((request?.prefill ?? null) !== null)
      return request!.prefill === engine ? null : 'the request is not at the sender';
    if (request?.decode !== engine) return 'the request is not at the sender';
    return ledger.offer(requestId, engine, flow.nowMs) ? null : 'it was offered before';
  }

  claim(peer: PeerId, { requestId, instance, owner }: Of<'CLAIM_KV'>): string | null {
    const { ledger, placement, outbox } = this.parts;
    const granted = instance === this.#options.instance && ledger.claim(requestId, owner);
    outbox.send(peer, { header: 'CLAIM_KV_ACK', requestId, instance, granted });
    const record = granted ? ledger.records.get(requestId) : undefined;
    const engine = record === undefined ? null : placement.current(record.engine);
    if (engine !== null && engine.extension !== null)
      outbox.send(engine.peer, { header: 'CLAIM_KV', requestId, instance, owner });
    return null;
  }

  /** Acknowledged when fenced; without an engine that could be told there is no answer, so that the caller asks again. */
  release(peer: PeerId, { requestId, instance }: Of<'RELEASE_KV'>): string | null {
    const { flow, ledger, placement, heldPins, outbox } = this.parts;
    if (instance !== null && instance !== this.#options.instance) return 'another coordinator minted the id';
    if (heldPins.has(requestId)) return 'what an earlier run handed over needs its reader, or an attestation';
    const record = ledger.records.get(requestId);
    if (record === undefined && flow.requests.has(requestId)) return 'the coordinator hands it over itself';
    if (record !== undefined) {
      const engine = placement.current(record.engine);
      if (engine === null) return 'its engine is not here';
      ledger.release(requestId);
      outbox.send(engine.peer, { header: 'RELEASE_KV', requestId, instance: null });
    } else if (!ledger.wasReleased(requestId)) {
      // Its engine never offered it: any may have it, and to the others the id means nothing.
      for (const engine of placement.engines.values()) {
        if (engine.role !== 'decode') outbox.send(engine.peer, { header: 'RELEASE_KV', requestId, instance: null });
      }
    }
    if (instance !== null) outbox.send(peer, { header: 'RELEASE_KV_ACK', requestId, instance });
    return null;
  }

  /** The sender vouches that every process of the owner has exited and cannot come back. */
  releaseOwner(peer: PeerId, { instance, owner }: Of<'RELEASE_KV_OWNER'>): string | null {
    const { ledger, placement, outbox } = this.parts;
    if (owner === '') return 'the owner has no name';
    if (instance !== this.#options.instance) return 'the attestation is for another coordinator';
    if (!this.registry.attest(owner)) return 'the owner is a registered engine';
    let isComplete = true;
    for (const { requestId, engine } of ledger.terminate(owner)) {
      const current = placement.current(engine);
      if (current === null) isComplete = false;
      else {
        ledger.release(requestId);
        outbox.send(current.peer, { header: 'RELEASE_KV', requestId, instance: null });
      }
    }
    if (!isComplete) return 'an engine that holds some of it is not here';
    outbox.send(peer, { header: 'RELEASE_KV_OWNER_ACK', instance, owner });
    return null;
  }

  /**
   * A prefill that nobody waits for any more: its pin has no reader if this run minted the id, or if the pin is younger
   * than the engine's registration, so that no earlier run can have passed it on.
   */
  disown(engine: EngineRecord, requestId: number): void {
    const { ledger, outbox, isMinted } = this.parts;
    if (ledger.records.has(requestId) || (!isMinted(requestId) && engine.held.has(requestId))) return;
    outbox.send(engine.peer, { header: 'RELEASE_KV', requestId, instance: null });
  }
}
