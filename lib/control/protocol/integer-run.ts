/**
 * Whether a frame is nothing but msgpack integers, as token ids are: four walks over its quarters at once, since one alone
 * waits at each integer for where the next begins. A walk that begins in the middle of an integer soon falls into step with
 * the true one; where it does not, the answer is no, and who asked looks more slowly.
 */

/** Bytes of an integer by its first one; 0: this begins none. */
const sizes = new Uint8Array(256).fill(1, 0, 0x80).fill(1, 0xe0);
[0xcc, 0xcd, 0xce, 0xcf].forEach((first, power) => (sizes[first] = 1 + 2 ** power));
[0xd0, 0xd1, 0xd2, 0xd3].forEach((first, power) => (sizes[first] = 1 + 2 ** power));

/** Steps within which a walk must meet the one before it. */
const trailSteps = 32;
/** More bytes than a trail can be long. */
const quarterMin = 512;
const trails = new Int32Array(3 * trailSteps);

/** A walk from where an integer may begin. */
interface Walk {
  steps: number;
  at: number;
  /** Where it last stood on something that begins no integer; -1: nowhere. */
  strayedAt: number;
}

/**
 * @param from - where the first integer begins
 * @returns true only when exactly `count` integers fill `bytes` from there to the end; false for short frames, too
 */
export function integersFill(bytes: Uint8Array, from: number, count: number): boolean {
  const quarter = Math.floor((bytes.length - from) / 4);
  if (quarter < quarterMin) return false;
  const [toB, toC, toD, end] = [from + quarter, from + 2 * quarter, from + 3 * quarter, bytes.length];
  const [walkB, walkC, walkD] = [begin(bytes, toB, 0), begin(bytes, toC, 1), begin(bytes, toD, 2)];
  let [a, b, c, d] = [from, walkB.at, walkC.at, walkD.at];
  let steps = 0;
  for (; a < toB && b < toC && c < toD && d < end; steps++) {
    const [sizeA, sizeB, sizeC, sizeD] = [sizes[bytes[a]!]!, sizes[bytes[b]!]!, sizes[bytes[c]!]!, sizes[bytes[d]!]!];
    if (sizeA === 0) return false;
    if (sizeB === 0) walkB.strayedAt = b;
    if (sizeC === 0) walkC.strayedAt = c;
    if (sizeD === 0) walkD.strayedAt = d;
    a += sizeA;
    b += sizeB === 0 ? 1 : sizeB;
    c += sizeC === 0 ? 1 : sizeC;
    d += sizeD === 0 ? 1 : sizeD;
  }
  const first: Walk = { at: a, steps, strayedAt: -1 };
  walkTo(bytes, first, toB);
  if (first.strayedAt >= 0) return false;
  let { at, steps: total } = first;
  for (const [index, walk, position, until] of [
    [0, walkB, b, toC],
    [1, walkC, c, toD],
    [2, walkD, d, end],
  ] as const) {
    walk.at = position;
    walk.steps += steps;
    walkTo(bytes, walk, until);
    // From where the two meet, the later one went on for both.
    let step = 0;
    while (step < trailSteps && trails[index * trailSteps + step] !== at) {
      if (trails[index * trailSteps + step]! < at) step++;
      else {
        const size = sizes[bytes[at]!]!;
        if (size === 0) return false;
        at += size;
        total++;
      }
    }
    if (step === trailSteps || walk.strayedAt >= at) return false;
    total += walk.steps - step;
    at = walk.at;
  }
  return at === end && total === count;
}

/** The first steps of a walk, which the one before it will look for. */
function begin(bytes: Uint8Array, from: number, index: number): Walk {
  const walk: Walk = { at: from, steps: 0, strayedAt: -1 };
  for (let step = 0; step < trailSteps; step++) {
    trails[index * trailSteps + step] = walk.at;
    walkTo(bytes, walk, walk.at + 1);
  }
  return walk;
}

/** Until it stands at `until` or behind it. */
function walkTo(bytes: Uint8Array, walk: Walk, until: number): void {
  while (walk.at < until) {
    const size = sizes[bytes[walk.at]!]!;
    if (size === 0) walk.strayedAt = walk.at;
    walk.at += size === 0 ? 1 : size;
    walk.steps++;
  }
}
