/**
 * What decode can see of its imports from outside: compares one `inspect()` with the last and tells the router what is
 * new. It looks before and after each call that may reserve, so that the transfer time is what decode itself waits: from
 * just before the reservation to the look that finds all bytes here.
 */
import type { ImportView } from 'state-handoff';
import type { decodeAnswers, Message } from './messages.js';

/** What it tells. */
type Sight = Extract<Message<typeof decodeAnswers>, { kind: 'deferred' | 'reserved' | 'landed' }>;

interface Seen {
  deferred: boolean;
  /** Of the reservation; -1 before. */
  at: number;
  landed: boolean;
}

export class ImportWatch {
  private readonly seen = new Map<number, Seen>();
  private turn = 0;
  private lastLook = performance.now();

  /** @param tellsAll - false on ranks that only tell what landed; the others say the rest */
  constructor(
    private readonly imports: () => readonly ImportView[],
    private readonly send: (sight: Sight) => void,
    private readonly tellsAll = true,
  ) {}

  /**
   * Null when nothing landed.
   *
   * @returns the first block that was moved for what landed now, or -1, and whether that was the first request of all
   */
  look(): { readonly block: number; readonly isFirst: boolean } | null {
    this.turn += 1;
    let landed: { readonly block: number; readonly isFirst: boolean } | null = null;
    const now = performance.now();
    for (const view of this.imports()) {
      const id = String(view.requestId);
      const seen = this.seen.get(view.attemptId) ?? { deferred: false, at: -1, landed: false };
      this.seen.set(view.attemptId, seen);
      if (view.state === 'queued') {
        if (!seen.deferred && this.tellsAll) this.send({ kind: 'deferred', id });
        seen.deferred = true;
        continue;
      }
      if (seen.at < 0) {
        seen.at = this.lastLook;
        const { blocks, cachedPrefixBlocks: cachedBlocks } = view;
        if (this.tellsAll) this.send({ kind: 'reserved', id, turn: this.turn, blocks: blocks.length, cachedBlocks });
      }
      if (seen.landed || !(view.state === 'landed' || view.state === 'agreed') || view.cancelling) continue;
      seen.landed = true;
      this.send({
        kind: 'landed',
        id,
        bytes: view.bytesDone,
        milliseconds: now - seen.at,
        transport: view.transports[0] ?? '',
      });
      const isFirst = view.attemptId === Math.min(...this.seen.keys());
      const block = view.blocks[view.cachedPrefixBlocks] ?? -1;
      if (landed === null || isFirst) landed = { block, isFirst };
    }
    this.lastLook = performance.now();
    return landed;
  }
}
