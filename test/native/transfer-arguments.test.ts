/**
 * Promise: no argument of any kind to any native function of the data plane does more than throw `ARGUMENT_INVALID`.
 *
 * Each function is called with good arguments, of which one is replaced by everything that is not of its kind; the call
 * must throw, name the argument, and leave the environment as it was.
 */
import { addon } from '../../lib/native/addon.js';
import type { BrokerCalls } from '../../lib/native/broker-types.js';
import type { NativeHost, NativeRegion, TransferAddon } from '../../lib/native/transfer-types.js';

type Kind =
  | 'region'
  | 'host'
  | 'generations'
  | 'flag'
  | 'text'
  | 'count'
  | 'id'
  | 'doubles'
  | 'int32s'
  | 'uint64s'
  | 'token'
  | 'callback';

type Name = Exclude<keyof TransferAddon, 'host'> | `host.${keyof BrokerCalls}`;

const signatures: Readonly<Record<Name, readonly Kind[]>> = {
  regionAllocate: ['count', 'text'],
  regionBuffer: ['region'],
  regionClose: ['region'],
  programCheck: ['doubles', 'doubles', 'int32s', 'doubles', 'doubles', 'doubles'],
  wakeListen: ['callback'],
  hostOpen: ['generations', 'generations', 'count', 'count'],
  'host.register': ['host', 'region'],
  'host.listen': ['host', 'flag', 'text', 'text', 'token'],
  'host.connect': ['host', 'flag', 'text', 'token', 'uint64s', 'count', 'count', 'count'],
  'host.peerStatus': ['host', 'id'],
  'host.peerError': ['host', 'id'],
  'host.disconnect': ['host', 'id'],
  'host.begin': ['host', 'id', 'doubles', 'doubles', 'int32s', 'int32s', 'uint64s', 'int32s', 'uint64s'],
  'host.poll': ['host', 'id'],
  'host.bytes': ['host', 'id'],
  'host.error': ['host', 'id'],
  'host.cancel': ['host', 'id'],
  'host.take': ['host'],
  'host.forget': ['host', 'id'],
  'host.close': ['host'],
  'host.quiet': ['host'],
  debugCounters: [],
  debugCopyFragments: ['host', 'id', 'region', 'doubles', 'count'],
  debugCopyHalfHeads: ['host', 'id', 'region', 'int32s', 'int32s', 'count', 'count'],
};

/** The function of this name; one that brokers share stands under its transport. */
function callOf(name: string): (...values: unknown[]) => unknown {
  const [first = '', second] = name.split('.');
  const found = (addon() as unknown as Record<string, unknown>)[first];
  return (second === undefined ? found : (found as Record<string, unknown>)[second]) as ReturnType<typeof callOf>;
}

const region: NativeRegion = addon().regionAllocate(4096, 'arguments');
const host: NativeHost = addon().hostOpen(null, null, 1, 4);

const good: Readonly<Record<Kind, unknown>> = {
  region,
  host,
  generations: null,
  flag: true,
  text: 'name',
  count: 1,
  id: 1,
  doubles: new Float64Array(0),
  int32s: new Int32Array(0),
  uint64s: new BigUint64Array(0),
  token: new Uint8Array(16),
  callback: () => undefined,
};

/** Values of every kind there is; those that are of the wanted kind are left out. */
const strangers: readonly (readonly [string, unknown, readonly Kind[]])[] = [
  ['undefined', undefined, []],
  ['null', null, ['generations']],
  ['a boolean', false, ['flag']],
  ['text', 'abc', ['text']],
  ['text with NUL', 'a\0b', []],
  ['long text', 'x'.repeat(5000), []],
  ['zero', 0, []],
  ['minus one', -1, []],
  ['a fraction', 1.5, []],
  ['NaN', NaN, []],
  ['infinity', Infinity, []],
  ['2^53', 2 ** 53, []],
  ['a bigint', 1n, []],
  ['a symbol', Symbol('x'), []],
  ['an object', {}, []],
  ['an array', [1, 2, 3], []],
  ['a function', () => undefined, ['callback']],
  ['a proxy', new Proxy({}, {}), []],
  ['a frozen object', Object.freeze({}), []],
  ['an ArrayBuffer', new ArrayBuffer(16), []],
  ['a DataView', new DataView(new ArrayBuffer(16)), []],
  ['a Float64Array', new Float64Array(3), ['doubles']],
  ['a Float32Array', new Float32Array(3), []],
  ['an Int32Array', new Int32Array(3), ['int32s']],
  ['a Uint32Array', new Uint32Array(3), []],
  ['a BigInt64Array', new BigInt64Array(3), []],
  ['a Uint8Array of 15', new Uint8Array(15), []],
  ['a native region', region, ['region']],
  ['a native host', host, ['host']],
  ['an object that poses as a region', Object.create(Object.getPrototypeOf(region)), []],
];

const cases = Object.entries(signatures).flatMap(([name, kinds]) =>
  kinds.flatMap((kind, index) =>
    strangers
      // Zero generations are none, and a peer's port of call may be any text.
      .filter(([, value, fine]) => !fine.includes(kind) && !(name === 'host.connect' && value === 0))
      .map(([what, value]) => ({ name, kinds, index, what, value })),
  ),
);

test.each(cases.map((each) => [`${each.name}: argument ${each.index} as ${each.what}`, each] as const))(
  '%s',
  (_, { name, kinds, index, value }) => {
    const values = kinds.map((kind, at) => (at === index ? value : good[kind]));
    const call = callOf(name);
    expect(() => call(...values)).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID', message: expect.stringMatching(/: expected /) }),
    );
  },
);

test.each(Object.entries(signatures).filter(([, kinds]) => kinds.length > 0))('%s without arguments', (name) => {
  const call = callOf(name);
  expect(() => call()).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID' }));
});

test('has a signature here for every function of the data plane', () => {
  const ofDataPlane = Object.keys(addon())
    .filter((name) => /^(?:region|program|wake|host|debug(?!Cuda))/.test(name))
    .flatMap((name) => (name === 'host' ? Object.keys(addon().host).map((each) => `host.${each}`) : [name]));
  expect(Object.keys(addon().cudaIpc)).toEqual(Object.keys(addon().host));
  expect(ofDataPlane.sort()).toEqual(Object.keys(signatures).sort());
});

describe('flat programs', () => {
  const check = (rectangles: number[], tables: number[], rows: number[]): void =>
    addon().programCheck(
      Float64Array.from(rectangles),
      Float64Array.from(tables),
      Int32Array.from(rows),
      Float64Array.of(100),
      Float64Array.of(100),
      new Float64Array(0),
    );
  const rectangle = [0, 0, -1, 0, 0, 0, 0, 10, 0, ...new Array<number>(15).fill(0)];

  test.each<[string, number[], number[], number[]]>([
    ['a rectangle cut short', rectangle.slice(1), [], []],
    ['a table cut short', rectangle, [1, 0, 0, 1, 1, 1], []],
    ['more rows than were passed', rectangle, [3, 0, 0, 1, 1, 1, 1], [1, 2, 3, 4, 5]],
    ['rows that overflow when multiplied', rectangle, [2 ** 53 - 1, 1, 1, 1, 1, 1, 1], [1]],
    ['rows that no table has', rectangle, [1, 0, 0, 1, 1, 1, 1], [1, 2, 3]],
    ['a negative number of rows', rectangle, [-1, 0, 0, 1, 1, 1, 1], []],
    ['six loops', rectangle.with(8, 6), [], []],
    ['minus one loops', rectangle.with(8, -1), [], []],
    ['a fragment of nothing', rectangle.with(7, 0), [], []],
    ['a fragment of NaN', rectangle.with(7, NaN), [], []],
    ['an offset of 2^53', rectangle.with(6, 2 ** 53), [], []],
    ['a table of -2', rectangle.with(2, -2), [], []],
  ])('%s', (_, rectangles, tables, rows) => {
    expect(() => check(rectangles, tables, rows)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID' }));
  });

  test('are read from detached and from shared arrays without harm', () => {
    const detached = Float64Array.from(rectangle);
    structuredClone(detached.buffer, { transfer: [detached.buffer] });
    const none = new Float64Array(0);
    const sizes = Float64Array.of(100);
    addon().programCheck(detached, none, new Int32Array(0), sizes, sizes, none);
    const shared = new Float64Array(new SharedArrayBuffer(rectangle.length * 8));
    shared.set(rectangle);
    addon().programCheck(shared, none, new Int32Array(0), sizes, sizes, none);
  });
});

test('unknown transfers and peers are refused by id', () => {
  for (const name of ['poll', 'bytes', 'error', 'cancel', 'forget'] as const) {
    expect(() => addon().host[name](host, 12_345)).toThrow(
      expect.objectContaining({
        code: 'ARGUMENT_INVALID',
        message: 'transfer: expected a transfer of this transport, got id 12345',
      }),
    );
  }
  for (const name of ['peerStatus', 'peerError'] as const) {
    expect(() => addon().host[name](host, 12_345)).toThrow(
      expect.objectContaining({
        code: 'ARGUMENT_INVALID',
        message: 'peer: expected a connected peer, got id 12345',
      }),
    );
  }
});
