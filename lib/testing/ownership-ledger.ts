/**
 * Who may touch which memory, learned from the network and the allocators alone: an independent judge of memory safety.
 *
 * It knows nothing of the SDK. It writes down the generations of a transfer's blocks when it begins, and from then on
 * every write must still find the same owner there, no block may be given back before its transfers are quiet, and no
 * source may be reused under a reader that would not notice.
 */
import type { PrefilledRequest } from '../engine-context.js';
import { HandoffError } from '../errors.js';
import type { ScriptedNetwork } from './scripted-network.js';
import type { ScriptedTransfer } from './scripted-transfer.js';
import type { ScriptedTransport } from './scripted-transport.js';
import type { TestEngine } from './test-engine.js';

/** One rank that a ledger watches. */
export interface WatchedRank {
  /** For messages. */
  readonly name: string;
  /** Ranks of one instance have the same; their blocks are named together. */
  readonly group: string;
  readonly transport: ScriptedTransport;
  readonly engine: TestEngine;
}

/** One rank's memory: blocks first, then slots, in one numbering. */
class RankMemory {
  /** Transfers that are not quiet and have this as a target. */
  readonly inDoubt: Int32Array;
  /** Readers that are not quiet and would not notice that it was reused. */
  readonly blindReaders: Int32Array;
  /** The transfers of the present owner of each block or slot. */
  readonly latest: ScriptedTransfer[][];
  readonly detach: (() => void)[] = [];

  constructor(readonly rank: WatchedRank) {
    const { blocks, slots } = rank.engine;
    const count = blocks.poolSize + (slots?.size ?? 0);
    this.inDoubt = new Int32Array(count);
    this.blindReaders = new Int32Array(count);
    this.latest = Array.from({ length: count }, () => []);
  }

  key(isSlot: boolean, id: number): number {
    return isSlot ? this.rank.engine.blocks.poolSize + id : id;
  }

  name(key: number): string {
    const { poolSize } = this.rank.engine.blocks;
    return `${this.rank.name} ${key < poolSize ? `block ${key}` : `slot ${key - poolSize}`}`;
  }

  generation(key: number): number {
    const { blocks, slots } = this.rank.engine;
    return key < blocks.poolSize ? blocks.generations[key]! : slots!.generations[key - blocks.poolSize]!;
  }

  isHeld(key: number): boolean {
    const { blocks, slots } = this.rank.engine;
    return key < blocks.poolSize ? blocks.refs[key]! > 0 : !slots!.isFree(key - blocks.poolSize);
  }

  isBusy(key: number): boolean {
    const { blocks } = this.rank.engine;
    return key < blocks.poolSize
      ? this.rank.engine.isBusy('block', key)
      : this.rank.engine.isBusy('slot', key - blocks.poolSize);
  }
}

interface Touched {
  readonly memory: RankMemory;
  readonly keys: readonly number[];
  readonly generations: readonly number[];
}

interface Watched {
  readonly target: Touched;
  readonly source: Touched;
  readonly isBlind: boolean;
  /** Of a blind reader's source, as first read. */
  readonly readGenerations: Map<number, number>;
}

/** Keeps who may touch which memory, from the events of pools and transports. */
export class OwnershipLedger {
  /** Writes that were checked. */
  writes = 0;
  readonly #ranks = new Map<ScriptedTransport, RankMemory>();
  readonly #transfers = new Map<ScriptedTransfer, Watched>();
  readonly #violation: (message: string) => void;

  /**
   * Takes over the network's hooks.
   *
   * @param onViolation - what breaks the rules; default: throws `INVARIANT`
   */
  constructor(network: ScriptedNetwork, onViolation?: (message: string) => void) {
    this.#violation =
      onViolation ??
      ((message) => {
        throw new HandoffError('INVARIANT', message);
      });
    network.onBegin = (transfer) => this.#begin(transfer);
    network.onWrite = (_target, region, offset, _length, _tag, transfer) => this.#write(transfer, region, offset);
    network.onRead = (_source, region, offset, _length, transfer) => this.#read(transfer, region, offset);
    network.onQuiet = (transfer) => this.#quiet(transfer);
  }

  /** Watches a rank from now on. */
  watch(rank: WatchedRank): void {
    const memory = new RankMemory(rank);
    this.#ranks.set(rank.transport, memory);
    const { blocks, slots } = rank.engine;
    const blockObserver = {
      allocated: (ids: Int32Array) => ids.forEach((id) => this.#allocated(memory, memory.key(false, id))),
      released: (ids: Int32Array) => ids.forEach((id) => this.#released(memory, memory.key(false, id))),
      registered: (ids: Int32Array) => ids.forEach((id) => this.#registered(memory, memory.key(false, id))),
    };
    const slotObserver = {
      allocated: (slot: number) => this.#allocated(memory, memory.key(true, slot)),
      freed: (slot: number) => this.#released(memory, memory.key(true, slot)),
    };
    blocks.observers.add(blockObserver);
    slots?.observers.add(slotObserver);
    memory.detach.push(
      () => blocks.observers.delete(blockObserver),
      () => slots?.observers.delete(slotObserver),
    );
  }

  /** Forgets a rank whose process is gone. */
  unwatch(transport: ScriptedTransport): void {
    this.#ranks.get(transport)?.detach.forEach((detach) => detach());
    this.#ranks.delete(transport);
    for (const [transfer, { source, isBlind }] of this.#transfers) {
      if (transfer.target !== transport) continue;
      this.#transfers.delete(transfer);
      if (isBlind) for (const key of source.keys) source.memory.blindReaders[key]!--;
    }
  }

  /** Blocks and slots of a rank that may still be written. */
  inDoubt(transport: ScriptedTransport): { readonly blocks: readonly number[]; readonly slots: readonly number[] } {
    const memory = this.#ranks.get(transport);
    if (memory === undefined) return { blocks: [], slots: [] };
    const { poolSize } = memory.rank.engine.blocks;
    const keys = [...memory.inDoubt.keys()].filter((key) => memory.inDoubt[key]! > 0);
    return {
      blocks: keys.filter((key) => key < poolSize),
      slots: keys.filter((key) => key >= poolSize).map((key) => key - poolSize),
    };
  }

  /** Judges an admission: an engine must be given the fence that bytes of its blocks still wait for. */
  admitted(transport: ScriptedTransport, request: PrefilledRequest): void {
    const memory = this.#ranks.get(transport);
    if (memory === undefined) return;
    const keys = [...request.blocks].map((block) => memory.key(false, block));
    if (request.slot !== null) keys.push(memory.key(true, request.slot));
    for (const key of keys) {
      for (const { tag, targetEnd } of memory.latest[key]!) {
        const fence = targetEnd?.landed ?? null;
        if (targetEnd?.status !== 'done') {
          this.#violation(
            `attempt ${request.attemptId} was admitted, and transfer ${tag} of its ${memory.name(key)} is ${targetEnd?.status}`,
          );
        } else if (fence !== null && !fence.isComplete() && (request.landed === null || request.landed.isComplete())) {
          this.#violation(
            `attempt ${request.attemptId} was admitted without the fence that ${memory.name(key)} waits for`,
          );
        }
      }
    }
  }

  #begin(transfer: ScriptedTransfer): void {
    const target = this.#ranks.get(transfer.target);
    const source = this.#ranks.get(transfer.source);
    if (target === undefined || source === undefined) return;
    const targetKeys = new Set<number>();
    const sourceKeys = new Set<number>();
    for (const { rectangles, tables } of transfer.request!.programs) {
      let known = -1;
      for (const { table, tableFrom, tableCount, targetRegion, sourceRegion } of rectangles) {
        if (table < 0 || table === known) continue;
        known = table;
        const isSlot = target.rank.engine.memory.isSlotRegion(targetRegion);
        const isSourceSlot = source.rank.engine.memory.isSlotRegion(sourceRegion);
        const rows = tables[table]!;
        for (let row = tableFrom; row < tableFrom + tableCount; row++) {
          targetKeys.add(target.key(isSlot, rows.target[row]!));
          sourceKeys.add(source.key(isSourceSlot, rows.source[row]!));
        }
      }
    }
    // A push names its targets only; its source is whoever sends.
    const isPush = transfer.source.capabilities.direction === 'push';
    const watched: Watched = {
      target: touched(target, [...targetKeys]),
      source: touched(source, isPush ? [] : [...sourceKeys]),
      isBlind: !transfer.source.capabilities.detectsLateReads,
      readGenerations: new Map(),
    };
    this.#transfers.set(transfer, watched);
    for (const key of targetKeys) {
      target.inDoubt[key]!++;
      target.latest[key]!.push(transfer);
      if (!target.isHeld(key))
        this.#violation(`${target.name(key)} is free, and transfer ${transfer.tag} begins to write it`);
      if (target.isBusy(key)) {
        this.#violation(
          `${target.name(key)} is still used by earlier work, and transfer ${transfer.tag} begins to write it`,
        );
      }
    }
    if (watched.isBlind) for (const key of watched.source.keys) source.blindReaders[key]!++;
  }

  #write(transfer: ScriptedTransfer, region: number, offset: number): void {
    const watched = this.#transfers.get(transfer);
    if (watched === undefined) return;
    this.writes++;
    const { memory, keys, generations } = watched.target;
    const { engine } = memory.rank;
    const key = memory.key(engine.memory.isSlotRegion(region), engine.memory.idAt(region, offset));
    const index = keys.indexOf(key);
    if (index < 0) this.#violation(`transfer ${transfer.tag} writes ${memory.name(key)}, which is none of its targets`);
    else if (!memory.isHeld(key)) this.#violation(`transfer ${transfer.tag} writes ${memory.name(key)}, which is free`);
    else if (memory.generation(key) !== generations[index]) {
      this.#violation(`transfer ${transfer.tag} writes ${memory.name(key)}, which has a new owner`);
    }
  }

  /** Who would not notice a reuse must find the same owner at every byte it reads. */
  #read(transfer: ScriptedTransfer, region: number, offset: number): void {
    const watched = this.#transfers.get(transfer);
    if (watched === undefined || !watched.isBlind) return;
    const { memory } = watched.source;
    const { engine } = memory.rank;
    const key = memory.key(engine.memory.isSlotRegion(region), engine.memory.idAt(region, offset));
    if (!memory.isHeld(key)) this.#violation(`transfer ${transfer.tag} reads ${memory.name(key)}, which is free`);
    const first = watched.readGenerations.get(key);
    if (first === undefined) watched.readGenerations.set(key, memory.generation(key));
    else if (first !== memory.generation(key)) {
      this.#violation(`transfer ${transfer.tag} reads ${memory.name(key)}, which has a new owner`);
    }
  }

  #quiet(transfer: ScriptedTransfer): void {
    const watched = this.#transfers.get(transfer);
    if (watched === undefined) return;
    this.#transfers.delete(transfer);
    const { target, source, isBlind } = watched;
    for (const key of target.keys) target.memory.inDoubt[key]!--;
    if (isBlind) for (const key of source.keys) source.memory.blindReaders[key]!--;
    if (!transfer.hasHandle || transfer.targetEnd?.status !== 'done') return;
    for (const [index, key] of source.keys.entries()) {
      if (source.memory.generation(key) !== source.generations[index]) {
        this.#violation(`transfer ${transfer.tag} is done, but ${source.memory.name(key)} was reused while it read`);
      }
    }
  }

  #allocated(memory: RankMemory, key: number): void {
    memory.latest[key] = [];
    if (memory.inDoubt[key]! > 0) this.#violation(`${memory.name(key)} has a new owner and may still be written`);
    if (memory.blindReaders[key]! > 0) {
      this.#violation(`${memory.name(key)} has a new owner and may still be read by one who would not notice`);
    }
  }

  #released(memory: RankMemory, key: number): void {
    if (memory.inDoubt[key]! > 0 && !memory.isHeld(key)) {
      this.#violation(`${memory.name(key)} was given back and may still be written`);
    }
  }

  /** A block is named only when every rank of the instance has all of it (I3). */
  #registered(memory: RankMemory, key: number): void {
    for (const other of this.#ranks.values()) {
      // A rank that is ahead in the log may have given the block to somebody else already.
      if (other.rank.group !== memory.rank.group || other.generation(key) !== memory.generation(key)) continue;
      for (const { tag, targetEnd } of other.latest[key]!) {
        if (targetEnd?.status !== 'done') {
          this.#violation(
            `${memory.name(key)} was named, but transfer ${tag} into ${other.name(key)} is ${targetEnd?.status}`,
          );
        }
      }
    }
  }
}

function touched(memory: RankMemory, keys: readonly number[]): Touched {
  return { memory, keys, generations: keys.map((key) => memory.generation(key)) };
}
