/** What the ranks' own log carries is checked where it is said: a record that cannot travel costs its request, and no step. */
import type { SamplingParams } from '../../lib/engine-context.js';
import { createWorld, promptOf, settle, twoTokens } from '../support/lifecycle-fixture.js';

test.each<[string, object, string]>([
  ['a function', { bias: () => 1 }, 'samplingParams.bias: expected plain data, got a function'],
  ['an instance of a class', { when: new Date(0) }, 'samplingParams.when: expected plain data, got a Date'],
])('sampling parameters with %s are refused, and the log goes on', async (_what, extra, message) => {
  const { prefill, decode, network } = await createWorld({ tpSize: 2 });
  const prompt = promptOf(4);
  const wrong = decode.add(1, prompt, prefill.handOver(1, prompt), { ...twoTokens, ...extra } as SamplingParams);
  await settle();
  expect(wrong.error).toMatchObject({ code: 'ARGUMENT_INVALID', message });
  expect(decode.seen('kvReadDone')).toHaveLength(1);
  const fine = decode.add(2, prompt, prefill.handOver(2, prompt));
  for (let i = 0; i < 6; i += 1) {
    network.advance(10);
    await decode.step();
  }
  expect(fine).toMatchObject({ settled: 1, error: null });
});

test('a ticket with something in it that is no plain data is refused', async () => {
  const { prefill, decode } = await createWorld({ tpSize: 2 });
  const prompt = promptOf(4);
  const { kvMeta, blockIds } = prefill.handOver(1, prompt);
  const outcome = decode.add(1, prompt, { kvMeta: { ...kvMeta, extra: new Map() }, blockIds });
  await settle();
  expect(outcome.error).toMatchObject({
    code: 'ARGUMENT_INVALID',
    message: 'kvMeta.extra: expected plain data, got a Map',
  });
});

test.each([
  ['', 'boot-1', 'instance: expected a string of 1 to 256 characters, got ""'],
  ['decode', 7, 'incarnation: expected a string of 1 to 256 characters, got 7'],
  ['x'.repeat(257), 'boot-1', `instance: expected a string of 1 to 256 characters, got "${'x'.repeat(64)}"…`],
])('an attestation names an instance and an incarnation: %j %j', async (instance, incarnation, message) => {
  const { prefill } = await createWorld();
  expect(() => prefill.handoff.attestInstanceDead(instance, incarnation as string)).toThrow(
    expect.objectContaining({ code: 'ARGUMENT_INVALID', message }),
  );
});

test('a push names what it goes to, in what can travel', async () => {
  const { prefill, decode } = await createWorld({}, { tpSize: 2 }, { transport: { direction: 'push' } });
  prefill.handOver(1, promptOf(4));
  const metas = decode.handoff.instanceMeta;
  const push = (targets: readonly unknown[], to: unknown) => () =>
    prefill.handoff.pushHandoffKv(1, targets, 0, to as { instance: string; incarnation: string });
  expect(push([{ ...(metas[0] as object), extra: () => 1 }], null)).toThrow(
    'decodeMetas[0].extra: expected plain data, got a function',
  );
  expect(push(metas, { instance: '', incarnation: 'x' })).toThrow('decode.instance: expected a string of 1 to 256');
  expect(push(metas, { instance: 'x', incarnation: null })).toThrow(
    'decode.incarnation: expected a string of 1 to 256',
  );
});
