/**
 * A test switch: makes this engine behave like one whose work goes on after the call returns, on a device, so that a
 * fence that nobody waits for shows.
 *
 * Before a "quiescent" fence completes, the memory it guards is overwritten with junk at every step, as a kernel of an
 * earlier owner might; bytes that somebody else put there are lost and counted. Before a "ready" fence completes, a
 * prefill's memory holds junk instead of its state. Work of this engine's own is in order: memory that the engine hands
 * to a new request is left alone from then on.
 */
import type { Fence } from 'state-handoff';
import type { EngineMemory } from './engine-memory.js';

interface LateItem {
  readonly kind: 'earlier work' | 'result';
  remaining: number;
  /** What memory holds once a result is complete; nothing for earlier work. */
  readonly results: ReadonlyMap<number, Float32Array>;
  readonly slotResult: Float32Array | null;
  readonly blocks: Set<number>;
  slot: number | null;
  /** What was written last. */
  junk: number;
  readonly done: (() => void) | null;
}

export class LateWork {
  /** How often memory was found written before its fence completed. */
  violations = 0;
  private items: LateItem[] = [];

  constructor(
    private readonly memory: EngineMemory,
    private readonly delaySteps: number,
  ) {}

  get isPending(): boolean {
    return this.items.length > 0;
  }

  /** Junk in memory that is about to be imported into, until the fence completes. */
  scribble(blocks: Int32Array, slot: number | null): Fence {
    this.forget(blocks, slot);
    return this.begin({ kind: 'earlier work', blocks, slot, results: new Map(), slotResult: null, done: null });
  }

  /**
   * Junk in place of a result, until the fence completes.
   *
   * @param done - called then
   */
  holdBack(blocks: Int32Array, slot: number | null, done: () => void): Fence {
    const results = new Map(Array.from(blocks, (block) => [block, this.memory.kvMemory.readBlock(block)]));
    const slotResult = slot === null ? null : this.memory.ssmMemory!.readSlot(slot);
    return this.begin({ kind: 'result', blocks, slot, results, slotResult, done });
  }

  /** The engine itself has a new use for this memory, after whatever is still going on. */
  forget(blocks: Int32Array, slot: number | null): void {
    for (const item of this.items) {
      for (const block of blocks) item.blocks.delete(block);
      if (slot !== null && item.slot === slot) item.slot = null;
    }
  }

  /** One step of the engine. */
  advance(): void {
    const items = this.items;
    this.items = items.filter((item) => {
      item.remaining -= 1;
      if (item.kind === 'earlier work') {
        this.check(item);
        item.junk += 1;
        this.write(item);
      } else if (item.remaining === 0) {
        for (const block of item.blocks) this.memory.kvMemory.writeBlock(block, item.results.get(block)!);
        if (item.slot !== null) this.memory.ssmMemory!.writeSlot(item.slot, item.slotResult!);
      }
      return item.remaining > 0;
    });
    for (const item of items) if (item.remaining === 0) item.done?.();
  }

  private begin(
    work: Pick<LateItem, 'kind' | 'results' | 'slotResult' | 'done'> & {
      readonly blocks: Int32Array;
      readonly slot: number | null;
    },
  ): Fence {
    const item: LateItem = { ...work, blocks: new Set(work.blocks), remaining: this.delaySteps, junk: 1 };
    this.items.push(item);
    this.write(item);
    return { isComplete: () => item.remaining <= 0 };
  }

  private write(item: LateItem): void {
    const { kvMemory, ssmMemory } = this.memory;
    const content = new Float32Array(kvMemory.blockNumbers).fill(item.junk);
    for (const block of item.blocks) kvMemory.writeBlock(block, content);
    if (item.slot !== null) ssmMemory!.writeSlot(item.slot, new Float32Array(ssmMemory!.slotNumbers).fill(item.junk));
  }

  private check(item: LateItem): void {
    const isJunk = (content: Float32Array): boolean => content.every((number) => number === item.junk);
    for (const block of item.blocks) if (!isJunk(this.memory.kvMemory.readBlock(block))) this.violations += 1;
    if (item.slot !== null && !isJunk(this.memory.ssmMemory!.readSlot(item.slot))) this.violations += 1;
  }
}
