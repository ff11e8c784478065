/**
 * The affinity table against a plain `Map` of maps: any run of recordings, losses, returns and waits gives the same
 * holders, depths and recencies, through growth, sweeps and many holders of one block.
 */
import fc from 'fast-check';
import { AffinityTable, affinityColumnsMax } from '../../lib/control/routing/affinity-table.js';

const ttlMs = 4096;

interface Entry {
  readonly at: number;
  readonly recording: number;
}

/** The same, in the plainest words. */
class PlainTable {
  readonly blocks = new Map<bigint, Map<number, Entry>>();
  recordings = 0;

  constructor(readonly expires: boolean) {}

  record(column: number, hashes: readonly bigint[], at: number): void {
    this.recordings++;
    for (const hash of hashes) {
      if (!this.blocks.has(hash)) this.blocks.set(hash, new Map());
      this.blocks.get(hash)!.set(column, { at, recording: this.recordings });
    }
  }

  leave(column: number): void {
    for (const holders of this.blocks.values()) holders.delete(column);
  }

  holders(hash: bigint, now: number): Map<number, Entry> {
    const all = [...(this.blocks.get(hash) ?? [])];
    return new Map(all.filter(([, { at }]) => !this.expires || now - at < ttlMs).sort(([a], [b]) => a - b));
  }
}

type Step =
  | { readonly kind: 'record'; readonly engine: number; readonly from: number; readonly length: number }
  | { readonly kind: 'lose' | 'join'; readonly engine: number }
  | { readonly kind: 'wait'; readonly ms: number }
  | { readonly kind: 'look'; readonly from: number; readonly length: number };

const engines = 12;
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant('record'),
      engine: fc.nat(engines - 1),
      from: fc.nat(400),
      length: fc.nat(60),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('lose'), engine: fc.nat(engines - 1) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('join'), engine: fc.nat(engines - 1) }) },
  // Whole milliseconds are slices of their own at this time to live, so that the table forgets neither late nor early.
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('wait'), ms: fc.oneof(fc.nat(5), fc.nat(3000)) }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('look'), from: fc.nat(400), length: fc.nat(60) }) },
) as fc.Arbitrary<Step>;

/** Hashes that share no pattern with their index, both signs of the low word among them. */
const hashOf = (index: number): bigint => BigInt.asUintN(63, BigInt(index + 1) * 0x9e3779b97f4a7c15n) | 1n;
const hashesOf = (from: number, length: number): bigint[] => Array.from({ length }, (_, at) => hashOf(from + at));

function check(table: AffinityTable, plain: PlainTable, hashes: readonly bigint[], now: number): void {
  const typed = BigInt64Array.from(hashes);
  const depths = new Int32Array(affinityColumnsMax);
  table.leadingDepths(typed, now, depths);
  const recencies = new Float64Array(affinityColumnsMax);
  const deepest = table.deepestBlock(typed, now, recencies);
  const held = hashes.map((hash) => plain.holders(hash, now));
  const last = held.findLastIndex((holders) => holders.size > 0);
  const columns = Array.from({ length: engines }, (_, column) => column);
  const expected = {
    depths: columns.map((column) => held.findIndex((holders) => !holders.has(column))),
    deepest: last + 1,
    recencies: columns.map((column) => (last < 0 ? 0 : (held[last]!.get(column)?.recording ?? 0))),
    holders: held.map((holders) => [...holders.keys()]),
  };
  const got = {
    depths: columns.map((column) => (depths[column] === hashes.length ? -1 : depths[column])),
    deepest,
    recencies: columns.map((column) => recencies[column]),
    holders: hashes.map((hash) => table.holders(hash, now).map(({ column }) => column)),
  };
  // With a time to live recencies are slices of time: only whether there is one can be compared.
  const whole = ({ recencies, ...rest }: typeof expected) =>
    JSON.stringify({ ...rest, recencies: plain.expires ? recencies.map(Math.sign) : recencies });
  expect(whole(got as typeof expected)).toBe(whole(expected));
}

function play(table: AffinityTable, plain: PlainTable, steps: readonly Step[]): void {
  const columns: (number | null)[] = Array.from({ length: engines }, () => null);
  let now = 0;
  for (const each of steps) {
    if (each.kind === 'wait') now += each.ms;
    else if (each.kind === 'look') check(table, plain, hashesOf(each.from, each.length), now);
    else {
      const column = columns[each.engine] ?? null;
      if (each.kind === 'join' && column === null) columns[each.engine] = table.join();
      if (each.kind === 'lose' && column !== null) {
        table.leave(column);
        plain.leave(column);
        columns[each.engine] = null;
      }
      if (each.kind === 'record' && column !== null) {
        const hashes = hashesOf(each.from, each.length);
        table.record(column, BigInt64Array.from(hashes), now);
        plain.record(column, hashes, now);
      }
    }
  }
  check(table, plain, hashesOf(0, 460), now);
}

const joinsFirst: Step[] = Array.from({ length: engines }, (_, engine) => ({ kind: 'join', engine }));

test.each([
  ['entries that expire', ttlMs],
  ['entries that do not', null],
])('%s: the same holders, depths and recencies as a plain map', (_name, ttl) => {
  fc.assert(
    fc.property(fc.array(step, { minLength: 10, maxLength: 120 }), fc.boolean(), (steps, joins) => {
      const table = new AffinityTable({ ttlMs: ttl, blocksMax: 20_000 });
      play(table, new PlainTable(ttl !== null), joins ? [...joinsFirst, ...steps] : steps);
    }),
    { numRuns: 100 },
  );
});

test('stamps that come round again bring nothing dead back to life', () => {
  const table = new AffinityTable({ ttlMs, blocksMax: 20_000 });
  const plain = new PlainTable(true);
  const columns = [table.join()!, table.join()!];
  let now = 0;
  for (let round = 0; round < 140_000; round++) {
    now += 1;
    // Old blocks are recorded once, and then the stamps go round three times.
    const from = round < 300 ? round : 1000 + (round % 7);
    const hashes = hashesOf(from, 1);
    table.record(columns[round % 2]!, BigInt64Array.from(hashes), now);
    plain.record(columns[round % 2]!, hashes, now);
    if (round % 9973 === 0) check(table, plain, hashesOf(0, 300), now);
  }
  check(table, plain, hashesOf(0, 300), now);
  check(table, plain, hashesOf(1000, 7), now);
  // What died was swept: seven blocks live.
  expect(table.size).toBeLessThan(300);
});

test('a block can be held by every engine there may be', () => {
  const table = new AffinityTable({ ttlMs: null, blocksMax: 1000 });
  const columns = Array.from({ length: affinityColumnsMax }, () => table.join()!);
  expect(table.join()).toBeNull();
  for (const column of columns) table.record(column, BigInt64Array.of(7n, 8n), 0);
  expect(table.holders(8n, 0).map(({ column }) => column)).toEqual(columns);
  table.leave(columns[100]!);
  expect(table.holders(7n, 0).map(({ column }) => column)).toEqual(columns.filter((column) => column !== 100));
  expect(table.join()).toBe(100);
  expect(table.holders(7n, 0)).toHaveLength(255);
});

test('beyond its bound the oldest blocks are forgotten, and the newest stay', () => {
  const table = new AffinityTable({ ttlMs: null, blocksMax: 2000 });
  const column = table.join()!;
  for (let at = 0; at < 20_000; at++) table.record(column, BigInt64Array.of(hashOf(at)), 0);
  expect(table.size).toBeLessThanOrEqual(2500);
  for (let at = 19_000; at < 20_000; at++) expect(table.holders(hashOf(at), 0)).toHaveLength(1);
  expect(table.holders(hashOf(0), 0)).toEqual([]);
});

test('blocks of one age beyond the bound: some go, not all', () => {
  const table = new AffinityTable({ ttlMs: 1000, blocksMax: 2000 });
  const column = table.join()!;
  table.record(column, BigInt64Array.from(hashesOf(0, 20_000)), 5);
  expect(table.size).toBeLessThanOrEqual(2500);
  expect(table.size).toBeGreaterThan(1000);
});

test('hashes of 0, which name nothing, are held by nobody', () => {
  const table = new AffinityTable({ ttlMs: 1000, blocksMax: 100 });
  table.record(table.join()!, BigInt64Array.of(0n, 5n), 0);
  expect(table.holders(0n, 0)).toEqual([]);
  expect(table.holders(5n, 0)).toHaveLength(1);
  expect(table.size).toBe(1);
});

test.each([
  [{ ttlMs: 0, blocksMax: 1 }, 'affinity.ttlMs: expected more than 0, or null, got 0'],
  [{ ttlMs: null, blocksMax: 0 }, 'affinity.blocksMax: expected an integer in [1, 67108864], got 0'],
])('%j is refused', (options, message) => {
  expect(() => new AffinityTable(options)).toThrow(message);
});

test.each([
  [8, 1],
  [8, 8],
  [affinityColumnsMax, 1],
  [affinityColumnsMax, 4],
])('of %i engines, %i for each block: at most 40 bytes an entry', (engineCount, holders) => {
  const table = new AffinityTable({ ttlMs: 300_000, blocksMax: 12_000 });
  const columns = Array.from({ length: engineCount }, () => table.join()!);
  const perEngine = 1000;
  for (let from = 0; from < 10_000; from += perEngine) {
    const hashes = BigInt64Array.from(hashesOf(from, perEngine));
    for (let turn = 0; turn < holders; turn++)
      table.record(columns[(from / perEngine + turn) % engineCount]!, hashes, turn);
  }
  expect(table.size).toBe(10_000);
  expect(table.bytes / table.size).toBeLessThanOrEqual(40);
  expect(table.holders(hashOf(500), holders)).toHaveLength(holders);
});

test('an engine beyond the eighth finds its place beside those that are there, and none is lost', () => {
  const table = new AffinityTable({ ttlMs: null, blocksMax: 20_000 });
  const columns = Array.from({ length: 10 }, () => table.join()!);
  const hashes = BigInt64Array.from(hashesOf(0, 1500));
  for (const column of columns) table.record(column, hashes, 0);
  for (const hash of hashes) expect(table.holders(hash, 0).map(({ column }) => column)).toEqual(columns);
});

test('one recording rebuilds a few segments only, and later ones the rest', () => {
  const table = new AffinityTable({ ttlMs: null, blocksMax: 100_000 });
  const columns = Array.from({ length: 9 }, () => table.join()!);
  for (let from = 0; from < 60_000; from += 1000)
    table.record(columns[(from / 1000) % 8]!, BigInt64Array.from(hashesOf(from, 1000)), 0);
  // The ninth engine has no place beside eight in any segment yet.
  const hashes = BigInt64Array.from(hashesOf(5000, 64));
  const held = (): number =>
    [...hashes].filter((hash) => table.holders(hash, 0).some(({ column }) => column === 8)).length;
  table.record(columns[8]!, hashes, 0);
  const once = held();
  expect(once).toBeGreaterThan(10);
  expect(once).toBeLessThanOrEqual(45);
  for (let turn = 0; turn < 5; turn++) table.record(columns[8]!, hashes, 0);
  expect(held()).toBe(64);
});

test('the next engine in a column that became free has what it is assigned in the very same moment', () => {
  const table = new AffinityTable({ ttlMs: 4_096_000, blocksMax: 1000 });
  const column = table.join()!;
  table.record(column, BigInt64Array.of(7n), 0);
  table.leave(column);
  expect(table.join()).toBe(column);
  table.record(column, BigInt64Array.of(8n), 0);
  expect(table.holders(7n, 0)).toEqual([]);
  expect(table.holders(8n, 0)).toHaveLength(1);
});

test('more engines are lost within the time to live than there are stamps: the oldest blocks are given up', () => {
  const table = new AffinityTable({ ttlMs: 1e9, blocksMax: 1000 });
  const [stays, comes] = [table.join()!, table.join()!];
  table.record(stays, BigInt64Array.of(7n), 0);
  for (let turn = 0; turn < 65_534; turn++) {
    table.leave(comes);
    table.join();
    table.record(comes, BigInt64Array.of(8n), 0);
  }
  expect(table.holders(7n, 0)).toEqual([]);
  expect(table.holders(8n, 0)).toEqual([{ column: comes, recency: 65_535 }]);
});
