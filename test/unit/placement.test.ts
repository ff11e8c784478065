/** The digest of where a rank placed a request: the published function, to the bit, and its 20 bytes. */
import fc from 'fast-check';
import {
  decodePlacementReport,
  encodePlacementReport,
  placementDigest,
  type Placement,
} from '../../lib/control/placement.js';

/** FNV-1a as its authors define it, with big integers: 64 bits, a word at a time. */
function fnv(words: readonly number[]): bigint {
  return words.reduce((hash, word) => BigInt.asUintN(64, (hash ^ BigInt(word)) * 0x100000001b3n), 0xcbf29ce484222325n);
}

const wordsOf = ({ logIndex, blocks, continuation, slot }: Placement): number[] => [
  Math.floor(logIndex / 2 ** 32),
  logIndex % 2 ** 32,
  blocks.length,
  ...blocks,
  continuation.length,
  ...continuation,
  slot === null ? 0 : slot + 1,
];

const ids = fc.array(fc.nat(2 ** 31 - 1), { maxLength: 12 }).map((list) => Int32Array.from(list));
const placement = fc.record({
  logIndex: fc.maxSafeNat(),
  blocks: ids,
  continuation: ids,
  slot: fc.option(fc.nat(2 ** 31 - 1)),
});

test('is FNV-1a over the words of a placement', () => {
  expect(placementDigest({ logIndex: 0, blocks: new Int32Array(), continuation: new Int32Array(), slot: null })).toBe(
    fnv([0, 0, 0, 0, 0]),
  );
  fc.assert(fc.property(placement, (each) => expect(placementDigest(each)).toBe(fnv(wordsOf(each)))));
});

test('tells two placements apart whatever the difference', () => {
  fc.assert(
    fc.property(placement, fc.nat(), (each, where) => {
      const changed: Placement[] = [
        { ...each, logIndex: each.logIndex === 0 ? 1 : each.logIndex - 1 },
        { ...each, slot: each.slot === null ? 0 : null },
        { ...each, blocks: each.continuation, continuation: each.blocks },
      ];
      if (each.blocks.length > 0) {
        const blocks = each.blocks.slice();
        blocks[where % blocks.length]! ^= 1;
        changed.push({ ...each, blocks });
      }
      for (const other of changed) {
        const same = JSON.stringify(wordsOf(other)) === JSON.stringify(wordsOf(each));
        expect(placementDigest(other) === placementDigest(each)).toBe(same);
      }
    }),
  );
});

test('travels in 20 bytes, network order', () => {
  const report = { requestId: 258, rank: 3, digest: 0xf123_4567_89ab_cdefn };
  const bytes = encodePlacementReport(report);
  expect(Buffer.from(bytes).toString('hex')).toBe('0000000000000102' + '00000003' + 'f123456789abcdef');
  expect(decodePlacementReport(bytes)).toEqual(report);
});

test.each<[string, (view: DataView) => unknown]>([
  ['placement.requestId: expected an attempt id in [0, 2^53 - 1], got -1n', (view) => view.setBigInt64(0, -1n)],
  [
    'placement.requestId: expected an attempt id in [0, 2^53 - 1], got 9007199254740992n',
    (view) => view.setBigInt64(0, 2n ** 53n),
  ],
  ['placement.rank: expected an integer in [0, 2147483647], got -1', (view) => view.setInt32(8, -1)],
])('%s', (message, change) => {
  const bytes = encodePlacementReport({ requestId: 1, rank: 1, digest: 0n });
  change(new DataView(bytes.buffer));
  expect(() => decodePlacementReport(bytes)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID', message }));
});

test('no other length, and nothing but bytes', () => {
  expect(() => decodePlacementReport(new Uint8Array(19))).toThrow('placement: expected 20 bytes, got 19');
  expect(() => decodePlacementReport('x' as unknown as Uint8Array)).toThrow('placement: expected 20 bytes, got "x"');
});
