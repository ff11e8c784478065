/** {@link integersFill} against one slow walk: random integers, and the same bytes cut, lengthened and changed. */
import fc from 'fast-check';
import { integersFill } from '../../lib/control/protocol/integer-run.js';
import { decodeValue, encodeValue } from '../../lib/control/protocol/wire-bytes.js';
import { WireReader } from '../../lib/control/protocol/wire-reader.js';
import { SeededRandom } from '../../lib/testing/index.js';

const forms = new Map([
  [0xcc, 1],
  [0xcd, 2],
  [0xce, 4],
  [0xcf, 8],
  [0xd0, 1],
  [0xd1, 2],
  [0xd2, 4],
  [0xd3, 8],
]);

/** How many integers there are from `from` to the end; null when there is anything else. */
function counted(bytes: Uint8Array, from: number): number | null {
  let count = 0;
  let at = from;
  for (; at < bytes.length; count++) {
    const first = bytes[at]!;
    const isShort = first < 0x80 || first >= 0xe0;
    if (!isShort && !forms.has(first)) return null;
    at += isShort ? 1 : 1 + forms.get(first)!;
  }
  return at === bytes.length ? count : null;
}

/** Integers whose bytes look like other integers' beginnings as often as not. */
function integers(random: SeededRandom, count: number, misleads: boolean): Uint8Array {
  const bytes: number[] = [];
  const kinds = [...forms];
  for (let index = 0; index < count; index++) {
    const [first, size] = random.pick(kinds);
    if (random.chance(0.2)) bytes.push(random.int(0, 0x7f));
    else {
      bytes.push(first);
      for (let byte = 0; byte < size; byte++) bytes.push(misleads ? random.pick(kinds)[0] : random.int(0, 255));
    }
  }
  return Uint8Array.from(bytes);
}

const seed = fc.nat();

test.each([[false], [true]])('misleading bytes inside: %s', (misleads) => {
  let agreed = 0;
  fc.assert(
    fc.property(seed, fc.integer({ min: 800, max: 2500 }), fc.nat(9), (start, count, from) => {
      const random = new SeededRandom(start);
      const bytes = new Uint8Array([...new Uint8Array(from).fill(0xc1), ...integers(random, count, misleads)]);
      // Where no walk falls into step, it may say no; it may never say yes to anything else.
      if (integersFill(bytes, from, count)) agreed++;
      expect(integersFill(bytes, from, count + 1)).toBe(false);
      expect(integersFill(bytes, from, count - 1)).toBe(false);
      for (const broken of [
        bytes.subarray(0, bytes.length - 1),
        new Uint8Array([...bytes, 0xc1]),
        bytes.with(random.int(from, bytes.length - 1), random.int(0, 255)),
      ]) {
        const truth = counted(broken, from);
        for (const said of [count - 1, count, count + 1])
          if (integersFill(broken, from, said)) expect(truth).toBe(said);
      }
    }),
    { numRuns: 100 },
  );
  // Of honest token ids, all.
  if (!misleads) expect(agreed).toBeGreaterThan(75);
});

test.each([
  ['token ids of a small vocabulary', 120],
  ['of a common one', 131_072],
  ['of a large one', 2 ** 31],
])('%s: taken whole', (_name, vocabulary) => {
  const random = new SeededRandom(7);
  const tokens = Array.from({ length: 5000 }, () => random.int(0, vocabulary - 1));
  const bytes = encodeValue(tokens);
  expect(integersFill(bytes, 3, 5000)).toBe(true);
  expect(new WireReader(bytes, 'frame').opaque()).toBe(bytes);
  expect(decodeValue(bytes)).toEqual(tokens);
});

test('a byte that begins nothing is found wherever it lies', () => {
  const bytes = encodeValue(Array.from({ length: 3000 }, (_, at) => (at * 7919) % 100_000));
  const starts: number[] = [];
  for (let at = 3; at < bytes.length; at += 1 + (forms.get(bytes[at]!) ?? 0)) starts.push(at);
  const missed = starts.filter((at) => {
    const broken = new Uint8Array(bytes);
    broken[at] = 0xc1;
    return integersFill(broken, 3, 3000);
  });
  expect(missed).toEqual([]);
});

test('a short list is not its business', () => {
  expect(integersFill(new Uint8Array(2047).fill(1), 0, 2047)).toBe(false);
  expect(integersFill(new Uint8Array(2048).fill(1), 0, 2048)).toBe(true);
});

test('walks that stay out of step for ever are not believed, whatever they count', () => {
  // Every byte begins an integer of three: from each third of the positions on, all seems well.
  for (let length = 2400; length < 2412; length++) {
    const bytes = new Uint8Array(length).fill(0xcd);
    const truth = counted(bytes, 0);
    for (let said = 600; said < 1000; said++) if (integersFill(bytes, 0, said)) expect(said).toBe(truth);
  }
});
