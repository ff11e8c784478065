/**
 * Goal: the pin's state table and the ledger's bookkeeping. Method: every state meets every event with and without a push
 * in flight; then the ledger runs against a model pool, so that a reference too many or too few shows.
 */
import fc from 'fast-check';
import type { HandoffError } from '../../lib/errors.js';
import {
  PinLedger,
  pinTable,
  pinTransition,
  type Pin,
  type PinEvent,
  type PinLimits,
  type PinState,
} from '../../lib/prefill/pin-ledger.js';
import { ModelBlockPool } from '../../lib/testing/model-block-pool.js';
import { ModelSlotPool } from '../../lib/testing/model-slot-pool.js';

const states: readonly PinState[] = ['pinned', 'offered', 'claimed', 'draining', 'released'];
const events: readonly PinEvent[] = ['ready', 'claim', 'pushStart', 'pushSafe', 'release', 'expire'];

/** Next state for each state and event; `*` marks an end that gives memory back. Absent: cannot happen. */
const documented: Readonly<Record<PinState, Partial<Record<PinEvent, string>>>> = {
  pinned: { ready: 'offered', release: 'released*', expire: 'released*', pushStart: 'pinned', pushSafe: 'pinned' },
  offered: {
    claim: 'claimed',
    pushStart: 'offered',
    pushSafe: 'offered',
    release: 'released*',
    expire: 'released*',
  },
  claimed: { claim: 'claimed', pushStart: 'claimed', pushSafe: 'claimed', release: 'released*', expire: 'released*' },
  draining: { release: 'draining', expire: 'draining', ready: 'draining', pushSafe: 'released*' },
  released: {},
};

describe.each(states)('a pin that is %s', (state) => {
  describe.each(events)('meets %s', (event) => {
    test.each([false, true])('with a push in flight: %s', (pushing) => {
      const cell = documented[state][event];
      if (cell === undefined) {
        let error: HandoffError | null = null;
        try {
          pinTransition(state, event, pushing);
        } catch (thrown) {
          error = thrown as HandoffError;
        }
        expect(error).toMatchObject({
          code: 'INVARIANT',
          message: `broken invariant: a pin in state ${state} cannot ${event}`,
        });
        return;
      }
      const { next, effects } = pinTransition(state, event, pushing);
      const ends = cell.endsWith('*') && !(pushing && event !== 'pushSafe');
      expect(next).toBe(cell.endsWith('*') && !ends ? 'draining' : cell.replace('*', ''));
      expect(effects).toEqual(
        ends ? ['returnMemory', 'noticeReleased'] : event === 'ready' && state === 'pinned' ? ['noticeReady'] : [],
      );
    });
  });
});

test('the lists above are all states and events of the table', () => {
  expect(Object.keys(pinTable)).toEqual(states);
  expect(new Set(Object.values(pinTable).flatMap((row) => Object.keys(row)))).toEqual(new Set(events));
});

interface Fixture {
  readonly ledger: PinLedger;
  readonly pool: ModelBlockPool;
  readonly slots: ModelSlotPool;
  readonly released: [number, string][];
  readonly ready: number[];
}

function fixture(limits: Partial<PinLimits> = {}): Fixture {
  const pool = new ModelBlockPool({ poolSize: 33, policy: 'lru' });
  const slots = new ModelSlotPool({ maxRequests: 8 });
  const released: Fixture['released'] = [];
  const ready: number[] = [];
  const ledger = new PinLedger(
    pool,
    slots,
    { maxPinnedHandoffs: 4, maxPinnedBlocks: 8, ...limits },
    {
      released: (pin, reason) => released.push([pin.handoffId, reason]),
      ready: (pin) => ready.push(pin.handoffId),
    },
  );
  return { ledger, pool, slots, released, ready };
}

/** Pins `count` blocks as an engine would, which then drops its own references. */
function pin({ ledger, pool, slots }: Fixture, requestId: string, count = 2, ready: Pin['ready'] = null): Pin {
  const blocks = pool.allocate(count)!;
  const pinned = ledger.pin(requestId, blocks, slots.allocate(), 0, ready);
  pool.release(blocks);
  return pinned;
}

function codeOf(call: () => unknown): string | null {
  try {
    call();
    return null;
  } catch (error) {
    return (error as HandoffError).code;
  }
}

describe('the ledger', () => {
  test('holds one reference to each block until the end, and gives blocks and slot back once', () => {
    const f = fixture();
    const pinned = pin(f, 'a');
    expect(f.pool.freeCount).toBe(30);
    expect(f.ledger.pinnedBlocks).toBe(2);
    f.ledger.end(pinned, 'released');
    expect(f.pool.freeCount).toBe(32);
    expect(f.slots.freeCount).toBe(8);
    expect([f.ledger.size, f.ledger.pinnedBlocks]).toEqual([0, 0]);
    expect(codeOf(() => f.ledger.end(pinned, 'released'))).toBe('INVARIANT');
    expect(f.released).toEqual([[1, 'released']]);
    expect(f.pool.freeCount).toBe(32);
  });

  test('ends a pin that is being pushed when the push is quiet, with the first reason', () => {
    const f = fixture();
    const pinned = pin(f, 'a');
    f.ledger.pushStarted(pinned);
    f.ledger.end(pinned, 'expired');
    f.ledger.end(pinned, 'released');
    expect([pinned.state, f.pool.freeCount]).toEqual(['draining', 30]);
    f.ledger.pushSafe(pinned);
    expect([pinned.state, f.pool.freeCount]).toEqual(['released', 32]);
    expect(f.released).toEqual([[1, 'expired']]);
  });

  test('counts permits and pins against both limits, and refuses what can never fit', () => {
    const f = fixture({ maxPinnedHandoffs: 2, maxPinnedBlocks: 6 });
    expect(codeOf(() => f.ledger.tryPermit('huge', 7))).toBe('CAPACITY_NEVER_FITS');
    expect(f.ledger.tryPermit('a', 5)).toBe(true);
    expect(f.ledger.tryPermit('a', 5)).toBe(true);
    expect(f.ledger.permitCount).toBe(1);
    expect(f.ledger.tryPermit('b', 2)).toBe(false);
    expect(f.ledger.tryPermit('b', 1)).toBe(true);
    expect(f.ledger.tryPermit('c', 0)).toBe(false);
    expect(f.ledger.dropPermit('b')).toBe(true);
    expect(f.ledger.dropPermit('b')).toBe(false);
    expect(pin(f, 'a', 5).state).toBe('offered');
    expect(f.ledger.permitCount).toBe(0);
    expect(codeOf(() => pin(f, 'd', 2))).toBe('PIN_LIMIT');
    expect(f.ledger.size).toBe(1);
    expect(pin(f, 'e', 1).handoffId).toBe(2);
    expect(codeOf(() => pin(f, 'g', 0))).toBe('PIN_LIMIT');
  });

  test('refuses a second pin of a living label and changes nothing', () => {
    const f = fixture();
    const first = pin(f, 'a');
    const blocks = f.pool.allocate(1)!;
    const before = f.pool.digest();
    expect(codeOf(() => f.ledger.pin('a', blocks, null, 0, null))).toBe('DUPLICATE_REQUEST');
    expect(f.pool.digest()).toBe(before);
    expect(f.ledger.getByRequest('a')).toBe(first);
  });

  test('offers a pin when its fence fires, once, and not after its end', () => {
    const f = fixture();
    let fired = false;
    const fence = { isComplete: () => fired };
    const first = pin(f, 'a', 1, fence);
    const second = pin(f, 'b', 1, fence);
    expect(f.ledger.claim(first, 'x')).toBe(false);
    f.ledger.pollReady();
    expect(f.ready).toEqual([]);
    f.ledger.end(second, 'released');
    fired = true;
    f.ledger.pollReady();
    f.ledger.pollReady();
    expect(f.ready).toEqual([1]);
    expect(first.state).toBe('offered');
  });

  test('first claim wins; a terminated owner claims nothing more', () => {
    const f = fixture();
    const [a, b] = [pin(f, 'a'), pin(f, 'b')];
    expect(f.ledger.claim(a, 'x')).toBe(true);
    expect(f.ledger.claim(a, 'x')).toBe(true);
    expect(f.ledger.claim(a, 'y')).toBe(false);
    expect(f.ledger.claim(b, 'y')).toBe(true);
    expect(f.ledger.terminateOwner('x')).toEqual([a]);
    expect(f.ledger.isTerminated('x')).toBe(true);
    expect(f.ledger.claim(a, 'x')).toBe(false);
    f.ledger.end(a, 'attested');
    expect(f.ledger.claim(a, 'y')).toBe(false);
  });

  test('counts nothing twice, whatever the order of calls', () => {
    const call = fc.constantFrom('pin', 'permit', 'drop', 'pushStart', 'pushSafe', 'release', 'expire', 'claim');
    fc.assert(
      fc.property(fc.array(fc.tuple(call, fc.nat(4), fc.nat(3)), { maxLength: 60 }), (calls) => {
        const f = fixture();
        const living = new Map<string, Pin>();
        const permits = new Map<string, number>();
        for (const [what, who, count] of calls) {
          const id = `r${who}`;
          const known = living.get(id);
          if (what === 'pin') {
            const blocks = [...living.values()].reduce((sum, each) => sum + each.blocks.length, 0);
            const others = [...permits].filter(([other]) => other !== id);
            const fits =
              living.size + others.length < 4 && blocks + others.reduce((sum, [, n]) => sum + n, 0) + count <= 8;
            const mine = f.pool.allocate(count)!;
            const code = codeOf(() => living.set(id, f.ledger.pin(id, mine, null, 0, null)));
            f.pool.release(mine);
            expect(code).toBe(known !== undefined ? 'DUPLICATE_REQUEST' : fits ? null : 'PIN_LIMIT');
            if (known === undefined) permits.delete(id);
          } else if (what === 'permit') {
            if (f.ledger.tryPermit(id, count) && !permits.has(id)) permits.set(id, count);
          } else if (what === 'drop') {
            expect(f.ledger.dropPermit(id)).toBe(permits.delete(id));
          } else if (known === undefined) {
            continue;
          } else if (what === 'pushStart') {
            if (!known.pushing && known.state !== 'draining') f.ledger.pushStarted(known);
          } else if (what === 'pushSafe') {
            if (known.pushing) f.ledger.pushSafe(known);
          } else if (what === 'claim') {
            f.ledger.claim(known, `owner ${count}`);
          } else {
            f.ledger.end(known, what === 'expire' ? 'expired' : 'released');
          }
          if (living.get(id)?.state === 'released') living.delete(id);
          const held = [...living.values()].reduce((sum, each) => sum + each.blocks.length, 0);
          expect(f.ledger.size).toBe(living.size);
          expect(f.ledger.pinnedBlocks).toBe(held);
          expect(f.ledger.permitCount).toBe(permits.size);
          expect(f.pool.freeCount).toBe(32 - held);
        }
      }),
    );
  });
});
