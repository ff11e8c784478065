/** Whether a list of block ids names one twice; a scratch bitmap makes that cost a few nanoseconds an id. */

/** Ids up to this are marked in a bitmap that stays allocated (512 KiB at most); larger pools are rare and use a set. */
const markedMax = 1 << 22;

let marks = new Uint32Array(0);

/** @param ids - 0 or more, each; left as they are */
export function hasDuplicates(ids: Int32Array): boolean {
  let largest = 0;
  for (let index = 0; index < ids.length; index++) if (ids[index]! > largest) largest = ids[index]!;
  if (largest >= markedMax) return new Set(ids).size !== ids.length;
  const words = (largest >>> 5) + 1;
  if (marks.length < words) marks = new Uint32Array(Math.max(words, marks.length * 2));
  let marked = 0;
  for (; marked < ids.length; marked++) {
    const id = ids[marked]!;
    const bit = 1 << (id & 31);
    if ((marks[id >>> 5]! & bit) !== 0) break;
    marks[id >>> 5]! |= bit;
  }
  for (let index = 0; index < marked; index++) marks[ids[index]! >>> 5] = 0;
  return marked < ids.length;
}
