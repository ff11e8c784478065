/**
 * The world that scripted transports share: who exists, what goes wrong, and simulated time.
 *
 * Everything is deterministic: plans are drawn from the script in the order in which transfers and connections begin,
 * and bytes move in the order of the clock's timers.
 */
import { argumentError } from '../errors.js';
import { ScriptedTransfer, type TransferSide } from './scripted-transfer.js';
import type { ScriptedTransport } from './scripted-transport.js';
import { SimulatedClock } from './simulated-clock.js';
import {
  faultKinds,
  smoothConnect,
  smoothTransfer,
  type ConnectPlan,
  type NetworkScript,
  type TransferFault,
  type TransferPlan,
} from './transfer-script.js';

/** Tells which transfers a planned fault is for. */
export type TransferMatch = (source: ScriptedTransport, target: ScriptedTransport, tag: string) => boolean;

interface PlannedTransfer {
  readonly plan: Partial<TransferPlan>;
  readonly matches: TransferMatch;
}

/** Owns the scripted transports of one simulated world. */
export class ScriptedNetwork {
  readonly clock: SimulatedClock;
  /** Decides every plan that was not set by `planNext` or `planNextConnect`; null: all goes well at once. */
  script: NetworkScript | null;
  /**
   * Called for each range just before it is written: by which transfer, into whose region. Lets a simulation check
   * that the memory still belongs to that handoff.
   */
  onWrite:
    | ((
        target: ScriptedTransport,
        region: number,
        offset: number,
        length: number,
        tag: string,
        transfer: ScriptedTransfer,
      ) => void)
    | null = null;
  /** Called for each range just before it is read from its source. */
  onRead:
    | ((source: ScriptedTransport, region: number, offset: number, length: number, transfer: ScriptedTransfer) => void)
    | null = null;
  /** Called when the target's side of a transfer has begun, before its first byte. */
  onBegin: ((transfer: ScriptedTransfer) => void) | null = null;
  /** Called once a transfer can touch the target's memory no more, as far as anybody can prove. */
  onQuiet: ((transfer: ScriptedTransfer) => void) | null = null;
  /** Transfers that are not quiet, in order of beginning. */
  readonly transfers = new Set<ScriptedTransfer>();
  readonly #transports = new Map<string, ScriptedTransport>();
  readonly #tags = new Map<string, ScriptedTransfer>();
  /** Pushes of which one end has begun. */
  readonly #halves = new Map<string, ScriptedTransfer>();
  readonly #planned: PlannedTransfer[] = [];
  readonly #plannedConnects: Partial<ConnectPlan>[] = [];
  #created = 0;

  constructor(clock: SimulatedClock = new SimulatedClock(), script: NetworkScript | null = null) {
    this.clock = clock;
    this.script = script;
  }

  /** Moves simulated time on by `ms`: bytes move, handles change. Returns how many timers fired. */
  advance(ms: number): number {
    return this.clock.advance(ms);
  }

  /** Moves simulated time to the next timer. Returns false when nothing will ever happen by itself. */
  step(): boolean {
    return this.clock.step();
  }

  /**
   * What happens to the next transfer that `matches`; overrides the script, first planned first used.
   *
   * @throws `ARGUMENT_INVALID` for a fault that does not exist
   */
  planNext(plan: Partial<TransferPlan>, matches: TransferMatch = () => true): void {
    const kind: unknown = plan.fault?.kind;
    if (kind !== undefined && !faultKinds.has(kind as TransferFault['kind']))
      throw argumentError('plan.fault.kind', [...faultKinds].join(', '), kind);
    this.#planned.push({ plan, matches });
  }

  /** What happens to the next connection. */
  planNextConnect(plan: Partial<ConnectPlan>): void {
    this.#plannedConnects.push(plan);
  }

  /**
   * The process behind `transport` dies: its connections fail, its transfers end as their plans say. Idempotent. A
   * restarted process is a new transport.
   */
  kill(transport: ScriptedTransport): void {
    if (transport.isDead) return;
    transport.noteKilled();
    this.#transports.delete(transport.id);
    for (const [key, half] of this.#halves) {
      if (half.source !== transport && half.target !== transport) continue;
      this.#halves.delete(key);
      half.noteDeath(half.source === transport ? 'source' : 'target');
    }
    for (const transfer of [...this.transfers]) {
      if (transfer.source === transport) transfer.noteDeath('source');
      else if (transfer.target === transport) {
        transfer.noteDeath('target');
        this.transfers.delete(transfer);
      }
    }
    for (const other of this.#transports.values()) other.notePeerKilled(transport);
  }

  /** Pushes whose source has begun and is not known to be over: they may still read its memory. */
  openPushes(source: ScriptedTransport): readonly ScriptedTransfer[] {
    return [...new Set([...this.transfers, ...this.#halves.values()])].filter(
      (transfer) => transfer.source === source && transfer.sourceEnd !== null && !transfer.sourceEnd.isFinal,
    );
  }

  /** The living transport of a grant, or undefined. */
  transportOf(id: string): ScriptedTransport | undefined {
    return this.#transports.get(id);
  }

  /** @internal called by a new transport; returns its id */
  noteCreated(transport: ScriptedTransport, name: string): string {
    const id = `${name}-${this.#created++}`;
    this.#transports.set(id, transport);
    return id;
  }

  /** @internal */
  createTransfer(source: ScriptedTransport, target: ScriptedTransport, tag: string): ScriptedTransfer {
    const index = this.#planned.findIndex(({ matches }) => matches(source, target, tag));
    const drawn = index >= 0 ? this.#planned.splice(index, 1)[0]!.plan : (this.script?.transfer() ?? {});
    const plan = { ...smoothTransfer, ...drawn };
    if (!Number.isSafeInteger(plan.pieces) || plan.pieces < 1) {
      throw argumentError('plan.pieces', 'a positive integer', plan.pieces);
    }
    return new ScriptedTransfer(source, target, tag, plan);
  }

  /** @internal */
  drawConnect(): ConnectPlan {
    return { ...smoothConnect, ...(this.#plannedConnects.shift() ?? this.script?.connect() ?? {}) };
  }

  /** @internal a tag names one transfer of a pair of transports at a time */
  claimTag(transfer: ScriptedTransfer, side: TransferSide): void {
    const { source, target, tag } = transfer;
    const key = `${source.id}>${target.id}>${side}>${tag}`;
    const known = this.#tags.get(key);
    if (known !== undefined && !known.isOver(side)) {
      throw argumentError('request.tag', 'a tag that no transfer between these two transports uses', tag);
    }
    this.#tags.set(key, transfer);
  }

  /** @internal the other half of a push if it has begun, else a first half */
  matchHalf(source: ScriptedTransport, target: ScriptedTransport, tag: string, side: TransferSide): ScriptedTransfer {
    const key = `${source.id}>${target.id}>${tag}`;
    const half = this.#halves.get(key);
    const isMine = ((side === 'source' ? half?.sourceEnd : half?.targetEnd) ?? null) !== null;
    if (half !== undefined && !(isMine && half.isOver(side))) {
      if (!isMine) this.#halves.delete(key);
      return half;
    }
    const created = this.createTransfer(source, target, tag);
    this.#halves.set(key, created);
    return created;
  }

  /** @internal */
  noteBegun(transfer: ScriptedTransfer): void {
    this.transfers.add(transfer);
    this.onBegin?.(transfer);
    // One that was over as it began was told so before anybody knew it.
    if (transfer.isQuiet) this.noteQuiet(transfer);
  }

  /** @internal */
  noteQuiet(transfer: ScriptedTransfer): void {
    if (this.transfers.delete(transfer)) this.onQuiet?.(transfer);
  }
}
