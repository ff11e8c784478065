/**
 * The smallest thing with a core's interface: passes requests of clients to the one engine and replies back, and keeps a
 * record of what it was told. For tests of what carries a core's messages.
 */
import type { CoordinatorCore, CoordinatorSnapshot, Effect, PeerId } from '../../lib/control/coordinator/interface.js';
import type { ToClient, ToCoordinator, ToEngine } from '../../lib/control/protocol/messages.js';

export class RelayCore implements CoordinatorCore {
  readonly heard: { peer: PeerId; message: ToCoordinator }[] = [];
  readonly lost: PeerId[] = [];
  readonly undeliverable: { peer: PeerId; message: ToEngine | ToClient }[] = [];
  engine: PeerId | null = null;
  private readonly clients = new Map<number, { peer: PeerId; requestId: number }>();
  private nextId = 0;
  ticks = 0;
  private isDraining = false;

  drain(): void {
    this.isDraining = true;
  }

  receive(_nowMs: number, peer: PeerId, message: ToCoordinator): readonly Effect[] {
    this.heard.push({ peer, message });
    const send = (to: PeerId, what: ToEngine | ToClient): Effect => ({ kind: 'send', peer: to, message: what });
    switch (message.header) {
      case 'CONNECT':
        return [send(peer, { header: 'CONNECT_ACK', instance: 'relay' })];
      case 'REGISTER_ROLE':
        this.engine = peer;
        return [send(peer, { header: 'REGISTER_ROLE_ACK' })];
      case 'SUBMIT_REQUEST': {
        if (this.isDraining) {
          const reason = 'the coordinator is draining';
          return [send(peer, { header: 'REQUEST_ERROR', requestId: message.requestId, reason, sourceSafe: true })];
        }
        if (this.engine === null) return [];
        const requestId = this.nextId++;
        this.clients.set(requestId, { peer, requestId: message.requestId });
        return [send(this.engine, { ...message, requestId, blockHashes: null })];
      }
      case 'ENGINE_REPLY':
        return message.replies.flatMap(({ requestId, body }) => {
          const client = this.clients.get(requestId);
          this.clients.delete(requestId);
          return client === undefined
            ? []
            : [send(client.peer, { header: 'ENGINE_REPLY', requestId: client.requestId, body })];
        });
      case 'ENGINE_REPLY_PARTIAL':
        return message.partials.flatMap(({ requestId, body }) => {
          const client = this.clients.get(requestId);
          return client === undefined
            ? []
            : [send(client.peer, { header: 'ENGINE_REPLY_PARTIAL', requestId: client.requestId, body })];
        });
      case 'ABORT_REQUEST':
        for (const [requestId, client] of this.clients) {
          if (client.peer === peer && client.requestId === message.requestId) this.clients.delete(requestId);
        }
        return [];
      case 'STATUS':
        return [
          send(peer, { header: 'STATUS_REPLY', status: new Map([['engines', [new Map([['peer', this.engine]])]]]) }),
        ];
      case 'SHUTDOWN':
        return [{ kind: 'stop', reason: 'a client asked for it' }];
      default:
        return [];
    }
  }

  tick(): readonly Effect[] {
    this.ticks++;
    return [];
  }

  peerLost(_nowMs: number, peer: PeerId): readonly Effect[] {
    this.lost.push(peer);
    if (this.engine === peer) this.engine = null;
    return [{ kind: 'log', level: 'info', event: 'peer lost', fields: { peer } }];
  }

  dismiss(nowMs: number, peer: PeerId): readonly Effect[] {
    return this.peerLost(nowMs, peer);
  }

  refusalOf(): string | null {
    return null;
  }

  clientsToProbe(): readonly PeerId[] {
    return [...new Set(Array.from(this.clients.values(), ({ peer }) => peer))];
  }

  undelivered(_nowMs: number, peer: PeerId, message: ToEngine | ToClient): readonly Effect[] {
    this.undeliverable.push({ peer, message });
    return [];
  }

  snapshot(): CoordinatorSnapshot {
    return {
      instance: 'relay',
      state: 'RUNNING',
      epoch: null,
      clients: 0,
      engines: [],
      missing: [],
      requests: { queuedPrefill: 0, prefill: 0, queuedDecode: 0, decode: this.clients.size, terminating: 0 },
      pins: [],
      affinityEntries: 0,
      promptBytes: 0,
      counters: {},
    };
  }
}
