/**
 * Goal: a wrong call harms the caller alone. Each test makes one mistake that a host engine or a client can make and then
 * looks at what everybody else has: memory, limits, other requests, other ranks.
 */
import { InProcessRankGroup } from '../../lib/control/in-process-rank-group.js';
import { asyncTokensMin } from '../../lib/memory/block-hash.js';
import {
  add,
  broadcast,
  codeRejected,
  codeThrown,
  compute,
  finishedOf,
  handOff,
  heard,
  instance,
  newRanks,
  pair,
  promptOf,
  settle,
  setUp,
  single,
  step,
  unheldBlocks,
  until,
  world,
} from '../support/misuse-world.js';

describe('setup', () => {
  test('close while ranks are still gathering: the setup rejects, and the object stays closed', async () => {
    const ranks = newRanks({ role: 'decode', network: world(), size: 2 });
    const first = setUp(ranks.slice(0, 1), 'decode', 'group');
    const code = codeRejected(first);
    await ranks[0]!.sdk.close();
    const second = setUp(ranks.slice(1), 'decode', 'group').catch(() => undefined);
    expect(await code).toBe('CLOSED');
    await second;
    expect(codeThrown(() => ranks[0]!.sdk.inspect())).toBe('CLOSED');
    expect(codeThrown(() => ranks[0]!.transport.grant())).toBe('CLOSED');
    expect(await codeRejected(ranks[0]!.sdk.setupKvTransfer('decode', ranks[0]!.transport))).toBe('CLOSED');
  });

  test('a setup that failed can be tried again', async () => {
    const [rank] = newRanks({ role: 'decode', network: world() });
    expect(await codeRejected(rank!.sdk.setupKvTransfer('decode', 'no-such'))).toBe('ARGUMENT_INVALID');
    await rank!.sdk.setupKvTransfer('decode', rank!.transport);
    expect(rank!.sdk.inspect().role).toBe('decode');
  });

  test.each([undefined, null, 'both', 7])('role %p', async (role) => {
    const [rank] = newRanks({ role: 'decode', network: world() });
    const promise = rank!.sdk.setupKvTransfer(role as 'decode', rank!.transport);
    await expect(promise).rejects.toMatchObject({
      code: 'ARGUMENT_INVALID',
      message: expect.stringMatching(/^role: expected 'prefill' or 'decode', got /),
    });
  });

  test('the group carrier without a group', async () => {
    const [rank] = newRanks({ role: 'decode', network: world() });
    const promise = rank!.sdk.setupKvTransfer('decode', rank!.transport, { carrier: 'group' });
    await expect(promise).rejects.toMatchObject({ code: 'ARGUMENT_INVALID' });
  });

  test('ranks of two instances in one group', async () => {
    const network = world();
    const groups = InProcessRankGroup.create(2);
    const [a] = newRanks({ role: 'decode', network, options: { instance: 'a' } });
    const [b] = newRanks({ role: 'decode', network, options: { instance: 'b' } });
    const both = [a!, b!].map(({ sdk, transport }, rank) =>
      codeRejected(sdk.setupKvTransfer('decode', transport, { group: groups[rank]! })),
    );
    expect(await Promise.all(both)).toEqual(['INCOMPATIBLE', 'INCOMPATIBLE']);
  });
});

describe('a finished batch that cannot be handed off gives all its memory back', () => {
  const gives = async (life: 'new' | 'closed' | 'decode'): Promise<void> => {
    const [rank] = newRanks({ role: 'prefill', network: world() });
    if (life !== 'new') await setUp([rank!], life === 'decode' ? 'decode' : 'prefill', 'local');
    if (life === 'closed') await rank!.sdk.close();
    const free = unheldBlocks(rank!);
    const run = compute(rank!, 'r', promptOf(10));
    const code = codeThrown(() => rank!.sdk.prepareHandoffMetadataBatch([finishedOf(run)]));
    expect(code).toBe({ new: 'NOT_SET_UP', closed: 'CLOSED', decode: 'WRONG_ROLE' }[life]);
    expect(unheldBlocks(rank!)).toBe(free);
  };
  test.each(['new', 'closed', 'decode'] as const)('%s', gives);
});

describe('labels and references', () => {
  test.each([null, undefined, true])('releasing %p names what is wrong', async (target) => {
    const prefill = await single({ role: 'prefill', network: world() });
    expect(codeThrown(() => prefill.sdk.releaseHandoffBlocks(target as unknown as string))).toBe('ARGUMENT_INVALID');
  });

  test.each([Number.NaN, -1, 1.5, Infinity, '3'])(
    'a permit for %p blocks leaves the bounds as they are',
    async (count) => {
      const prefill = await single({ role: 'prefill', network: world(), options: { limits: { maxPinnedBlocks: 4 } } });
      expect(codeThrown(() => prefill.sdk.tryPinPermit('bad', count as number))).toBe('ARGUMENT_INVALID');
      expect(prefill.sdk.tryPinPermit('a', 4)).toBe(true);
      expect(prefill.sdk.tryPinPermit('b', 1)).toBe(false);
    },
  );

  test.each(['', 'x'.repeat(513), 3, null])('owner %p', async (owner) => {
    const prefill = await single({ role: 'prefill', network: world() });
    const { handoff } = handOff(prefill).ticket;
    expect(codeThrown(() => prefill.sdk.claimHandoff(handoff!, owner as string))).toBe('ARGUMENT_INVALID');
    expect(codeThrown(() => prefill.sdk.releaseOwner(owner as string))).toBe('ARGUMENT_INVALID');
    expect(prefill.sdk.inspect().pins).toMatchObject([{ state: 'offered', owner: null }]);
  });
});

describe('a client that sends nonsense', () => {
  const nonsense = [
    { num_tokens_to_generate: Number.NaN },
    { num_tokens_to_generate: 'many' },
    { num_tokens_to_generate: {} },
    { num_tokens_to_generate: 1.5 },
    { num_tokens_to_generate: Infinity },
    { num_tokens_total: Number.NaN },
    { num_tokens_total: [9] },
    null,
    undefined,
    'params',
  ];
  test.each(nonsense)('as sampling parameters (%p) is refused, and those after it are served', async (params) => {
    const network = world();
    const { prefill, decode } = await pair(network);
    const handed = handOff(prefill);
    const promise = decode.sdk.addRequestWithKvHandoff(
      'bad',
      handed.prompt,
      params as never,
      handed.ticket.kvMeta,
      handed.ticket.blockIds,
    );
    expect(await codeRejected(promise)).toBe('ARGUMENT_INVALID');
    const outcome = add(decode, handed);
    await until(outcome, decode);
    expect(outcome.error).toBeNull();
  });

  test.each([[], [1.5], [2 ** 31], [Number.NaN], 'text', null])('as a prompt (%p)', async (prompt) => {
    const { decode } = await pair(world());
    const promise = decode.sdk.addRequestWithKvHandoff('bad', prompt as number[], {}, {}, []);
    await expect(promise).rejects.toMatchObject({
      code: 'ARGUMENT_INVALID',
      message: expect.stringMatching(/^prompt/),
    });
    expect(decode.sdk.inspect().imports).toEqual([]);
  });

  test.each([Number.NaN, 1.5, 'x'.repeat(257), null, {}])('as a label (%p)', async (label) => {
    const { decode } = await pair(world());
    const promise = decode.sdk.addRequestWithKvHandoff(label as string, [1], {}, {}, []);
    await expect(promise).rejects.toMatchObject({ code: 'ARGUMENT_INVALID' });
  });
});

describe('the same handoff twice', () => {
  test.each(['the same label', 'another label'])(
    'under %s: the source is released when the last reader is done',
    async (how) => {
      const network = world();
      const { prefill, decode } = await pair(network);
      decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
      const handed = handOff(prefill);
      network.planNext({ startAfterMs: 20 });
      network.planNext({ startAfterMs: 40 });
      const first = add(decode, handed);
      const second = add(decode, handed, { num_tokens_to_generate: 3 }, how === 'the same label' ? undefined : 'other');
      await settle();
      step(decode);
      expect(prefill.sdk.inspect().pins).toHaveLength(1);
      await until(first, decode);
      expect(first.error).toBeNull();
      if (how === 'the same label') expect(second.error!.code).toBe('DUPLICATE_REQUEST');
      else await until(second, decode);
      expect(second.settled).toBe(1);
      expect(heard(decode, 'kvReadDone')).toHaveLength(1);
      expect(prefill.sdk.inspect().pins).toEqual([]);
    },
  );

  test('of a peer without fenced identity: a repeated label does not say that the first is read', async () => {
    const network = world();
    const { prefill, decode } = await pair(network);
    const { ticket, prompt } = handOff(prefill);
    const { handoff: _, ...kvMeta } = ticket.kvMeta;
    const anonymous = { ticket: { ...ticket, kvMeta }, prompt };
    network.planNext({ startAfterMs: 20 });
    const first = add(decode, anonymous);
    const second = add(decode, anonymous);
    await settle();
    expect(second.error!.code).toBe('DUPLICATE_REQUEST');
    expect(heard(decode, 'kvReadDone')).toEqual([]);
    await until(first, decode);
    expect(heard(decode, 'kvReadDone')).toMatchObject([{ notice: { attemptId: 1, source: null } }]);
  });

  test('a reject of what is being read does not release it', async () => {
    const network = world();
    const { prefill, decode } = await pair(network);
    decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
    const handed = handOff(prefill);
    network.planNext({ startAfterMs: 20 });
    const outcome = add(decode, handed);
    decode.sdk.rejectKvHandoff('r', handed.ticket.kvMeta);
    expect(prefill.sdk.inspect().pins).toHaveLength(1);
    await until(outcome, decode);
    expect(outcome.error).toBeNull();
  });
});

describe('ranks', () => {
  test.each(['group', 'host'] as const)(
    'releaseOwner under the %s carrier ends pins on every rank',
    async (carrier) => {
      const ranks = await instance({ role: 'prefill', network: world(), size: 2, carrier });
      const { handoff } = handOff(ranks).ticket;
      expect(ranks[0]!.sdk.claimHandoff(handoff!, 'd/1')).toBe(true);
      expect(ranks[0]!.sdk.releaseOwner('d/1')).toBe(1);
      if (carrier === 'host') broadcast(ranks);
      for (const { sdk } of ranks) sdk.beginStep();
      expect(ranks.map(({ sdk }) => sdk.inspect().pins.length)).toEqual([0, 0]);
      expect(ranks[0]!.sdk.inspect().logIndex).toBe(ranks[1]!.sdk.inspect().logIndex);
      expect(ranks[0]!.engine.blocks.digest()).toBe(ranks[1]!.engine.blocks.digest());
    },
  );

  test('a signal on a worker', async () => {
    const ranks = await instance({ role: 'decode', network: world(), size: 2, carrier: 'host' });
    const { signal } = new AbortController();
    const call = (): unknown => ranks[1]!.sdk.addRequestWithKvHandoff('r', [1], {}, {}, [], { signal });
    expect(codeThrown(call)).toBe('NOT_RANK_ZERO');
  });
});

describe('the end', () => {
  test('a signal that fires after a forced close reaches nobody', async () => {
    const network = world();
    const { prefill, decode } = await pair(network);
    const faults: unknown[] = [];
    const onFault = (error: unknown): number => faults.push(error);
    process.on('uncaughtException', onFault);
    try {
      const controller = new AbortController();
      const outcome = add(decode, handOff(prefill), {}, 'r', { signal: controller.signal });
      const closed = decode.sdk.close({ force: true });
      controller.abort();
      await closed.catch(() => undefined);
      await settle();
      await settle();
      expect(outcome.error!.code).toBe('CLOSED');
      expect(faults).toEqual([]);
    } finally {
      process.off('uncaughtException', onFault);
    }
  });

  test('reset cancels what is still being hashed, too', async () => {
    const network = world();
    const engine = { poolSize: 8192, maxSequenceLength: 1 << 20 };
    const { prefill, decode } = await pair(network, { engine }, { engine });
    const handed = handOff(prefill, 'long', promptOf(asyncTokensMin));
    const outcome = add(decode, handed);
    expect(decode.sdk.inspect().imports).toEqual([]);
    await decode.sdk.resetPendingKvImports();
    await settle();
    expect(outcome.error!.code).toBe('ABORTED');
    expect(decode.sdk.pendingKvImportCount).toBe(0);
  });

  test('close refuses while a pin is held, and leaves everything working', async () => {
    const network = world();
    const { prefill, decode } = await pair(network);
    const handed = handOff(prefill);
    expect(await codeRejected(prefill.sdk.close())).toBe('HANDOFF_STILL_PINNED');
    const outcome = add(decode, handed);
    expect(await codeRejected(decode.sdk.close())).toBe('MEMORY_IN_DOUBT');
    await until(outcome, decode);
    expect(outcome.error).toBeNull();
    prefill.sdk.releaseHandoffBlocks('r');
    await prefill.sdk.close();
    await decode.sdk.close();
    await decode.sdk.close();
  });
});
