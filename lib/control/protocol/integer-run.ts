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
/** Of the walks that begin in the middle: where each stood at its first steps, and at which of them it last stood astray. */
const trails = new Int32Array(3 * trailSteps);
const lastAstray = new Int32Array(3);

/**
 * @param from - where the first integer begins
 * @returns true only when exactly `count` integers fill `bytes` from there to the end; false for short frames, too
 */
export function integersFill(bytes: Uint8Array, from: number, count: number): boolean {
  const quarter = Math.floor((bytes.length - from) / 4);
  if (quarter < quarterMin) return false;
  const [toB, toC, toD, end] = [from + quarter, from + 2 * quarter, from + 3 * quarter, bytes.length];
  let [a, b, c, d] = [from, begin(bytes, toB, 0), begin(bytes, toC, 1), begin(bytes, toD, 2)];
  let steps = 0;
  for (; a < toB && b < toC && c < toD && d < end; steps++) {
    a += sizes[bytes[a]!]!;
    b += sizes[bytes[b]!]!;
    c += sizes[bytes[c]!]!;
    d += sizes[bytes[d]!]!;
  }
  steps = 4 * steps + 3 * trailSteps;
  for (; a < toB; steps++) a += sizes[bytes[a]!]!;
  for (; b < toC; steps++) b += sizes[bytes[b]!]!;
  for (; c < toD; steps++) c += sizes[bytes[c]!]!;
  for (; d < end; steps++) d += sizes[bytes[d]!]!;
  if (d !== end) return false;
  for (let index = 0; index < 3; index++) {
    let at = index === 0 ? a : index === 1 ? b : c;
    // From where it meets the walk behind it, that one went on for both; one that went astray meets none.
    let step = 0;
    while (step < trailSteps && trails[index * trailSteps + step] !== at) {
      if (trails[index * trailSteps + step]! < at) step++;
      else {
        at += sizes[bytes[at]!]!;
        steps++;
      }
    }
    if (step === trailSteps || lastAstray[index]! >= step) return false;
    steps -= step;
  }
  return steps === count;
}

/** The first steps of a walk, among which the one before it will look for its own position. @returns where it stands then */
function begin(bytes: Uint8Array, from: number, index: number): number {
  let at = from;
  lastAstray[index] = -1;
  for (let step = 0; step < trailSteps; step++) {
    trails[index * trailSteps + step] = at;
    const size = sizes[bytes[at]!]!;
    if (size === astray) lastAstray[index] = step;
    at += size === astray ? 1 : size;
  }
  return at;
}
