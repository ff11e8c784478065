/** The prefill example's own allocator: what the SDK may ask of it, and what a late reader depends on. */
import { ExportBlocks } from '../../examples/llama/export-blocks.js';

const ids = (...list: number[]) => Int32Array.from(list);
const hashes = (...list: bigint[]) => BigInt64Array.from(list);

test('hands out all blocks but the dummy, or none at all', () => {
  const blocks = new ExportBlocks(5);
  expect(blocks.allocate(5)).toBeNull();
  expect(blocks.freeCount).toBe(4);
  expect([...blocks.allocate(4)!].sort()).toEqual([0, 1, 2, 3]);
  expect(blocks.allocate(1)).toBeNull();
  expect(blocks.allocate(0)).toEqual(ids());
});

test('a block is free when its last reference is dropped, and not before', () => {
  const blocks = new ExportBlocks(3);
  const taken = blocks.allocate(2)!;
  blocks.retain(taken);
  blocks.release(taken);
  expect(blocks.freeCount).toBe(0);
  blocks.release(taken);
  expect(blocks.freeCount).toBe(2);
  expect(() => blocks.release(taken)).toThrow(/^block \d: expected 1 references to drop$/);
  expect(() => blocks.retain(taken)).toThrow(/^block \d: expected one in use$/);
  expect(blocks.freeCount).toBe(2);
});

test('dropping more references than a block has changes nothing', () => {
  const blocks = new ExportBlocks(4);
  const [a, b] = blocks.allocate(2)!;
  expect(() => blocks.release(ids(a!, b!, b!))).toThrow(`block ${b}: expected 2 references to drop`);
  blocks.release(ids(a!, b!));
  expect(blocks.freeCount).toBe(3);
});

test('a block with a name stays until its room is needed, the oldest first and of one prompt the tail first', () => {
  const blocks = new ExportBlocks(4);
  const taken = blocks.allocate(3)!;
  blocks.register(taken, hashes(11n, 12n, 13n));
  expect(blocks.matchPrefix(hashes(11n, 12n, 99n))).toEqual(taken.slice(0, 2));
  blocks.release(taken);
  expect([blocks.freeCount, blocks.evictableCount]).toEqual([0, 3]);
  expect(blocks.unreferencedCount(taken)).toBe(3);
  expect(blocks.isMemoryAvailable(2, 2)).toBe(false);
  blocks.allocate(1);
  expect(blocks.matchPrefix(hashes(11n, 12n, 13n))).toEqual(taken.slice(0, 2));
  expect(blocks.lookup(13n)).toBe(-1);
});

test("a cached block that is retained again is nobody else's", () => {
  const blocks = new ExportBlocks(3);
  const taken = blocks.allocate(2)!;
  blocks.register(taken, hashes(11n, 12n));
  blocks.release(taken);
  blocks.retain(taken);
  expect(blocks.evictableCount).toBe(0);
  expect(blocks.allocate(1)).toBeNull();
  expect(blocks.unreferencedCount(taken)).toBe(0);
});

test('a name that one block holds stays with it', () => {
  const blocks = new ExportBlocks(4);
  const [a, b] = blocks.allocate(2)!;
  blocks.register(ids(a!), hashes(11n));
  blocks.register(ids(b!), hashes(11n));
  expect(blocks.lookup(11n)).toBe(a);
  blocks.release(ids(b!));
  expect(blocks.freeCount).toBe(2);
});

test('shows the generations that whoever hands a block on has moved', () => {
  const blocks = new ExportBlocks(3);
  expect(blocks.generationsOf(ids(0, 1))).toEqual(BigUint64Array.of(1n, 1n));
  blocks.generations.advance(ids(1));
  expect(blocks.generationsOf(ids(0, 1))).toEqual(BigUint64Array.of(1n, 2n));
});
