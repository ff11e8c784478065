/**
 * Goal: a reservation takes everything or nothing, and never counts a block twice. Method: small pools where exactly one
 * question decides; the pool is compared before and after a refusal.
 */
import { HashOwners } from '../../lib/decode/hash-owners.js';
import { releaseReservation, tryReserve, type ReservationRequest } from '../../lib/decode/reservation.js';
import { ModelBlockPool } from '../../lib/testing/model-block-pool.js';
import { ModelSlotPool } from '../../lib/testing/model-slot-pool.js';

const hashes = BigInt64Array.of(11n, 12n);

/** Four blocks, of which `cached` have the prompt's names and no owner, and `held` belong to somebody else. */
function poolWith(cached: number, held: number): ModelBlockPool {
  const blocks = new ModelBlockPool({ poolSize: 5 });
  if (held > 0) blocks.allocate(held);
  if (cached > 0) {
    const named = blocks.allocate(cached)!;
    blocks.register(named, hashes.slice(0, cached), BigInt64Array.of(0n, 11n).slice(0, cached));
    blocks.release(named);
  }
  return blocks;
}

const request = (given: Partial<ReservationRequest> = {}): ReservationRequest => ({
  attemptId: 1,
  hashes,
  promptBlocks: 3,
  continuationBlocks: 0,
  growthBlocks: 0,
  needsSlot: false,
  ...given,
});

function reserve(blocks: ModelBlockPool, asked = request(), owners = new HashOwners(), reserved = 0, fits = true) {
  return tryReserve(asked, blocks, null, owners, reserved, () => fits);
}

test('a cached prefix that is about to be pinned is not room for the rest', () => {
  const full = poolWith(2, 2);
  const before = full.state();
  expect(reserve(full)).toBeNull();
  expect(full.state()).toEqual(before);
  expect(reserve(poolWith(2, 1))).toMatchObject({ cachedPrefixBlocks: 2, continuation: new Int32Array(0) });
});

test.each<[string, () => ReturnType<typeof reserve>]>([
  ['growth of its own', () => reserve(poolWith(0, 0), request({ growthBlocks: 2 }))],
  ['a continuation', () => reserve(poolWith(0, 0), request({ continuationBlocks: 2 }))],
  ['what others may still need', () => reserve(poolWith(0, 0), request(), undefined, 2)],
  ['bytes on their way', () => reserve(poolWith(0, 0), request(), undefined, 0, false)],
  ['a slot', () => tryReserve(request({ needsSlot: true }), poolWith(0, 0), null, new HashOwners(), 0, () => true)],
])('waits for %s', (_what, attempt) => {
  expect(attempt()).toBeNull();
});

test('waits while another import has one of its hashes on the way, and takes that one from the cache afterwards', () => {
  const blocks = poolWith(0, 0);
  const owners = new HashOwners();
  owners.reserve(hashes.slice(1), 0, 7);
  expect(reserve(blocks, request(), owners)).toBeNull();
  owners.drop(hashes.slice(1), 0, 7);
  expect(reserve(blocks, request(), owners)).toMatchObject({ cachedPrefixBlocks: 0 });
  expect([...owners.entries()]).toEqual([
    [11n, 1],
    [12n, 1],
  ]);
});

test('gives back all that it took', () => {
  const blocks = poolWith(1, 0);
  const slots = new ModelSlotPool({ maxRequests: 1 });
  const before = blocks.state().refs;
  const asked = request({ needsSlot: true, continuationBlocks: 1 });
  const reservation = tryReserve(asked, blocks, slots, new HashOwners(), 0, () => true)!;
  expect(reservation).toMatchObject({ cachedPrefixBlocks: 1, slot: expect.any(Number) });
  expect(slots.freeCount).toBe(0);
  releaseReservation(reservation, blocks, slots);
  expect(blocks.state().refs).toEqual(before);
  expect(slots.freeCount).toBe(1);
});
