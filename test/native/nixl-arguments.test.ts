/**
 * Promise: no argument of any kind to any native function of the NIXL transport does more than throw `ARGUMENT_INVALID`,
 * and nothing that is asked for out of turn does either. Needs no NIXL: what loads one is not started.
 */
import { addon } from '../../lib/native/addon.js';
import type { NativeNixl, NixlAddon } from '../../lib/native/nixl-types.js';
import { useFakeCuda } from '../support/fake-cuda.js';

const driver = useFakeCuda()['STATE_HANDOFF_CUDA'] as string;
const gpuRegion = addon().cudaRegionAllocate(driver, 0, 4096, false);
const tuning = new Float64Array([0, 0, 1, 0, 0, 0, 0, 1]);
const region = addon().regionAllocate(4096, 'arguments');
const open = (): NativeNixl => addon().nixlOpen('/nowhere.so', 'test', true, 1, 4096, 4096, tuning, 4, null);
const nixl = open();

const good = {
  nixl,
  region,
  gpuRegion,
  text: 'name',
  flag: true,
  count: 1,
  index: 0,
  id: 1,
  doubles: new Float64Array(0),
  tuning,
  int32s: new Int32Array(0),
  uint64s: new BigUint64Array(0),
  bytes: new Uint8Array(4),
  kernels: null,
} as const;
type Kind = keyof typeof good;

const signatures: { readonly [Name in keyof NixlAddon]: readonly Kind[] } = {
  nixlOpen: ['text', 'text', 'flag', 'count', 'count', 'count', 'tuning', 'count', 'kernels'],
  nixlRegister: ['nixl', 'region'],
  nixlRegisterCuda: ['nixl', 'gpuRegion'],
  nixlStart: ['nixl', 'flag'],
  nixlReadiness: ['nixl'],
  nixlStartError: ['nixl'],
  nixlGrant: ['nixl'],
  nixlConnect: ['nixl', 'bytes', 'uint64s', 'uint64s'],
  nixlPeerStatus: ['nixl', 'id'],
  nixlPeerError: ['nixl', 'id'],
  nixlDisconnect: ['nixl', 'id'],
  nixlBegin: ['nixl', 'id', 'doubles', 'doubles', 'int32s', 'index', 'count'],
  nixlPoll: ['nixl', 'id'],
  nixlBytes: ['nixl', 'id'],
  nixlError: ['nixl', 'id'],
  nixlCancel: ['nixl', 'id'],
  nixlAttest: ['nixl', 'id'],
  nixlTake: ['nixl'],
  nixlForget: ['nixl', 'id'],
  nixlClose: ['nixl'],
  nixlQuiet: ['nixl'],
  nixlCounters: ['nixl'],
};

const strangers: readonly (readonly [string, unknown, readonly Kind[]])[] = [
  ['undefined', undefined, []],
  ['null', null, ['kernels']],
  ['a boolean', false, ['flag']],
  ['text', 'abc', ['text']],
  ['text with NUL', 'a\0b', []],
  ['minus one', -1, []],
  ['a fraction', 1.5, []],
  ['NaN', NaN, []],
  ['2^53', 2 ** 53, []],
  ['a bigint', 1n, []],
  ['an object', {}, []],
  ['a Float64Array of 3', new Float64Array(3), ['doubles']],
  ['an Int32Array', new Int32Array(3), ['int32s']],
  ['a BigInt64Array', new BigInt64Array(3), []],
  ['a native region', region, ['region']],
  ['a native GPU region', gpuRegion, ['gpuRegion']],
  ['no bytes', new Uint8Array(0), []],
  ['a native host', addon().hostOpen(null, null, 1, 4), []],
];

const cases = Object.entries(signatures).flatMap(([name, kinds]) =>
  kinds.flatMap((kind, index) =>
    strangers
      .filter(([, , fine]) => !fine.includes(kind))
      .map(([what, value]) => [`${name}: argument ${index} as ${what}`, { name, kinds, index, value }] as const),
  ),
);

const refused = expect.objectContaining({ code: 'ARGUMENT_INVALID', message: expect.stringMatching(/: expected /) });

test.each(cases)('%s', (_, { name, kinds, index, value }) => {
  const values = kinds.map((kind, at) => (at === index ? value : good[kind]));
  const call = addon()[name as keyof NixlAddon] as (...values: unknown[]) => unknown;
  expect(() => call(...values)).toThrow(refused);
});

test('what needs a transport that is ready, a peer or a transfer is refused before there is one', () => {
  expect(() => addon().nixlGrant(nixl)).toThrow(refused);
  expect(() => addon().nixlConnect(nixl, good.bytes, BigUint64Array.of(0n, 1n, 0n, 0n), new BigUint64Array(6))).toThrow(
    refused,
  );
  for (const name of ['nixlPoll', 'nixlBytes', 'nixlError', 'nixlCancel', 'nixlAttest', 'nixlForget'] as const) {
    expect(() => addon()[name](nixl, 12_345)).toThrow(refused);
  }
  for (const name of ['nixlPeerStatus', 'nixlPeerError', 'nixlDisconnect'] as const) {
    expect(() => addon()[name](nixl, 12_345)).toThrow(refused);
  }
  expect(() => addon().nixlBegin(nixl, 9, good.doubles, good.doubles, good.int32s, 0, 1)).toThrow(refused);
});

test.each<[string, BigUint64Array, BigUint64Array]>([
  ['no region', new BigUint64Array(0), new BigUint64Array(6)],
  ['a region of three values', new BigUint64Array(3), new BigUint64Array(6)],
  ['a region of nothing', BigUint64Array.of(4096n, 0n, 0n, 0n), new BigUint64Array(6)],
  ['a region of 2^53 bytes', BigUint64Array.of(0n, 2n ** 53n, 0n, 0n), new BigUint64Array(6)],
  ['a region of another kind', BigUint64Array.of(0n, 1n, 2n, 0n), new BigUint64Array(6)],
  ['a region beyond all addresses', BigUint64Array.of(2n ** 64n - 1n, 4096n, 0n, 0n), new BigUint64Array(6)],
  ['two values of staging', BigUint64Array.of(0n, 1n, 0n, 0n), new BigUint64Array(2)],
  ['2,000 slots', BigUint64Array.of(0n, 1n, 0n, 0n), BigUint64Array.of(0n, 2000n, 4096n, 0n, 0n, 0n)],
  ['slots of nothing', BigUint64Array.of(0n, 1n, 0n, 0n), BigUint64Array.of(0n, 1n, 0n, 0n, 0n, 0n)],
  ...Object.entries({
    'headers beyond all addresses': [2n ** 64n - 1n, 1n, 4096n, 0n, 0n, 0n],
    'slots beyond all addresses': [0n, 1n, 4096n, 2n ** 64n - 1n, 0n, 0n],
    'slots in another kind of memory': [0n, 1n, 4096n, 0n, 2n, 0n],
  }).map(
    ([what, values]) =>
      [what, BigUint64Array.of(0n, 1n, 0n, 0n), BigUint64Array.from(values)] as [
        string,
        BigUint64Array,
        BigUint64Array,
      ],
  ),
])('a grant with %s is refused', (_, ranges, staging) => {
  expect(() => addon().nixlConnect(nixl, good.bytes, ranges, staging)).toThrow(
    expect.objectContaining({ code: 'ARGUMENT_INVALID' }),
  );
});

test('a transport that was closed refuses everything and closes again', () => {
  const closed = open();
  addon().nixlClose(closed);
  addon().nixlClose(closed);
  expect(addon().nixlQuiet(closed)).toBe(true);
  const over = expect.objectContaining({ code: 'CLOSED' });
  expect(() => addon().nixlRegister(closed, region)).toThrow(over);
  expect(() => addon().nixlStart(closed, true)).toThrow(over);
  expect(() => addon().nixlGrant(closed)).toThrow(over);
  expect(() => addon().nixlBegin(closed, 1, good.doubles, good.doubles, good.int32s, 0, 1)).toThrow(over);
});
