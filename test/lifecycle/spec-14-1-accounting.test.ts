/**
 * Around spec 14.1: what an import counted for must be given back, however it ended, or later imports wait for nothing.
 *
 * Each test ends an import in one way and then asks for the very same hashes, blocks, growth, bytes or label again.
 */
import { faults } from '../../lib/testing/index.js';
import { createWorld, hashesOf, poolState, promptOf, settle, twoTokens } from '../support/lifecycle-fixture.js';

describe('hashes', () => {
  test.each([
    ['safely', faults.error('now')],
    ['with memory in doubt', faults.errorWhileWriting('never')],
  ])('of an import that failed %s can be brought by the next', async (_how, plan) => {
    const { network, prefill, decode, begun } = await createWorld();
    network.planNext(plan);
    const prompt = promptOf(8);
    const failed = decode.add(1, prompt, prefill.handOver(1, prompt));
    network.advance(2);
    decode.poll();
    await settle();
    expect(failed.settled).toBe(1);
    expect(decode.handoff.inspect().hashOwners).toEqual([]);
    const again = decode.add(2, prompt, prefill.handOver(2, prompt));
    expect(begun).toHaveLength(2);
    network.advance(2);
    await decode.step(3);
    expect(again).toMatchObject({ settled: 1, error: null });
  });

  test('that the engine named itself meanwhile stay with the block that has them, and end the chain', async () => {
    const { network, prefill, decode } = await createWorld();
    network.planNext(faults.delay(5));
    const prompt = promptOf(8);
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
    const hashes = hashesOf(prompt);
    const own = decode.engine.blocks.allocate(1)!;
    decode.engine.blocks.register(own, hashes.slice(0, 1), BigInt64Array.of(0n));
    network.advance(6);
    decode.poll();
    const [first, second] = decode.handoff.inspect().imports[0]!.blocks as [number, number];
    expect(decode.engine.blocks.lookup(hashes[0]!)).toBe(own[0]);
    expect(decode.engine.blocks.hashOf(first)).toBe(-1n);
    // Its parent would be another block, which nobody here holds.
    expect(decode.engine.blocks.lookup(hashes[1]!)).toBe(-1);
    expect(decode.engine.blocks.hashOf(second)).toBe(-1n);
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
  });
});

test('growth that an import might have needed is free again after every end', async () => {
  const { network, prefill, decode, begun } = await createWorld();
  // One block for the prompt and its first token, and one to grow into: room for exactly one request at a time.
  decode.arrangeBlocks([10], [11]);
  const params = { num_tokens_to_generate: 4 };
  const before = poolState(decode.engine.blocks).refs;
  const start = (id: number) => decode.add(id, promptOf(3, id), prefill.handOver(id, promptOf(3, id)), params);
  const ends: (() => void)[] = [
    () => decode.handoff.abortKvHandoff(1), // on its way
    () => undefined, // fails by itself
    () => {
      decode.engine.batchIsFull = true;
      decode.poll();
      decode.handoff.abortKvHandoff(3); // agreed
      decode.engine.batchIsFull = false;
    },
    () => undefined, // runs to its end
    () => undefined, // ends with its first token
  ];
  for (const [index, end] of ends.entries()) {
    const id = index + 1;
    if (id === 2) network.planNext(faults.error('now'));
    if (id === 5) decode.engine.stopTokens.add(9);
    const outcome =
      id === 5
        ? decode.add(id, promptOf(3, id), prefill.handOver(id, promptOf(3, id), { resumeTokens: [9] }), params)
        : start(id);
    expect(begun).toHaveLength(id);
    // A second one would fit in blocks, and is kept out by what the first may grow to.
    const behind = decode.add(100, promptOf(3, 100), prefill.handOver(100 + id, promptOf(3, 100)), params);
    decode.poll();
    expect(decode.handoff.load().queued).toBe(1);
    decode.handoff.abortKvHandoff(100);
    network.advance(1);
    end();
    await decode.step(5);
    expect(outcome.settled).toBe(1);
    await settle();
    expect(behind.error).toMatchObject({ code: 'ABORTED' });
    expect(poolState(decode.engine.blocks).refs).toEqual(before);
  }
});

test('imports on their way are bounded in bytes, and each end makes room for the next', async () => {
  const { network, prefill, decode, begun } = await createWorld({ handoff: { limits: { maxInFlightBytes: 600 } } });
  // A block of the small model takes 2 planes × 2 layers × 4 tokens × 4 heads × 4 bytes = 256 bytes.
  const ids = [1, 2, 3, 4, 5];
  for (let i = 0; i < ids.length; i += 1)
    network.planNext(i === 1 ? faults.error('now') : faults.delay(i === 2 ? 100 : 5));
  const outcomes = ids.map((id) => decode.add(id, promptOf(4, id), prefill.handOver(id, promptOf(4, id))));
  expect(begun).toHaveLength(2); // 512; a third would make 768
  network.advance(1);
  decode.poll(); // the second failed
  expect(begun).toHaveLength(3);
  network.advance(5);
  decode.poll();
  expect(begun).toHaveLength(4); // the first is here
  decode.handoff.abortKvHandoff(3);
  network.advance(10);
  decode.poll();
  expect(begun).toHaveLength(5);
  network.advance(10);
  await decode.step(4);
  expect(outcomes.map(({ settled }) => settled)).toEqual([1, 1, 1, 1, 1]);
  // However large, one may always be on its way.
  const huge = decode.add(9, promptOf(16, 9), prefill.handOver(9, promptOf(16, 9)));
  expect(begun).toHaveLength(6);
  network.advance(1);
  await decode.step(3);
  expect(huge).toMatchObject({ settled: 1, error: null });
});

test('memory that an end frees at the scheduling point starts what waits there and then', async () => {
  const { network, prefill, decode, begun } = await createWorld();
  decode.arrangeBlocks([10, 11]);
  const [first, second] = [promptOf(6, 1), promptOf(6, 2)];
  decode.add(1, first, prefill.handOver(1, first), { num_tokens_to_generate: 1 });
  decode.add(2, second, prefill.handOver(2, second), { num_tokens_to_generate: 1 });
  network.advance(1);
  decode.poll();
  expect(begun).toHaveLength(1);
  decode.schedule();
  expect(begun).toHaveLength(2);
  network.advance(1);
  await decode.step();
});

test('a queue deadline whose record comes after the start has lost', async () => {
  const { network, prefill, decode } = await createWorld({ tpSize: 2, handoff: { deadlines: { queueMs: 100 } } });
  decode.arrangeBlocks([10]);
  for (const { transport } of decode.ranks)
    network.planNext(faults.error('now'), (_source, target) => target === transport);
  const [first, second] = [promptOf(3, 1), promptOf(3, 2)];
  const failed = decode.add(1, first, prefill.handOver(1, first), { num_tokens_to_generate: 1 });
  const waiting = decode.add(2, second, prefill.handOver(2, second), { num_tokens_to_generate: 1 });
  decode.schedule();
  network.advance(1);
  decode.poll(); // the first one's end is decided
  network.advance(100);
  decode.poll(); // and the second one's deadline, after it
  decode.schedule(); // one frame carries both
  await settle();
  expect(failed).toMatchObject({ settled: 1, error: { code: 'TRANSFER_FAILED' } });
  expect(waiting.settled).toBe(0);
  network.advance(1);
  await decode.step(3);
  expect(waiting).toMatchObject({ settled: 1, error: null });
});

describe('the engine’s own end of an admitted request', () => {
  test('as a failure rejects the promise and tells the control plane once', async () => {
    const { network, prefill, decode } = await createWorld();
    const prompt = promptOf(4);
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
    network.advance(1);
    decode.poll();
    expect(() => decode.handoff.finishRequest(1, { ...finished })).toThrow(
      expect.objectContaining({ code: 'UNKNOWN_REQUEST' }),
    );
    decode.schedule();
    decode.handoff.failRequest(1, new Error('the device fell over'));
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'ENGINE_FAILED', message: 'the device fell over' } });
    expect(decode.seen('requestError')).toMatchObject([{ requestId: 1, sourceSafe: true }]);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    for (const end of [
      () => decode.handoff.failRequest(1, new Error('again')),
      () => decode.handoff.finishRequest(1, finished),
    ])
      expect(end).toThrow(expect.objectContaining({ code: 'UNKNOWN_REQUEST' }));
  });

  const finished = { generatedTokens: [1], generatedLogProbs: null, finishReason: 'stop' as const, cachedTokens: 4 };
});

test('a label is free again once its request has ended, and not before', async () => {
  const { network, prefill, decode } = await createWorld();
  const [one, two] = [promptOf(4, 1), promptOf(4, 2)];
  const first = decode.add(1, one, prefill.handOver(1, one), { num_tokens_to_generate: 5 });
  const refused = decode.add(1, two, prefill.handOver(2, two));
  network.advance(1);
  await decode.step();
  const running = decode.add(1, two, prefill.handOver(3, two));
  await decode.step(5);
  const after = decode.add(1, two, prefill.handOver(4, two), twoTokens);
  network.advance(1);
  await decode.step(3);
  expect([first.error, refused.error?.code, running.error?.code, after.error]).toEqual([
    null,
    'DUPLICATE_REQUEST',
    'DUPLICATE_REQUEST',
    null,
  ]);
  expect(after.settled).toBe(1);
});

test('one leg’s failure stops the others, and memory waits for all of them', async () => {
  const { network, prefill, decode, begun } = await createWorld({}, { ppSize: 2 });
  network.planNext(faults.error('now'));
  network.planNext({ pieces: 4, pieceMs: 10, cancelAfterMs: 5 });
  const prompt = promptOf(4);
  const before = poolState(decode.engine.blocks).refs;
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
  expect(begun).toHaveLength(2);
  network.advance(1);
  decode.poll();
  await settle();
  expect(outcome.error).toMatchObject({ code: 'TRANSFER_FAILED' });
  expect(decode.seen('requestError')).toMatchObject([{ sourceSafe: false }]);
  expect(poolState(decode.engine.blocks).refs).not.toEqual(before);
  network.advance(5); // long before its bytes would all have come
  decode.poll();
  expect(poolState(decode.engine.blocks).refs).toEqual(before);
  expect(begun[1]!.targetEnd!.status).toBe('failed-quiet');
});

test('what began before another leg failed to begin is stopped and awaited', async () => {
  const { network, prefill, decode, begun } = await createWorld({}, { ppSize: 2 });
  network.planNext({ pieces: 4, pieceMs: 10, cancelAfterMs: 5 });
  network.planNext(faults.beginThrows(true));
  const prompt = promptOf(4);
  const before = poolState(decode.engine.blocks).refs;
  decode.add(1, prompt, prefill.handOver(1, prompt));
  expect(begun).toHaveLength(1);
  decode.poll();
  expect(decode.seen('quarantined')).toHaveLength(1);
  network.advance(5);
  decode.poll();
  expect(poolState(decode.engine.blocks).refs).toEqual(before);
  await settle();
});

test('a source that is attested dead makes what was in doubt quiet, and only that', async () => {
  const { network, prefill, decode } = await createWorld();
  network.planNext(faults.errorWhileWriting('never'));
  const prompt = promptOf(4);
  const before = poolState(decode.engine.blocks).refs;
  decode.add(1, prompt, prefill.handOver(1, prompt));
  network.advance(10);
  decode.poll();
  await settle();
  network.kill(prefill.leader.transport);
  decode.handoff.attestInstanceDead('another', 'boot-1');
  decode.handoff.attestInstanceDead('prefill', 'boot-2');
  decode.poll();
  expect(poolState(decode.engine.blocks).refs).not.toEqual(before);
  decode.handoff.attestInstanceDead('prefill', 'boot-1');
  decode.poll();
  expect(poolState(decode.engine.blocks).refs).toEqual(before);
  expect(decode.seen('reclaimed')).toHaveLength(1);
  expect(decode.seen('kvReadDone')).toHaveLength(1);
});

test('a leg that may or may not have begun holds memory after the others are quiet, until its source is attested dead', async () => {
  const { network, prefill, decode } = await createWorld({}, { ppSize: 2 });
  network.planNext(faults.drop());
  network.planNext(faults.beginThrows(false));
  const prompt = promptOf(4);
  const before = poolState(decode.engine.blocks).refs;
  decode.add(1, prompt, prefill.handOver(1, prompt));
  for (let i = 0; i < 3; i += 1) {
    network.advance(100);
    decode.poll();
  }
  await settle();
  expect(poolState(decode.engine.blocks).refs).not.toEqual(before);
  for (const { transport } of prefill.ranks) network.kill(transport);
  decode.handoff.attestInstanceDead('prefill', 'boot-1');
  decode.poll();
  expect(poolState(decode.engine.blocks).refs).toEqual(before);
});

test('a transfer past its deadline is told to stop, and gives its memory back when it has', async () => {
  const { network, prefill, decode } = await createWorld({ handoff: { deadlines: { transferMs: 100 } } });
  network.planNext({ ...faults.drop(), cancelAfterMs: 5 });
  const prompt = promptOf(4);
  const before = poolState(decode.engine.blocks).refs;
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
  network.advance(100);
  decode.poll();
  await settle();
  expect(outcome.error).toMatchObject({ code: 'TRANSFER_DEADLINE' });
  expect(decode.seen('quarantined')).toHaveLength(1);
  network.advance(5);
  decode.poll();
  expect(poolState(decode.engine.blocks).refs).toEqual(before);
  expect(decode.seen('reclaimed')).toHaveLength(1);
});

describe('with the host engine’s own broadcast as the log', () => {
  test('decisions take effect where they are recorded, and one that says again what is known changes nothing', async () => {
    const { network, prefill, decode } = await createWorld({ carrier: 'host' });
    network.planNext(faults.errorWhileWriting('later', 20));
    const prompt = promptOf(4);
    const before = poolState(decode.engine.blocks).refs;
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
    network.advance(2);
    decode.poll();
    const [unsafe, ...others] = decode.handoff.drainHandoffCompletionNotifications();
    expect(unsafe).toMatchObject({ kind: 'decision', attemptId: 1, failed: true, sourceSafe: false });
    expect(others).toEqual([]);
    await settle();
    expect(outcome.settled).toBe(0);
    for (let i = 0; i < 2; i += 1) decode.handoff.recordHandoffCompletionNotification(unsafe!);
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'TRANSFER_FAILED' } });
    expect(poolState(decode.engine.blocks).refs).not.toEqual(before);
    expect(decode.seen('kvReadDone')).toEqual([]);
    network.advance(20);
    decode.poll();
    expect(poolState(decode.engine.blocks).refs).not.toEqual(before);
    for (const record of decode.handoff.drainHandoffCompletionNotifications())
      decode.handoff.recordHandoffCompletionNotification(record);
    expect(poolState(decode.engine.blocks).refs).toEqual(before);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
  });

  test('and only then', async () => {
    const { decode } = await createWorld();
    const mixed = expect.objectContaining({ code: 'LOG_CARRIER_MIXED' });
    expect(() => decode.handoff.drainHandoffCompletionNotifications()).toThrow(mixed);
    expect(() =>
      decode.handoff.recordHandoffCompletionNotification({ kind: 'abort', attemptId: 1, reason: 'caller' }),
    ).toThrow(mixed);
  });
});
