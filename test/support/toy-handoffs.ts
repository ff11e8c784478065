/** The example engine behind a coordinator: one prompt, what one engine generates for it alone, and when an engine holds nothing. */
import { ToyEngine } from '../../examples/custom-engine.js';

/** Blocks of the example engine. */
export const usableBlocks = 32;

export const prompt: readonly number[] = Array.from('hand me over', (letter) => letter.charCodeAt(0));

/** What an engine that never heard of a handoff generates. */
export function generateAlone(count: number, tokens = prompt): number[] {
  const engine = new ToyEngine();
  const table = [...engine.blocks.allocate(usableBlocks / 2)!];
  const all = [...tokens];
  for (let at = 0; all.length < tokens.length + count; at += 1) {
    const next = engine.forward(table, at, all[at]!);
    if (at === all.length - 1) all.push(next);
  }
  return all.slice(tokens.length);
}

/** Whether no pin, import, push or quarantine is left, and every block can be used. */
export function holdsNothing({ handoff, blocks }: ToyEngine): boolean {
  const { pins, imports, quarantine } = handoff.inspect();
  const held = pins.length + imports.length + quarantine.length + handoff.pendingKvPushCount;
  return held === 0 && blocks.freeCount + blocks.evictableCount === usableBlocks;
}
