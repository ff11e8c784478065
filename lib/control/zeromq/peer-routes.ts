/**
 * Between routing ids, which sockets see, and peers, which the core sees. Without CURVE the two are one. With it a peer is
 * who its routing id proves to be: a client's every connection is a peer of its own, an engine is its name, and the
 * connection that registered last is the one that speaks for it. What has no say is refused here.
 */
import { argumentError } from '../../errors.js';
import type { PeerId, Registration } from '../coordinator/interface.js';
import type { ToCoordinator } from '../protocol/messages.js';
import { mayReach, type AllowList, type CurveRole, type CurveServer } from './curve-peers.js';
import { claimedName, NameProofs, type ProvenName } from './proven-name.js';

/** Why a message goes no further. */
export interface Refusal {
  readonly name: string;
  /** Null where no name is proven. */
  readonly role: CurveRole | null;
  readonly reason: string;
}

/** A connection that has no say any more. */
export interface Revoked {
  readonly peer: PeerId;
  readonly routingId: string;
  readonly isEngine: boolean;
}

/** What another list changed. */
export interface Allowed {
  readonly revoked: readonly Revoked[];
  /** Clients whom a list before had revoked, that have a say again. */
  readonly restored: readonly PeerId[];
}

/** Proven ids that are remembered; others are proven anew at each message. */
const rememberedMax = 65_536;

export class PeerRoutes {
  private proofs: NameProofs | null;
  private readonly proven = new Map<string, ProvenName>();
  /** Engines only: which connection speaks for a name. */
  private readonly speaks = new Map<string, string>();
  /** Clients without a say: they can still be told what becomes of what they asked for. */
  private readonly parting = new Map<PeerId, string>();

  /** @throws `OPTION_INVALID` */
  constructor(private readonly curve: CurveServer | undefined) {
    this.proofs = curve === undefined ? null : new NameProofs(curve);
  }

  /** A name for the log, of a message that cannot be read. */
  shownName(routingId: string): string {
    return this.proofs === null ? routingId : claimedName(routingId);
  }

  /**
   * Who says this.
   *
   * @param refusalOf - why a registration would be refused; asked before one connection takes over from another
   * @returns the peer; or why nobody of that routing id can say it; `replaced` when it takes over from another connection
   */
  accept(
    routingId: string,
    message: ToCoordinator,
    refusalOf: (peer: PeerId, message: Registration) => string | null,
  ): { readonly peer: PeerId; readonly replaced: string | null } | Refusal {
    if (this.proofs === null) {
      if (isRegistration(message) && isAssigned(routingId))
        return { name: routingId, role: null, reason: 'an engine registers under an identity of its own' };
      return { peer: routingId, replaced: null };
    }
    const proven = this.prove(routingId);
    if (proven === null)
      return {
        name: claimedName(routingId),
        role: null,
        reason: 'the name is not proven by the key that it belongs to',
      };
    const { name, role, nonce } = proven;
    const { header } = message;
    if (!mayReach(role, header)) return { name, role, reason: `${header} is not for a peer of the role ${role}` };
    if (role !== 'engine') return { peer: `${name}.${nonce}`, replaced: null };
    const current = this.speaks.get(name) ?? null;
    if (current === routingId) return { peer: name, replaced: null };
    if (!isRegistration(message))
      return { name, role, reason: 'another connection has registered under this name, or none has' };
    const reason = current === null ? null : refusalOf(name, message);
    if (reason !== null) return { name, role, reason };
    this.speaks.set(name, routingId);
    return { peer: name, replaced: current };
  }

  /**
   * From now on this list counts. Whoever stands on it as before is not disturbed.
   *
   * @returns who was heard before and has no say any more, and who has one again
   * @throws `OPTION_INVALID`; then nothing has changed
   */
  allow(peers: AllowList): Allowed {
    if (this.curve === undefined) throw argumentError('curve', 'a coordinator with keys', null, 'OPTION_INVALID');
    const proofs = new NameProofs({ secretKey: this.curve.secretKey, peers });
    const revoked: Revoked[] = [];
    // What is no longer remembered proves nothing anew, and has no route.
    const known = new Set([...this.proven.keys(), ...this.speaks.values()]);
    for (const routingId of known) {
      const before = this.prove(routingId)!;
      if (proofs.check(routingId)?.role === before.role) continue;
      const { name, role, nonce } = before;
      this.proven.delete(routingId);
      const isEngine = role === 'engine';
      if (isEngine && this.speaks.get(name) !== routingId) continue;
      this.speaks.delete(name);
      const peer = isEngine ? name : `${name}.${nonce}`;
      revoked.push({ peer, routingId, isEngine });
      if (role === 'client') this.part(peer, routingId);
    }
    this.proofs = proofs;
    const restored = [...this.parting].flatMap(([peer, id]) => (proofs.check(id)?.role === 'client' ? [peer] : []));
    for (const peer of restored) this.parting.delete(peer);
    return { revoked, restored };
  }

  /** Where to send what is for a peer; null when no connection speaks for it. */
  routeOf(peer: PeerId): string | null {
    if (this.proofs === null) return peer;
    const parting = this.parting.get(peer);
    if (parting !== undefined) return parting;
    const [name = '', nonce] = peer.split('.', 2);
    return nonce === undefined ? (this.speaks.get(name) ?? null) : this.proofs.routingId(name, nonce);
  }

  private part(peer: PeerId, routingId: string): void {
    if (this.parting.size >= rememberedMax) this.parting.clear();
    this.parting.set(peer, routingId);
  }

  private prove(routingId: string): ProvenName | null {
    const known = this.proven.get(routingId);
    if (known !== undefined) return known;
    const proven = this.proofs!.check(routingId);
    if (proven === null) return null;
    if (this.proven.size >= rememberedMax) this.proven.clear();
    this.proven.set(routingId, proven);
    return proven;
  }
}

function isRegistration(message: ToCoordinator): message is Registration {
  return message.header === 'REGISTER' || message.header === 'REGISTER_ROLE';
}

/**
 * Whether the socket gave this routing id itself: to who brought none, and to a connection whose own id another one has taken
 * over, for what it had still to say. So an engine that came back would be registered twice, once where nobody is.
 */
function isAssigned(routingId: string): boolean {
  return routingId.startsWith('\0');
}
