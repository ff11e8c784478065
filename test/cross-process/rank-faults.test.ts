/**
 * Promises of an instance of four ranks, each a process, when one of them cannot read, dies or stalls, at each phase of a
 * handoff: all ranks that are left decide the same, no memory is reused before it is quiet, and other traffic goes on.
 */
import { startChild } from '../support/child-process.js';
import {
  deadlines,
  prompt,
  promptBlocks,
  RankInstance as Instance,
  usable,
  type View,
} from '../support/rank-instance.js';

let requests = 0;

const oneRank = { tpSize: 1, tpRank: 0, ppSize: 1, ppRank: 0 };
const prefill = startChild('rank');
let other: Instance;
let served = 0;

beforeAll(async () => {
  await prefill.ask('open', { role: 'prefill', instance: 'prefill', place: oneRank, group: null, deadlines });
  other = await Instance.open(1, 1);
});

const ticketFor = (instance: Instance, requestId: string): Promise<string> =>
  prefill.ask<string>('prefill', { requestId, prompt, owner: `${instance.name}/boot-1` });

const pinsLeft = async (): Promise<number> => (await prefill.ask<View>('view')).pins;

/** A whole handoff, every word looked at on every rank, and its source free again. */
async function serves(instance: Instance): Promise<void> {
  served += 1;
  const requestId = `served-${served}`;
  const before = await instance.leader.ask<View>('view');
  const ticket = await ticketFor(instance, requestId);
  await instance.leader.ask('add', { requestId, prompt, ticket });
  await instance.until(({ shared }) => shared.running.includes(requestId));
  const wrong = await Promise.all(instance.ranks.map((child) => child.ask('finish')));
  expect(wrong).toEqual(instance.ranks.map(() => ({ [requestId]: 0 })));
  const { results, read } = await instance.expectEqual();
  expect(results[requestId]).toEqual({ wrong: 0 });
  await prefill.ask('release', { refs: read.slice(before.read.length) });
}

/** How far a handoff is when something happens. Each leaves it there. */
const phases: Readonly<Record<string, (instance: Instance) => Promise<void>>> = {
  'while bytes are on their way': async (instance) => {
    await instance.set({ isHeld: true });
    await instance.step();
    for (const child of instance.ranks) await child.ask('untilStates', { states: { [instance.request]: 'reserved' } });
  },
  'when some ranks have their bytes': async (instance) => {
    await instance.set({ isHeld: true }, [instance.ranks[1]!]);
    await instance.step();
    for (const [rank, child] of instance.ranks.entries())
      await child.ask('untilStates', { states: { [instance.request]: rank === 1 ? 'reserved' : 'landed' } });
  },
  'when it is agreed and waits for room': async (instance) => {
    await instance.set({ isFull: true });
    await instance.until(({ states }) => states[instance.request] === 'agreed');
  },
  'when it runs': async (instance) => {
    await instance.until(({ shared }) => shared.running.includes(instance.request));
  },
};

async function begin(instance: Instance): Promise<void> {
  instance.request = `request ${++requests} of ${instance.name}`;
  const ticket = await ticketFor(instance, instance.request);
  await instance.leader.ask('add', { requestId: instance.request, prompt, ticket });
}

describe('a rank that dies', () => {
  const cases = Object.keys(phases).map((phase) => [phase, 2] as const);
  test.each([
    ...cases,
    ['while bytes are on their way', 0] as const,
    ['when it is agreed and waits for room', 0] as const,
  ])('%s: rank %i', async (phase, victim) => {
    const instance = await Instance.open(2, 2);
    await begin(instance);
    await phases[phase]!(instance);
    const before = await instance.views();
    await instance.ranks[victim]!.kill();
    const left = instance.ranks.filter((_, rank) => rank !== victim);
    for (const child of left) expect(await child.ask('untilLoss')).toBe(victim);
    const lost = { code: 'RANK_LOST', rank: victim };

    if (victim === 0) {
      // Without rank 0 there is no log: nothing changes any more, and everybody says why.
      await instance.poll(left);
      expect(await instance.step(left)).toEqual(left.map(() => lost));
      await instance.set({ isHeld: false, isFull: false }, left);
      expect(await instance.step(left)).toEqual(left.map(() => lost));
      for (const [index, view] of (await instance.views(left)).entries()) {
        expect(view.shared).toEqual(before[index + 1]!.shared);
        expect(view.failures).toEqual([lost]);
      }
    } else {
      await instance.leader.ask('poll');
      expect(await instance.step(left)).toEqual(left.map(() => lost));
      const isHeld = phase === 'while bytes are on their way';
      const isMoving = isHeld || phase === 'when some ranks have their bytes';
      // The request has ended for its caller as soon as rank 0 has decided it.
      await instance.until(({ results }) => results[instance.request] !== null, left);
      const ended = await instance.expectEqual(left);
      expect(ended.results[instance.request]).toEqual({
        code: phase === 'when it runs' ? 'ENGINE_FAILED' : 'RANK_LOST',
      });
      if (isMoving)
        expect(ended.errors).toEqual([{ requestId: instance.request, code: 'RANK_LOST', sourceSafe: false }]);
      // What may be written somewhere stays out of use on all ranks, also where this rank's part is quiet.
      expect(ended.shared.quarantine).toHaveLength(isMoving ? 1 : 0);
      if (isMoving) expect(ended.free).toBe(usable - promptBlocks);
      await instance.set({ isHeld: false }, left);
      for (let round = 0; round < 3; round += 1) {
        await instance.poll(left);
        await instance.step(left);
      }
      const later = await instance.expectEqual(left);
      // A rank that had said it is quiet before it died makes no doubt; one that had not leaves it for ever.
      expect(later.shared.quarantine).toHaveLength(isHeld ? 1 : 0);
      if (phase !== 'when it runs') expect(later.free).toBe(isHeld ? usable - promptBlocks : usable);
      for (const view of await instance.views(left)) expect(view.failures).toEqual([lost]);
      // A later request is refused, and its source told to be free.
      await begin(instance);
      await instance.until(({ results }) => results[instance.request] !== null, left);
      expect((await instance.leader.ask<View>('view')).results[instance.request]).toEqual({ code: 'RANK_LOST' });
    }

    await serves(other);
    // Who knows that all its processes are gone says so; then its pins are nobody's.
    await instance.kill();
    expect(await pinsLeft()).toBeGreaterThan(0);
    await prefill.ask('attestDead', { instance: instance.name });
    expect(await pinsLeft()).toBe(0);
  });

  test('before anything came: the instance fails, and what comes is refused', async () => {
    const instance = await Instance.open(2, 2);
    await instance.ranks[3]!.kill();
    const left = instance.ranks.slice(0, 3);
    expect(await instance.leader.ask('untilLoss')).toBe(3);
    await instance.leader.ask('poll');
    expect(await instance.step(left)).toEqual(left.map(() => ({ code: 'RANK_LOST', rank: 3 })));
    await begin(instance);
    await instance.until(({ results }) => results[instance.request] !== null, left);
    const { results, read, free } = await instance.expectEqual(left);
    expect(results[instance.request]).toEqual({ code: 'RANK_LOST' });
    expect(free).toBe(usable);
    expect(read).toHaveLength(1);
    await prefill.ask('release', { refs: read });
    await instance.kill();
    expect(await pinsLeft()).toBe(0);
  });
});

describe('ranks that go on living', () => {
  let instance: Instance;
  beforeAll(async () => {
    instance = await Instance.open(2, 2);
  });
  afterAll(() => instance.kill());

  /** Nothing is left of the request, on any rank and at the source; and the instance serves. */
  async function recovers(): Promise<void> {
    await instance.set({ isHeld: false, isFull: false, failsToRead: false });
    await instance.until(
      ({ states, shared }) => states[instance.request] === undefined && shared.quarantine.length === 0,
    );
    const { free, read } = await instance.expectEqual();
    expect(free).toBe(usable);
    await prefill.ask('release', { refs: read });
    expect(await pinsLeft()).toBe(0);
    await serves(instance);
  }

  test.each([0, 1, 2, 3])('rank %i cannot read: all ranks fail the request alike', async (victim) => {
    await instance.set({ failsToRead: true }, [instance.ranks[victim]!]);
    await begin(instance);
    await instance.until(({ results }) => results[instance.request] !== null);
    const { results } = await instance.expectEqual();
    expect(results[instance.request]).toEqual({ code: victim === 0 ? 'TRANSFER_FAILED' : 'PEER_RANK_FAILED' });
    await recovers();
  });

  test('rank 2 cannot read while rank 1 has not said that it is quiet: its memory waits for rank 1', async () => {
    await instance.set({ failsToRead: true }, [instance.ranks[2]!]);
    await instance.set({ isHeld: true }, [instance.ranks[1]!]);
    await begin(instance);
    await instance.until(({ results }) => results[instance.request] !== null);
    const { results, errors, shared, free } = await instance.expectEqual();
    expect(results[instance.request]).toEqual({ code: 'PEER_RANK_FAILED' });
    expect(errors.at(-1)).toEqual({ requestId: instance.request, code: 'PEER_RANK_FAILED', sourceSafe: false });
    expect(shared.quarantine).toHaveLength(1);
    expect(free).toBe(usable - promptBlocks);
    await recovers();
  });

  const stalls = Object.keys(phases).map(
    (phase) => [phase, phase === 'when some ranks have their bytes' ? 1 : 2] as const,
  );
  test.each(stalls)(
    '%s rank %i stalls: nothing is reused, and all decide alike once it is back',
    async (phase, victim) => {
      const stalled = instance.ranks[victim]!;
      const awake = instance.ranks.filter((child) => child !== stalled);
      const isMoving = phase === 'while bytes are on their way' || phase === 'when some ranks have their bytes';
      await begin(instance);
      await phases[phase]!(instance);
      const before = await instance.leader.ask<View>('view');
      stalled.process.kill('SIGSTOP');
      const missed = 2;
      try {
        await instance.set({ isHeld: false }, awake);
        await instance.poll(awake);
        await instance.advance(deadlines.transferMs, awake);
        for (let frame = 0; frame < missed; frame += 1) {
          await instance.poll(awake);
          await instance.step(awake);
        }
        const meanwhile = await instance.expectEqual(awake);
        if (isMoving) {
          // The deadline ended the request, and not the hold on its memory.
          expect(meanwhile.results[instance.request]).toEqual({ code: 'TRANSFER_DEADLINE' });
          expect(meanwhile.errors.at(-1)).toEqual({
            requestId: instance.request,
            code: 'TRANSFER_DEADLINE',
            sourceSafe: false,
          });
          expect(meanwhile.shared.quarantine).toHaveLength(1);
        }
        expect(meanwhile.free).toBe(before.free);
        expect(await pinsLeft()).toBe(1);
        await serves(other);
      } finally {
        stalled.process.kill('SIGCONT');
      }
      await instance.advance(deadlines.transferMs, [stalled]);
      for (let frame = 0; frame < missed; frame += 1) expect(await stalled.ask('step')).toEqual({ code: null });
      await instance.expectEqual();
      await instance.set({ isHeld: false, isFull: false });
      await instance.until(
        ({ results, shared }) => results[instance.request] !== null || shared.running.includes(instance.request),
      );
      for (const child of instance.ranks) await child.ask('finish');
      const end = await instance.expectEqual();
      expect(end.results[instance.request]).toEqual(isMoving ? { code: 'TRANSFER_DEADLINE' } : { wrong: 0 });
      await recovers();
    },
  );
});
