/**
 * Promises of a prefill instance of four ranks, each a process, when one of them dies, stalls or keeps no pin, at each phase
 * of a handoff to a decode instance of two: both decode ranks decide the same, no source is reused before its release, and
 * handoffs from another prefill go on.
 */
import type { Child } from '../support/child-process.js';
import { deadlines, prompt, promptBlocks, RankInstance, usable, type View } from '../support/rank-instance.js';

let requests = 0;
let decode: RankInstance;
let other: RankInstance;
beforeAll(async () => {
  [decode, other] = await Promise.all([RankInstance.open(1, 2), RankInstance.open(1, 1, 'prefill')]);
});

/** Every rank computes the prompt and pins it; rank 0's ticket. */
async function pinned(source: RankInstance, requestId: string): Promise<string> {
  const tickets = await Promise.all(
    source.ranks.map((child, rank) =>
      child.ask<string | null>('prefill', { requestId, prompt, owner: rank === 0 ? `${decode.name}/boot-1` : null }),
    ),
  );
  return tickets[0]!;
}

const pins = async (source: RankInstance, ranks?: readonly Child[]): Promise<number[]> =>
  (await source.views(ranks)).map((view) => view.pins);
const free = async (source: RankInstance, ranks?: readonly Child[]): Promise<number[]> =>
  (await source.views(ranks)).map((view) => view.free);
const all = (value: number, ranks: readonly Child[]): number[] => ranks.map(() => value);

/** Of `source`, what decode has said it has read and nobody has taken from here. */
const taken = new Set<number>();
async function takeRead(source: RankInstance): Promise<readonly unknown[]> {
  const { read } = await decode.leader.ask<View>('view');
  return read.filter((ref, index) => {
    if ((ref as { readonly instance: string }).instance !== source.name || taken.has(index)) return false;
    taken.add(index);
    return true;
  });
}

/** Ends what runs on decode, with every word looked at; what became of `requestId`, equal on both ranks. */
async function outcome(requestId: string): Promise<object> {
  await decode.set({ isHeld: false, isFull: false });
  await decode.until(({ results, shared }) => results[requestId] !== null || shared.running.includes(requestId));
  await Promise.all(decode.ranks.map((child) => child.ask('finish')));
  await decode.until(({ states, shared }) => states[requestId] === undefined && shared.quarantine.length === 0);
  const leader = await decode.expectEqual();
  expect(leader.free).toBe(usable);
  for (const child of decode.ranks) expect((await child.ask<View>('view')).failures).toEqual([]);
  const [first, second] = (await decode.views()).map(({ results }) => results[requestId]);
  // Only rank 0 has the caller's promise.
  expect(second).toBeUndefined();
  return first!;
}

async function add(requestId: string, ticket: string): Promise<void> {
  await decode.leader.ask('add', { requestId, prompt, ticket });
}

/** A whole handoff, and its source free again. */
async function serves(source: RankInstance): Promise<void> {
  const requestId = `served ${++requests}`;
  const before = await free(source);
  await add(requestId, await pinned(source, requestId));
  expect(await outcome(requestId)).toEqual({ wrong: 0 });
  await source.leader.ask('release', { refs: await takeRead(source) });
  await source.step();
  expect(await free(source)).toEqual(before);
  await source.expectEqual();
}

/** How far a pinned handoff is when something happens to its source. Each leaves it there. */
const phases: Readonly<Record<string, (requestId: string, ticket: string) => Promise<void>>> = {
  'before decode has heard of it': () => Promise.resolve(),
  'while bytes are on their way': async (requestId, ticket) => {
    await decode.set({ isHeld: true });
    await add(requestId, ticket);
    await decode.step();
    for (const child of decode.ranks) await child.ask('untilStates', { states: { [requestId]: 'reserved' } });
  },
  'when it is agreed and waits for room': async (requestId, ticket) => {
    await decode.set({ isFull: true });
    await add(requestId, ticket);
    await decode.until(({ states }) => states[requestId] === 'agreed');
  },
  'when it runs': async (requestId, ticket) => {
    await add(requestId, ticket);
    await decode.until(({ shared }) => shared.running.includes(requestId));
  },
};
const isRead = (phase: string): boolean => phase.startsWith('when');
const names = Object.keys(phases);

describe('a prefill rank that dies', () => {
  test.each([...names.map((phase) => [phase, 2] as const), ...names.map((phase) => [phase, 0] as const)])(
    '%s: rank %i',
    async (phase, victim) => {
      const source = await RankInstance.open(2, 2, 'prefill');
      const requestId = `request ${++requests}`;
      const ticket = await pinned(source, requestId);
      await phases[phase]!(requestId, ticket);
      await source.ranks[victim]!.kill();
      const left = source.ranks.filter((_, rank) => rank !== victim);
      for (const child of left) expect(await child.ask('untilLoss')).toBe(victim);
      const lost = { code: 'RANK_LOST', rank: victim };
      await source.poll(left);
      if (victim !== 0) await source.step(left);
      for (const view of await source.views(left)) expect(view.failures).toEqual([lost]);
      // The instance has failed, and its pins have not: somebody may be reading.
      expect(await pins(source, left)).toEqual(all(1, left));
      expect(await free(source, left)).toEqual(all(usable - promptBlocks, left));

      if (phase === 'before decode has heard of it') await add(requestId, ticket);
      const result = await outcome(requestId);
      // Rank 0 of decode reads ranks 0 and 1, rank 1 reads ranks 2 and 3. What was mapped before a death can be read after it.
      const refused = { code: victim === 0 ? 'PEER_UNREACHABLE' : 'PEER_RANK_FAILED' };
      if (isRead(phase)) expect(result).toEqual({ wrong: 0 });
      else if (phase === 'before decode has heard of it') expect(result).toEqual(refused);
      else expect([{ wrong: 0 }, refused, { code: 'PEER_LOST' }]).toContainEqual(result);

      const refs = await takeRead(source);
      expect(refs).toHaveLength(1);
      if (victim === 0) {
        // Without rank 0 there is no log: nobody gives back what a log record would.
        expect(await source.step(left)).toEqual(left.map(() => lost));
        expect(await pins(source, left)).toEqual(all(1, left));
      } else {
        for (const child of left) {
          const more = child.ask('prefill', { requestId: 'more', prompt, owner: null });
          await expect(more).rejects.toThrow(/rank 2 of 4 is lost/);
        }
        await source.leader.ask('release', { refs });
        expect(await pins(source, left)).toEqual(all(1, left));
        await source.step(left);
        expect(await free(source, left)).toEqual(all(usable, left));
        await source.expectEqual(left);
      }
      await serves(other);
      await source.kill();
    },
  );

  test.each([1, 3])('rank %i, after its release was decided and before it knows', async (victim) => {
    const source = await RankInstance.open(2, 2, 'prefill');
    const requestId = `request ${++requests}`;
    await phases['when it runs']!(requestId, await pinned(source, requestId));
    expect(await outcome(requestId)).toEqual({ wrong: 0 });
    await source.leader.ask('release', { refs: await takeRead(source) });
    await source.ranks[victim]!.kill();
    const left = source.ranks.filter((_, rank) => rank !== victim);
    for (const child of left) expect(await child.ask('untilLoss')).toBe(victim);
    expect(await pins(source, left)).toEqual(all(1, left));
    await source.step(left);
    expect(await free(source, left)).toEqual(all(usable, left));
    await source.expectEqual(left);
    await source.kill();
  });
});

describe('prefill ranks that go on living', () => {
  let source: RankInstance;
  beforeAll(async () => {
    source = await RankInstance.open(2, 2, 'prefill');
  });
  afterAll(() => source.kill());

  test.each(names.flatMap((phase) => [[phase, 0] as const, [phase, 3] as const]))(
    '%s: rank %i stalls, is read nevertheless, and gives back its part once it knows of the release',
    async (phase, victim) => {
      // Decode knows the ranks already, or it would wait for one that cannot answer.
      await serves(source);
      const requestId = `request ${++requests}`;
      const ticket = await pinned(source, requestId);
      await phases[phase]!(requestId, ticket);
      const stalled = source.ranks[victim]!;
      const awake = source.ranks.filter((child) => child !== stalled);
      stalled.process.kill('SIGSTOP');
      try {
        if (phase === 'before decode has heard of it') await add(requestId, ticket);
        // One-sided: a source that is mapped needs not be awake to be read.
        expect(await outcome(requestId)).toEqual({ wrong: 0 });
        expect(await pins(source, awake)).toEqual(all(1, awake));
        if (victim !== 0) {
          await source.leader.ask('release', { refs: await takeRead(source) });
          await source.step(awake);
          expect(await free(source, awake)).toEqual(all(usable, awake));
        }
        await serves(other);
      } finally {
        stalled.process.kill('SIGCONT');
      }
      if (victim === 0) {
        await source.leader.ask('release', { refs: await takeRead(source) });
        await source.step();
      } else {
        expect(await pins(source, [stalled])).toEqual([1]);
        expect(await source.step([stalled])).toEqual([{ code: null }]);
      }
      await source.expectEqual();
      expect(await free(source)).toEqual(all(usable, source.ranks));
      await serves(source);
    },
  );
});

describe('a prefill rank that stalls before decode knows it', () => {
  test('ends the request at its deadline on both decode ranks, and the source stays until it is released', async () => {
    const source = await RankInstance.open(2, 2, 'prefill');
    const requestId = `request ${++requests}`;
    const ticket = await pinned(source, requestId);
    const stalled = source.ranks[3]!;
    stalled.process.kill('SIGSTOP');
    try {
      await add(requestId, ticket);
      await decode.step();
      await decode.leader.ask('untilStates', { states: { [requestId]: 'landed' } });
      expect((await decode.expectEqual()).results[requestId]).toBeNull();
      await decode.advance(deadlines.transferMs);
      // Whichever of the two ranks says so first.
      const ends = [{ code: 'TRANSFER_DEADLINE' }, { code: 'PEER_RANK_FAILED' }];
      expect(ends).toContainEqual(await outcome(requestId));
      await serves(other);
    } finally {
      stalled.process.kill('SIGCONT');
    }
    expect(await pins(source)).toEqual(all(1, source.ranks));
    await source.kill();
  });
});

describe('a prefill rank that kept no pin', () => {
  test.each(names)('%s: its blocks get a new owner, and decode admits no byte of that', async (phase) => {
    const source = await RankInstance.open(2, 2, 'prefill');
    await serves(source);
    const requestId = `request ${++requests}`;
    const victim = source.ranks[3]!;
    await source.set({ failsToPin: true }, [victim]);
    const ticket = await pinned(source, requestId);
    await phases[phase]!(requestId, ticket);
    await victim.ask('overwriteFree');
    if (phase === 'before decode has heard of it') await add(requestId, ticket);
    // Rank 1 of decode notices by the generations, and rank 0 hears of it.
    expect(await outcome(requestId)).toEqual(isRead(phase) ? { wrong: 0 } : { code: 'PEER_RANK_FAILED' });
    await serves(other);
    await source.kill();
  });
});
