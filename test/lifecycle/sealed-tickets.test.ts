/** Promises of `ticketSecret`: only tickets of engines that share it are taken over, and a forged one costs nobody anything. */
import {
  add,
  handOff,
  hybridShape,
  heard,
  instance,
  pair,
  promptOf,
  settle,
  until,
  world,
} from '../support/misuse-world.js';

const options = { instance: 'prefill', incarnation: 'first', ticketSecret: 'a secret of no meaning' };
const both = [{ options }, { options: { ...options, instance: 'decode' } }] as const;

test.each([1, 2])('with %p ranks a sealed ticket is taken over', async (size) => {
  const network = world();
  const shared = { network, size, engine: { shape: hybridShape } };
  const prefill = await instance({ ...shared, role: 'prefill', options, carrier: size === 1 ? 'local' : 'host' });
  const decode = await instance({ ...shared, role: 'decode', options: { ...options, instance: 'decode' } });
  const outcome = add(decode[0]!, handOff(prefill, 'r'));
  await until(outcome, decode);
  expect(outcome).toMatchObject({ error: null, settled: 1 });
});

test('field report 113: a ticket that names other blocks is refused; the handoff it names keeps its state and is taken over', async () => {
  const { prefill, decode } = await pair(world(), ...both);
  const other = handOff(prefill, 'other', promptOf(10, 1));
  const mine = handOff(prefill, 'mine', promptOf(10, 2));
  const forged = [
    { ...mine.ticket, blockIds: other.ticket.blockIds },
    { ...mine.ticket, kvMeta: { ...mine.ticket.kvMeta, handoff: other.ticket.kvMeta['handoff'] } },
    { ...mine.ticket, kvMeta: { ...mine.ticket.kvMeta, resume_tokens: [1] } },
  ];
  for (const [index, ticket] of forged.entries()) {
    const refused = add(decode, { ticket, prompt: mine.prompt }, {}, `forged ${index}`);
    await settle();
    expect(refused.error).toMatchObject({ code: 'TICKET_FORGED', retryable: false });
  }
  // Refused for another reason before its seal is looked at: still nobody's source is released.
  const late = add(decode, { ticket: forged[1]!, prompt: mine.prompt }, { top_n_logprobs: 1 }, 'mine');
  await settle();
  expect(late.error?.code).toBe('LOG_PROBS_UNSUPPORTED');
  expect(heard(decode, 'kvReadDone')).toEqual([]);
  expect(heard(decode, 'requestError').map(({ notice }) => notice['source'])).toEqual([null, null, null, null]);
  for (const handed of [mine, other]) {
    const outcome = add(decode, handed);
    await until(outcome, decode);
    expect(outcome.error).toBeNull();
  }
  expect(heard(decode, 'kvReadDone')).toHaveLength(2);
});

test('a ticket without a seal, or under another secret, is refused; without a secret a seal is not looked at', async () => {
  const otherSecret = { options: { ...options, ticketSecret: 'another secret of no meaning' } };
  for (const [source, code] of [
    [{}, 'TICKET_FORGED'],
    [otherSecret, 'TICKET_FORGED'],
  ] as const) {
    const { prefill, decode } = await pair(world(), source, both[1]);
    const refused = add(decode, handOff(prefill));
    await settle();
    expect(refused.error).toMatchObject({ code });
  }
  const { prefill, decode } = await pair(world(), both[0], {});
  const outcome = add(decode, handOff(prefill));
  await until(outcome, decode);
  expect(outcome.error).toBeNull();
});

test.each([7, '', 'fifteen letters', true, {}])(
  'a secret that is none, %p, is refused without being shown',
  async (ticketSecret) => {
    const wrong = pair(world(), { options: { ticketSecret: ticketSecret as string } });
    await expect(wrong).rejects.toMatchObject({
      code: 'OPTION_INVALID',
      message: expect.stringMatching(
        /^options\.ticketSecret: expected at least 16 characters, got "(fewer|\w+)"$/,
      ) as string,
    });
  },
);
