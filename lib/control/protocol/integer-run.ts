/**
 * Whether a frame is nothing but msgpack integers, as token ids are: four walks over its quarters at once, since one alone
 * waits at each integer for where the next begins. A walk that begins in the middle of an integer soon falls into step with
 * the true one; where it does not, the answer is no, and who asked looks more slowly.
 */

/** More than any frame has: a step of it ends every walk. */
const astray = 2 ** 28;
/** Bytes of an integer by its first one; {@link astray}: this begins none. */
const sizes = new Int32Array(256).fill(astray).fill(1, 0, 0x80).fill(1, 0xe0);
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
    a += sizes[bytes[a]!]!;
    b += sizes[bytes[b]!]!;
    c += sizes[bytes[c]!]!;
    d += sizes[bytes[d]!]!;
  }
  // Each has fallen into step by then, or never will.
  if (Math.max(a, b, c, d) >= astray) return false;
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
        at += sizes[bytes[at]!]!;
        if (at >= astray) return false;
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
    if (size === astray) walk.strayedAt = walk.at;
    walk.at += size === astray ? 1 : size;
    walk.steps++;
  }
}
