/**
 * Spec 14.1, two-sided transports seen from the source: items 37 to 40. A push keeps its pins until it is quiet (I1).
 */
import { faults } from '../../lib/testing/index.js';
import { compute, createWorld, finishedOf, hybridShape, movesOf, promptOf } from '../support/lifecycle-fixture.js';
import { pushing, twoSided } from '../support/lifecycle-in-flight.js';

test('14.1.37 a push sends the pinned blocks and slot to the decode entries’ own state, in one start', async () => {
  const { network, prefill, decode, begun, outcome } = await pushing({});
  const [transfer] = begun;
  expect(begun).toHaveLength(1);
  const [pending] = decode.handoff.inspect().imports;
  // The receiver's half names where it goes; what is sent are the pinned blocks and slot.
  expect(movesOf(transfer!)).toMatchObject([
    { target: pending!.blocks, regions: [0] },
    { target: [pending!.slot], regions: [1, 2] },
  ]);
  const read = new Set<string>();
  const { memory } = prefill.engine;
  network.onRead = (_source, region, offset) =>
    void read.add(`${memory.isSlotRegion(region) ? 'slot' : 'block'} ${memory.idAt(region, offset)}`);
  network.advance(1);
  expect([...read].sort()).toEqual(['block 100', 'block 101', 'slot 9']);
  prefill.poll();
  expect(prefill.handoff.pendingKvPushCount).toBe(0);
  expect(prefill.handoff.inspect().pins).toMatchObject([{ state: 'offered', pushing: false }]); // kept until released
  await decode.step(3);
  expect(outcome).toMatchObject({ settled: 1, error: null }); // the engine looked at every byte
});

test('14.1.37 a push leaves out what decode has cached', async () => {
  const { network, prefill, decode } = await createWorld({}, {}, twoSided);
  prefill.arrangeBlocks([99], [100, 101]);
  const prompt = promptOf(8);
  const start = prompt.slice(0, 4);
  decode.add(1, start, prefill.handOver(1, start), { num_tokens_to_generate: 1 });
  prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta);
  network.advance(1);
  await decode.step();
  const outcome = decode.add(2, prompt, prefill.handOver(2, prompt));
  const [{ cachedPrefixBlocks }] = decode.seen('kvTransferReady').slice(-1) as [{ cachedPrefixBlocks: number }];
  expect(cachedPrefixBlocks).toBe(1);
  const read = new Set<number>();
  network.onRead = (_source, region, offset) => void read.add(prefill.engine.memory.idAt(region, offset));
  prefill.handoff.pushHandoffKv(2, decode.handoff.instanceMeta, cachedPrefixBlocks);
  network.advance(1);
  expect(read.size).toBe(1);
  await decode.step(3);
  expect(outcome).toMatchObject({ settled: 1, error: null });
});

describe('14.1.38 a push that does not start', () => {
  test('leaves the pins in place and says so', async () => {
    const { prefill, decode } = await createWorld({}, {}, twoSided);
    prefill.handOver(1, promptOf(6));
    const elsewhere = decode.handoff.instanceMeta.map((rank) => ({ ...rank, transports: { another: {} } }));
    // Here the failure is a notice; nothing is thrown into the engine's step, as the reference does.
    prefill.handoff.pushHandoffKv(1, elsewhere);
    prefill.poll();
    expect(prefill.seen('requestError')).toMatchObject([
      { requestId: 1, sourceSafe: true, error: { code: 'NO_TRANSPORT' } },
    ]);
    expect(prefill.handoff.inspect().pins).toMatchObject([{ state: 'offered', pushing: false }]);
    expect(prefill.handoff.pendingKvPushCount).toBe(0);
  });

  test('and may still be read keeps the source even when it is released', async () => {
    const { network, prefill } = await pushing(faults.errorWhileWriting('later', 20));
    network.advance(2);
    prefill.poll();
    expect(prefill.seen('requestError')).toMatchObject([{ requestId: 1, sourceSafe: false }]);
    prefill.handoff.releaseHandoffBlocks(1);
    prefill.poll();
    expect(prefill.engine.blocks.freeCount).toBe(0);
    expect(prefill.engine.slots!.isFree(9)).toBe(false);
    expect(prefill.handoff.pendingKvPushCount).toBe(1);
    network.advance(30);
    prefill.poll();
    expect(prefill.engine.slots!.isFree(9)).toBe(true);
    expect(prefill.handoff.pendingKvPushCount).toBe(0);
    expect(prefill.handoff.inspect().pins).toEqual([]);
  });

  test('whose target is attested dead lets the source go', async () => {
    const { network, prefill, decode } = await createWorld({ handoff: { incarnation: 'boot-2' } }, {}, twoSided);
    network.planNext(faults.errorWhileWriting('never'));
    const who = { instance: 'decode', incarnation: 'boot-2' };
    const prompt = promptOf(6);
    decode.add(2, prompt, prefill.handOver(2, prompt));
    prefill.handoff.pushHandoffKv(2, decode.handoff.instanceMeta, 0, who);
    network.advance(2);
    prefill.poll();
    prefill.handoff.releaseHandoffBlocks(2);
    network.kill(decode.leader.transport);
    prefill.handoff.attestInstanceDead('decode', 'boot-1');
    prefill.poll();
    expect(prefill.handoff.pendingKvPushCount).toBe(1);
    prefill.handoff.attestInstanceDead('decode', 'boot-2');
    prefill.poll();
    expect(prefill.handoff.pendingKvPushCount).toBe(0);
    expect(prefill.handoff.inspect().pins).toEqual([]);
  });

  test('a push of nothing pinned is a warning, one out of range or repeated an error', async () => {
    const { prefill, decode } = await pushing(faults.drop());
    const meta = decode.handoff.instanceMeta;
    prefill.handoff.pushHandoffKv(99, meta);
    expect(prefill.seen('warning')).toHaveLength(1);
    for (const count of [-1, 3, 0.5])
      expect(() => prefill.handoff.pushHandoffKv(1, meta, count)).toThrow(
        expect.objectContaining({ code: 'ARGUMENT_INVALID' }),
      );
    expect(() => prefill.handoff.pushHandoffKv(1, meta)).toThrow(
      expect.objectContaining({ code: 'DUPLICATE_REQUEST' }),
    );
    prefill.handoff.releaseHandoffBlocks(1);
    prefill.handoff.pushHandoffKv(1, meta); // draining: there is nothing to send any more
    expect(prefill.seen('warning')).toHaveLength(2);
    expect(prefill.handoff.pendingKvPushCount).toBe(1);
  });
});

test('14.1.39 a pinned slot without pinned blocks is refused before anything is prepared', async () => {
  const { network, prefill, decode, begun } = await createWorld({}, {}, { ...twoSided, shape: hybridShape });
  // A checked batch cannot give such a pin; one made by hand can.
  const run = compute(prefill.leader, 1, promptOf(4));
  const withoutBlocks = { ...finishedOf(run), promptTokens: 0, blocks: new Int32Array(0) };
  prefill.handoff.captureHandoffMeta(1, { byRequest: new Map([[1, withoutBlocks]]) });
  expect(() => prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta)).toThrow(
    expect.objectContaining({
      code: 'HANDOFF_UNKNOWN',
      message: expect.stringContaining('detached SSM state but no pinned KV blocks'),
    }),
  );
  expect(prefill.handoff.pendingKvPushCount).toBe(0);
  network.advance(1);
  expect(begun).toEqual([]);
});

test('14.1.40 decode metadata without a kind of state is refused before anything is prepared', async () => {
  const { prefill, decode } = await createWorld({}, {}, { ...twoSided, shape: hybridShape });
  prefill.handOver(1, promptOf(4));
  for (const kind of ['recurrent', 'conv']) {
    const [rank] = structuredClone(decode.handoff.instanceMeta) as [{ ssm: Record<string, unknown> }];
    delete rank.ssm[kind];
    expect(() => prefill.handoff.pushHandoffKv(1, [rank])).toThrow(
      expect.objectContaining({ code: 'SSM_METADATA_INVALID', message: expect.stringContaining(kind) }),
    );
  }
  expect(prefill.handoff.pendingKvPushCount).toBe(0);
  expect(prefill.handoff.inspect().pins).toMatchObject([{ pushing: false }]);
});

test('a push over a connection that never comes up costs its own request only: the next push connects again', async () => {
  const { network, prefill, decode } = await createWorld(
    { handoff: { deadlines: { handshakeMs: 100 } } },
    { handoff: { deadlines: { handshakeMs: 100 } } },
    twoSided,
  );
  const push = (label: number, prompt: number[]): ReturnType<typeof decode.add> => {
    const outcome = decode.add(label, prompt, prefill.handOver(label, prompt));
    if (label === 1) network.planNextConnect({ outcome: 'connecting' });
    prefill.handoff.pushHandoffKv(label, decode.handoff.instanceMeta);
    return outcome;
  };
  push(1, promptOf(4));
  network.advance(100);
  prefill.poll();
  expect(prefill.seen('requestError')).toMatchObject([{ requestId: 1, error: { code: 'HANDSHAKE_DEADLINE' } }]);
  const served = push(2, promptOf(4, 7));
  network.advance(1);
  await decode.step(4);
  expect(served).toMatchObject({ settled: 1, error: null });
});
