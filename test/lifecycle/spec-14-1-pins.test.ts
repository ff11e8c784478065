/**
 * Around spec 14.1: pins from capture to release; readiness, claims, bounds, retention and late readers (I1, I9).
 */
import { PinLedger } from '../../lib/prefill/pin-ledger.js';
import { ModelBlockPool } from '../../lib/testing/index.js';
import { encodeTicket } from '../../lib/ticket-codec.js';
import { compute, createWorld, finishedOf, poolState, promptOf, Instance } from '../support/lifecycle-fixture.js';
import { twoSided } from '../support/lifecycle-in-flight.js';

describe('pins', () => {
  test('a ticket is ready when its fence has fired, and a push waits for it', async () => {
    const { network, prefill, decode, begun } = await createWorld({}, { readyAfterMs: () => 10 }, twoSided);
    const run = compute(prefill.leader, 1, promptOf(4));
    const prepared = prefill.handoff.prepareHandoffMetadataBatch([finishedOf(run)]);
    const ticket = prefill.handoff.captureHandoffMeta(1, prepared, { ready: run.ready });
    prefill.engine.endPrefill(run, true);
    expect(prefill.handoff.inspect().pins).toMatchObject([{ state: 'pinned' }]);
    expect(prefill.handoff.claimHandoff(ticket.handoff!, 'decode/boot-1')).toBe(false);
    expect(() => encodeTicket(ticket)).toThrow(); // it stays at home until then
    const outcome = decode.add(1, promptOf(4), ticket);
    prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta);
    network.advance(9);
    prefill.poll();
    decode.poll();
    expect(begun).toEqual([]);
    expect(prefill.seen('ticketReady')).toEqual([]);
    network.advance(1);
    prefill.poll();
    decode.poll();
    expect(prefill.seen('ticketReady')).toMatchObject([{ requestId: 1 }]);
    expect(begun).toHaveLength(1);
    network.advance(1);
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
  });

  test('the first claim wins, and an owner attested dead loses what it has and gets no more', async () => {
    const { prefill } = await createWorld();
    const [one, two] = [1, 2].map((id) => prefill.handOver(id, promptOf(4, id)).handoff!) as [never, never];
    expect(prefill.handoff.claimHandoff(one, 'a')).toBe(true);
    expect(prefill.handoff.claimHandoff(one, 'a')).toBe(true);
    expect(prefill.handoff.claimHandoff(one, 'b')).toBe(false);
    expect(prefill.handoff.releaseOwner('a')).toBe(1);
    expect(prefill.seen('released')).toMatchObject([{ requestId: 1, reason: 'attested' }]);
    expect(prefill.handoff.claimHandoff(two, 'a')).toBe(false);
    expect(prefill.handoff.claimHandoff(two, 'b')).toBe(true);
    expect(prefill.handoff.releaseOwner('a')).toBe(0);
  });

  test('bounds are taken before the prefill, and never exceeded', async () => {
    const limits = { maxPinnedHandoffs: 2, maxPinnedBlocks: 3 };
    const { prefill } = await createWorld({}, { handoff: { limits } });
    const { handoff } = prefill;
    expect(() => handoff.tryPinPermit(1, 4)).toThrow(expect.objectContaining({ code: 'CAPACITY_NEVER_FITS' }));
    expect(handoff.tryPinPermit(1, 2)).toBe(true);
    expect(handoff.tryPinPermit(1, 2)).toBe(true);
    expect(handoff.tryPinPermit(2, 2)).toBe(false);
    expect(handoff.tryPinPermit(2, 1)).toBe(true);
    expect(handoff.tryPinPermit(3, 0)).toBe(false);
    // Without a permit a third is refused with nothing pinned.
    const before = poolState(prefill.engine.blocks).refs;
    const run = compute(prefill.leader, 3, promptOf(3, 3));
    const prepared = handoff.prepareHandoffMetadataBatch([finishedOf(run)]);
    expect(() => handoff.captureHandoffMeta(3, prepared)).toThrow(expect.objectContaining({ code: 'PIN_LIMIT' }));
    prefill.engine.endPrefill(run, false);
    expect(poolState(prefill.engine.blocks).refs).toEqual(before);
    prefill.handOver(1, promptOf(6, 1));
    prefill.handOver(2, promptOf(3, 2));
    expect(handoff.dropPinPermit(2)).toBe(false);
    expect(handoff.tryPinPermit(3, 1)).toBe(false);
    handoff.releaseHandoffBlocks(2);
    expect(handoff.tryPinPermit(3, 1)).toBe(true);
    expect(handoff.dropPinPermit(3)).toBe(true);
  });

  test('one request has one pin, and one that was not prepared has none', async () => {
    const { prefill } = await createWorld();
    prefill.handOver(1, promptOf(4));
    const run = compute(prefill.leader, 1, promptOf(4));
    const prepared = prefill.handoff.prepareHandoffMetadataBatch([finishedOf(run)]);
    expect(() => prefill.handoff.captureHandoffMeta(1, prepared)).toThrow(
      expect.objectContaining({ code: 'DUPLICATE_REQUEST' }),
    );
    expect(() => prefill.handoff.captureHandoffMeta(5, prepared)).toThrow(
      expect.objectContaining({ code: 'UNKNOWN_REQUEST' }),
    );
  });

  test('a retention limit ends pins whose late readers are noticed, and only shows the others', async () => {
    const handoff = { deadlines: { pinMs: 100 } };
    const { network, prefill } = await createWorld({}, { handoff });
    prefill.handOver(1, promptOf(4));
    network.advance(99);
    prefill.poll();
    expect(prefill.handoff.inspect().pins).toHaveLength(1);
    network.advance(1);
    prefill.poll();
    expect(prefill.handoff.inspect().pins).toEqual([]);
    expect(prefill.seen('released')).toMatchObject([{ reason: 'expired' }]);

    // A transport without generations (I9): the pin is overdue and stays.
    const blind = await Instance.create(network, 'prefill', { handoff });
    Object.defineProperty(blind.leader.transport.capabilities, 'detectsLateReads', { value: false });
    blind.handOver(1, promptOf(4));
    network.advance(1_000_000);
    blind.poll();
    blind.poll();
    expect(blind.seen('pinOverdue')).toMatchObject([{ requestId: 1, ageMs: 1_000_000, owner: null }]);
    expect(blind.handoff.inspect().pins).toMatchObject([{ state: 'offered', overdue: true }]);
  });

  test('a late reader of an expired pin gets no byte', async () => {
    const { network, prefill, decode } = await createWorld({}, { handoff: { deadlines: { pinMs: 100 } } });
    const prompt = promptOf(3);
    const ticket = prefill.handOver(1, prompt);
    network.advance(100);
    prefill.poll();
    prefill.handOver(2, promptOf(3, 2)); // the block has another owner now
    const outcome = decode.add(1, prompt, ticket);
    network.advance(1);
    await decode.step(2);
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'HANDOFF_EXPIRED' } });
    expect(decode.engine.admitted).toEqual([]);
  });

  test('the ledger of a rank counts what is pinned and permitted', () => {
    const blocks = new ModelBlockPool({ poolSize: 8 });
    const ledger = new PinLedger(
      blocks,
      null,
      { maxPinnedHandoffs: 4, maxPinnedBlocks: 6 },
      {
        released: () => undefined,
        ready: () => undefined,
      },
    );
    const ids = blocks.allocate(2)!;
    const pin = ledger.pin('a', ids, null, 0, null);
    ledger.tryPermit('b', 3);
    expect([ledger.size, ledger.pinnedBlocks, ledger.permitCount]).toEqual([1, 2, 1]);
    ledger.end(pin, 'released');
    expect([ledger.size, ledger.pinnedBlocks]).toEqual([0, 0]);
    expect(() => ledger.end(pin, 'released')).toThrow(expect.objectContaining({ code: 'INVARIANT' }));
  });
});
