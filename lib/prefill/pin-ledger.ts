/**
 * The prefill side's pins: who may still read which source blocks, and when they come back.
 *
 * The table is the code. A pin ends by a release, by attestation, or by its retention limit where a late reader would
 * notice; while a push of it is in flight it drains first.
 */
import type { Fence, RequestId } from '../engine-context.js';
import { HandoffError } from '../errors.js';
import { invariant } from '../invariant.js';
import type { BlockAllocator, SlotAllocator } from '../memory/allocators.js';

/**
 * - `pinned`: the source is not complete yet (its fence has not fired); the ticket must not be used.
 * - `offered`: the ticket may be used by anyone.
 * - `claimed`: one owner may use and release it.
 * - `draining`: released, but a push of it may still read the source.
 * - `released`: final.
 */
export type PinState = 'pinned' | 'offered' | 'claimed' | 'draining' | 'released';

export type PinEvent = 'ready' | 'claim' | 'pushStart' | 'pushSafe' | 'release' | 'expire';

export type PinEffect = 'returnMemory' | 'noticeReleased' | 'noticeReady';

interface PinTransition {
  readonly next: PinState;
  readonly effects: readonly PinEffect[];
}

const to = (next: PinState, ...effects: PinEffect[]): PinTransition => ({ next, effects });
const ends = to('released', 'returnMemory', 'noticeReleased');

/** With `pushing` true a release or expiry drains instead; `pinTransition` applies that one rule to this table. */
export const pinTable: Readonly<Record<PinState, Readonly<Partial<Record<PinEvent, PinTransition>>>>> = {
  pinned: {
    ready: to('offered', 'noticeReady'),
    release: ends,
    expire: ends,
    pushStart: to('pinned'),
    pushSafe: to('pinned'),
  },
  offered: { claim: to('claimed'), pushStart: to('offered'), pushSafe: to('offered'), release: ends, expire: ends },
  claimed: { claim: to('claimed'), pushStart: to('claimed'), pushSafe: to('claimed'), release: ends, expire: ends },
  draining: { release: to('draining'), expire: to('draining'), ready: to('draining'), pushSafe: ends },
  released: {},
};

/** @throws `INVARIANT` when the table has no such transition */
export function pinTransition(state: PinState, event: PinEvent, pushing: boolean): PinTransition {
  const transition = pinTable[state][event];
  invariant(transition !== undefined, `a pin in state ${state} cannot ${event}`, { state, event });
  if (pushing && transition === ends && event !== 'pushSafe') return to('draining');
  return transition;
}

export interface Pin {
  readonly handoffId: number;
  readonly requestId: RequestId;
  readonly blocks: Int32Array;
  readonly slot: number | null;
  readonly pinnedAt: number;
  /** Epoch of the weights that computed it. */
  readonly epoch: number;
  readonly ready: Fence | null;
  state: PinState;
  owner: string | null;
  /** A push of it was started and is not known to be over on all ranks. */
  pushing: boolean;
  /** Why it ends, kept until it has. */
  endReason: PinEndReason | null;
}

export type PinEndReason = 'released' | 'expired' | 'attested';

export interface PinLimits {
  readonly maxPinnedHandoffs: number;
  readonly maxPinnedBlocks: number;
}

export interface PinLedgerHooks {
  readonly released: (pin: Pin, reason: PinEndReason) => void;
  readonly ready: (pin: Pin) => void;
}

export class PinLedger {
  private readonly pins = new Map<number, Pin>();
  private readonly byRequest = new Map<RequestId, Pin>();
  private readonly permits = new Map<RequestId, number>();
  private readonly unready = new Set<Pin>();
  private readonly terminatedOwners = new Set<string>();
  private nextHandoffId = 1;
  private blockCount = 0;
  private permitBlockCount = 0;

  constructor(
    private readonly blocks: BlockAllocator,
    private readonly slots: SlotAllocator | null,
    private readonly limits: PinLimits,
    private readonly hooks: PinLedgerHooks,
  ) {}

  get size(): number {
    return this.pins.size;
  }

  get pinnedBlocks(): number {
    return this.blockCount;
  }

  get permitCount(): number {
    return this.permits.size;
  }

  /**
   * Takes a permit for a pin that `requestId` will need, before its prefill is scheduled. False: not now (a shortage
   * defers). Idempotent for one request.
   *
   * @throws `CAPACITY_NEVER_FITS` when the bound is smaller than the request
   */
  tryPermit(requestId: RequestId, blockCount: number): boolean {
    if (this.permits.has(requestId)) return true;
    if (blockCount > this.limits.maxPinnedBlocks || this.limits.maxPinnedHandoffs < 1) {
      throw new HandoffError(
        'CAPACITY_NEVER_FITS',
        `a handoff of ${blockCount} blocks can never be pinned because maxPinnedBlocks is ${this.limits.maxPinnedBlocks}`,
        { phase: 'prefill', details: { requestId, blockCount } },
      );
    }
    if (!this.hasRoom(blockCount)) return false;
    this.permits.set(requestId, blockCount);
    this.permitBlockCount += blockCount;
    return true;
  }

  /** Gives back a permit that was not used. Idempotent. */
  dropPermit(requestId: RequestId): boolean {
    const blockCount = this.permits.get(requestId);
    if (blockCount === undefined) return false;
    this.permits.delete(requestId);
    this.permitBlockCount -= blockCount;
    return true;
  }

  /**
   * Pins blocks (+1 reference each) and takes the slot over. Uses the request's permit, or takes one.
   *
   * @throws `DUPLICATE_REQUEST`, `PIN_LIMIT`; nothing is pinned then
   */
  pin(requestId: RequestId, blocks: Int32Array, slot: number | null, now: number, ready: Fence | null, epoch = 0): Pin {
    if (this.byRequest.has(requestId)) {
      throw new HandoffError(
        'DUPLICATE_REQUEST',
        `request ${String(requestId)} already has a pinned handoff; release that first`,
        {
          phase: 'prefill',
          details: { requestId },
        },
      );
    }
    this.dropPermit(requestId);
    if (!this.hasRoom(blocks.length)) {
      throw new HandoffError(
        'PIN_LIMIT',
        `${this.pins.size} handoffs with ${this.blockCount} blocks are pinned and ${this.permits.size} more are permitted; take a permit (tryPinPermit) before the prefill is scheduled`,
        { details: { requestId, blocks: blocks.length } },
      );
    }
    // Asked before anything is taken: it is the engine's method and may throw.
    const waiting = ready !== null && !ready.isComplete();
    this.blocks.retain(blocks);
    const pin: Pin = {
      handoffId: this.nextHandoffId,
      requestId,
      blocks: Int32Array.from(blocks),
      slot,
      pinnedAt: now,
      epoch,
      ready,
      state: waiting ? 'pinned' : 'offered',
      owner: null,
      pushing: false,
      endReason: null,
    };
    this.nextHandoffId += 1;
    this.pins.set(pin.handoffId, pin);
    this.byRequest.set(requestId, pin);
    this.blockCount += blocks.length;
    if (waiting) this.unready.add(pin);
    return pin;
  }

  get(handoffId: number): Pin | undefined {
    return this.pins.get(handoffId);
  }

  getByRequest(requestId: RequestId): Pin | undefined {
    return this.byRequest.get(requestId);
  }

  /** Oldest first. */
  all(): IterableIterator<Pin> {
    return this.pins.values();
  }

  /** Offers what became ready. */
  pollReady(): void {
    for (const pin of this.unready) {
      if (pin.ready?.isComplete() !== true) continue;
      this.unready.delete(pin);
      this.fire(pin, 'ready');
    }
  }

  /** First claim wins, the same owner again is fine, a terminated owner never. */
  claim(pin: Pin, owner: string): boolean {
    if (this.terminatedOwners.has(owner)) return false;
    if (pin.state === 'claimed') return pin.owner === owner;
    if (pin.state !== 'offered') return false;
    this.fire(pin, 'claim');
    pin.owner = owner;
    return true;
  }

  /** Fences `owner` for good and returns what it holds, oldest first. */
  terminateOwner(owner: string): readonly Pin[] {
    this.terminatedOwners.add(owner);
    return [...this.pins.values()].filter((pin) => pin.owner === owner);
  }

  isTerminated(owner: string): boolean {
    return this.terminatedOwners.has(owner);
  }

  pushStarted(pin: Pin): void {
    this.fire(pin, 'pushStart');
    pin.pushing = true;
  }

  /** All ranks' pushes of it are quiet. */
  pushSafe(pin: Pin): void {
    pin.pushing = false;
    this.fire(pin, 'pushSafe');
  }

  /** Ends a pin, or lets it drain first. Repeated calls are no-ops. */
  end(pin: Pin, reason: PinEndReason): void {
    pin.endReason ??= reason;
    this.fire(pin, reason === 'expired' ? 'expire' : 'release');
  }

  private hasRoom(blockCount: number): boolean {
    return (
      this.pins.size + this.permits.size + 1 <= this.limits.maxPinnedHandoffs &&
      this.blockCount + this.permitBlockCount + blockCount <= this.limits.maxPinnedBlocks
    );
  }

  private fire(pin: Pin, event: PinEvent): void {
    const { next, effects } = pinTransition(pin.state, event, pin.pushing);
    pin.state = next;
    for (const effect of effects) this.carryOut(effect, pin);
  }

  private carryOut(effect: PinEffect, pin: Pin): void {
    switch (effect) {
      case 'returnMemory':
        this.pins.delete(pin.handoffId);
        this.byRequest.delete(pin.requestId);
        this.unready.delete(pin);
        this.blockCount -= pin.blocks.length;
        this.blocks.release(pin.blocks);
        if (pin.slot !== null && this.slots !== null) this.slots.free(pin.slot);
        break;
      case 'noticeReleased':
        this.hooks.released(pin, pin.endReason ?? 'released');
        break;
      case 'noticeReady':
        this.hooks.ready(pin);
        break;
    }
  }
}
