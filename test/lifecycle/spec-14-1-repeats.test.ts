/**
 * Around spec 14.1: what must not begin yet, what never begins, and what must not begin twice.
 */
import { faults } from '../../lib/testing/index.js';
import { createWorld, poolState, promptOf, settle, Instance } from '../support/lifecycle-fixture.js';
import { onItsWay, twoSided } from '../support/lifecycle-in-flight.js';

test('a transfer starts only when no earlier work of the engine can touch its target', async () => {
  const { network, prefill, decode, begun } = await createWorld({ quiescentAfterMs: () => 5 });
  const prompt = promptOf(4);
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
  network.advance(4);
  decode.poll();
  expect(begun).toEqual([]);
  network.advance(1);
  decode.poll();
  expect(begun).toHaveLength(1);
  network.advance(1);
  await decode.step(3);
  expect(outcome).toMatchObject({ settled: 1, error: null });
});

test('aborted before it began, a transfer never begins and its memory is back at once', async () => {
  const { network, prefill, decode, begun } = await createWorld();
  network.planNextConnect({ outcome: 'ready', afterMs: 5 });
  const prompt = promptOf(4);
  const before = poolState(decode.engine.blocks);
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
  decode.handoff.abortKvHandoff(1);
  decode.poll();
  await settle();
  expect(outcome).toMatchObject({ settled: 1, error: { code: 'ABORTED' } });
  expect(poolState(decode.engine.blocks)).toEqual(before);
  network.advance(10);
  decode.poll();
  expect(begun).toEqual([]);
});

describe('a handoff that comes twice', () => {
  test('is refused, and the source is not told that it was read while the first still reads it', async () => {
    const { network, prefill, decode, prompt, ticket, outcome } = await onItsWay(faults.delay(5));
    prefill.releaseWhenRead(decode);
    const again = decode.add(7, prompt, ticket);
    await settle();
    expect(again).toMatchObject({ settled: 1, error: { code: 'DUPLICATE_REQUEST' } });
    decode.handoff.rejectKvHandoff(7, ticket.kvMeta);
    expect(decode.seen('kvReadDone')).toEqual([]);
    expect(prefill.handoff.inspect().pins).toHaveLength(1);
    network.advance(10);
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(prefill.handoff.inspect().pins).toEqual([]);
  });

  test('under another label is refused too', async () => {
    const { network, prefill, decode, prompt, ticket, outcome } = await onItsWay(faults.delay(5));
    prefill.releaseWhenRead(decode);
    const again = decode.add(8, prompt, ticket);
    network.advance(10);
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
    expect(again).toMatchObject({ settled: 1, error: { code: 'DUPLICATE_REQUEST' } });
    expect(decode.seen('kvReadDone')).toHaveLength(1);
  });

  test('another handoff under a living label is refused and let go', async () => {
    const { prefill, decode } = await createWorld();
    const [one, two] = [promptOf(4, 1), promptOf(4, 2)];
    decode.add(7, one, prefill.handOver(7, one));
    decode.add(7, two, prefill.handOver(8, two));
    await settle();
    expect(decode.seen('kvReadDone')).toMatchObject([{ requestId: 7, source: { handoffId: 2 } }]);
  });

  test('a handoff that was cancelled while it waited can come again', async () => {
    const { network, prefill, decode } = await createWorld();
    decode.arrangeBlocks();
    const prompt = promptOf(4);
    const ticket = prefill.handOver(7, prompt);
    decode.add(7, prompt, ticket);
    decode.handoff.abortKvHandoff(7);
    decode.engine.blocks.release(Int32Array.of(10, 11));
    const again = decode.add(7, prompt, ticket);
    network.advance(1);
    await decode.step(3);
    expect(again).toMatchObject({ settled: 1, error: null });
  });
});
test('instances that give no name are told apart: each push reaches its own', async () => {
  const { network, prefill, decode } = await createWorld({}, {}, twoSided);
  const other = await Instance.create(network, 'decode', twoSided);
  const outcomes = [decode, other].map((target, index) => {
    const prompt = promptOf(4, index + 1);
    const outcome = target.add(1, prompt, prefill.handOver(index, prompt));
    prefill.handoff.pushHandoffKv(index, target.handoff.instanceMeta);
    return outcome;
  });
  network.advance(1);
  for (const instance of [decode, other]) await instance.step(3);
  expect(outcomes).toMatchObject([
    { settled: 1, error: null },
    { settled: 1, error: null },
  ]);
});

test('sources that give no name are told apart: each import reads its own', async () => {
  const { network, prefill, decode } = await createWorld();
  const other = await Instance.create(network, 'prefill');
  const outcomes = [prefill, other].map((source, index) => {
    const prompt = promptOf(3, index + 1);
    const { kvMeta, blockIds } = source.handOver(1, prompt);
    return decode.add(index, prompt, { blockIds, kvMeta: { ...kvMeta, handoff: null } });
  });
  network.advance(1);
  await decode.step(3); // the engine looks at every byte
  expect(outcomes).toMatchObject([
    { settled: 1, error: null },
    { settled: 1, error: null },
  ]);
});
