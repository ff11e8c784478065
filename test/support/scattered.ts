/** Numbers in an order that is random and the same in every run: block ids for benchmarks. */

/** The first `count` of the numbers below `below`, in their random order. */
export function scattered(below: number, count: number, salt: number): Int32Array {
  const ids = Int32Array.from({ length: below }, (_, id) => id);
  let state = salt;
  for (let at = below - 1; at > 0; at -= 1) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const other = state % (at + 1);
    [ids[at], ids[other]] = [ids[other] as number, ids[at] as number];
  }
  return ids.slice(0, count);
}
