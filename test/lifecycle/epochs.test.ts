/** When the weights change, nothing that other weights computed is taken over, whatever it was doing. */
import { faults } from '../../lib/testing/transfer-script.js';
import { createWorld, poolState, promptOf } from '../support/lifecycle-fixture.js';

const twoTokens = { num_tokens_to_generate: 2 };

test('what waits, what is in transfer and what is agreed ends with EPOCH_MISMATCH, and its memory comes back', async () => {
  const { network, prefill, decode } = await createWorld();
  const before = poolState(decode.engine.blocks).refs;
  const agreed = decode.add(1, promptOf(8, 1), prefill.handOver(1, promptOf(8, 1)), twoTokens);
  decode.engine.batchIsFull = true;
  network.advance(1);
  decode.poll();
  network.planNext(faults.delay(5));
  const moving = decode.add(2, promptOf(8, 2), prefill.handOver(2, promptOf(8, 2)), twoTokens);
  decode.engine.hog(99);
  const waiting = decode.add(3, promptOf(8, 3), prefill.handOver(3, promptOf(8, 3)), twoTokens);
  expect(decode.handoff.inspect().imports.map(({ state }) => state)).toEqual(['agreed', 'transferring', 'queued']);
  decode.handoff.setGenerationEpoch(1);
  prefill.handoff.setGenerationEpoch(1);
  decode.engine.batchIsFull = false;
  decode.engine.unhog();
  network.advance(10);
  await decode.step(3);
  for (const outcome of [agreed, moving, waiting]) {
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'EPOCH_MISMATCH' } });
  }
  expect(decode.seen('handoffAdmitted')).toEqual([]);
  expect(decode.seen('kvReadDone')).toHaveLength(3);
  expect(decode.handoff.inspect()).toMatchObject({ imports: [], quarantine: [], hashOwners: [] });
  expect(poolState(decode.engine.blocks).refs).toEqual(before);
});

test('bytes that arrive after the change get no name, so no later request finds them', async () => {
  const { network, prefill, decode } = await createWorld();
  network.planNext(faults.delay(5));
  const prompt = promptOf(8);
  decode.add(1, prompt, prefill.handOver(1, prompt), twoTokens);
  decode.handoff.setGenerationEpoch(1);
  prefill.handoff.setGenerationEpoch(1);
  network.advance(10);
  await decode.step(2);
  const fresh = decode.add(2, prompt, prefill.handOver(2, prompt), twoTokens);
  expect(decode.handoff.inspect().imports).toMatchObject([{ cachedPrefixBlocks: 0 }]);
  network.advance(10);
  await decode.step(4);
  expect(fresh).toMatchObject({ settled: 1, error: null });
});

test('a reference of another epoch releases nothing', async () => {
  const { prefill } = await createWorld();
  const { handoff } = prefill.handOver(1, promptOf(8));
  expect(() => prefill.handoff.releaseHandoffBlocks({ ...handoff!, epoch: 5 })).toThrow(
    expect.objectContaining({ code: 'HANDOFF_FENCED' }),
  );
  prefill.handoff.setGenerationEpoch(1);
  expect(prefill.handoff.releaseHandoffBlocks(handoff!)).toBe(true);
});
