/**
 * Engines of two ranks behind a coordinator, each rank a process, when one of them is killed or falls behind: the client gets
 * its tokens or a typed error, other engines go on, and once the dead are attested nobody holds anything.
 */
import { CoordinatedFleet, type RankProcess } from '../support/coordinated-fleet.js';

// Only a fault waits that long.
jest.setTimeout(240_000);

let fleet: CoordinatedFleet;
let prefill: RankProcess;

beforeEach(async () => {
  fleet = await CoordinatedFleet.open({ backend: 'host' });
});
afterEach(() => fleet.close());

/** The instance has failed as a whole, and has left; every one of its processes ends. */
async function bury(ranks: readonly RankProcess[]): Promise<void> {
  await Promise.all(ranks.map((rank) => rank.kill()));
  await fleet.client.attestDead(ranks[0]!.name, 'boot-1');
}

describe('a decode engine of two ranks', () => {
  let decode: RankProcess[];
  beforeEach(async () => {
    [[prefill], decode] = (await Promise.all([fleet.engine('prefill'), fleet.engine('decode', 2)])) as [
      [RankProcess],
      RankProcess[],
    ];
  });

  test.each([0, 1])(
    'whose rank %i is killed while it reads fails the request, and its source is kept until it is buried',
    async (which) => {
      await decode[1]!.ask('set', { transfer: true });
      const request = fleet.ask();
      await decode[0]!.until('it imports', ({ imports }) => imports.length === 1);
      await decode[which]!.kill();
      expect(await request.error).toMatchObject({ code: 'ENGINE_FAILED' });
      const left = decode[1 - which]!;
      await left.until('it knows', ({ failures }) => failures.includes('RANK_LOST'));
      expect((await prefill.ask<{ pins: number }>('state')).pins).toBe(1);
      const [next] = await fleet.engine('decode');
      await fleet.serves(prefill);
      await bury(decode);
      await request.sourceSafe;
      await fleet.settled(prefill, next!);
    },
  );

  test('whose rank 1 is killed while it generates fails the request, which holds no source any more', async () => {
    await decode[1]!.ask('set', { dies: 5 });
    const request = fleet.ask();
    await request.streams;
    expect(await request.error).toMatchObject({ code: 'ENGINE_FAILED' });
    await request.sourceSafe;
    await decode[0]!.until('it has left', ({ isRegistered }) => !isRegistered);
    await fleet.settled(prefill);
    const [next] = await fleet.engine('decode');
    await fleet.serves(prefill);
    await fleet.settled(prefill, next!);
  });

  test('whose rank 1 falls behind keeps its request and no other, and finishes it', async () => {
    decode[1]!.process.kill('SIGSTOP');
    const request = fleet.ask();
    await decode[0]!.until('it has it', ({ imports }) => imports.length === 1);
    const [next] = await fleet.engine('decode');
    await fleet.serves(prefill);
    decode[1]!.process.kill('SIGCONT');
    await fleet.serves(prefill, request);
    await fleet.settled(prefill, next!, ...decode);
  });
});

describe('a prefill engine of two ranks', () => {
  let ranks: RankProcess[];
  let decode: RankProcess;
  beforeEach(async () => {
    [ranks, [decode]] = (await Promise.all([fleet.engine('prefill', 2), fleet.engine('decode')])) as [
      RankProcess[],
      [RankProcess],
    ];
  });

  test('whose rank 1 is killed while it computes fails the request with the reason, and leaves', async () => {
    await ranks[1]!.ask('set', { dies: 'prompt' });
    const request = fleet.ask();
    expect(await request.error).toMatchObject({ code: 'ENGINE_FAILED', message: expect.stringContaining('rank 1') });
    await request.sourceSafe;
    await ranks[0]!.until('it has left', ({ isRegistered }) => !isRegistered);
    const [next] = await fleet.engine('prefill');
    await fleet.serves(next!);
    await fleet.settled(next!, decode);
  });

  test('whose rank 1 is killed while decode reads it fails the request, and decode has its memory back', async () => {
    await decode.ask('set', { transfer: true });
    const request = fleet.ask();
    await decode.until('it imports', ({ imports }) => imports.length === 1);
    await ranks[1]!.kill();
    await ranks[0]!.until('it has left', ({ isRegistered }) => !isRegistered);
    await decode.ask('set', { transfer: false });
    expect(await request.error).toMatchObject({ code: 'ENGINE_FAILED' });
    await bury(ranks);
    await fleet.settled(decode);
    const [next] = await fleet.engine('prefill');
    await fleet.serves(next!);
    await fleet.settled(next!, decode);
  });

  test('whose rank 1 falls behind finishes its prompt later', async () => {
    ranks[1]!.process.kill('SIGSTOP');
    const request = fleet.ask();
    const [next] = await fleet.engine('prefill');
    await fleet.serves(next!);
    ranks[1]!.process.kill('SIGCONT');
    await fleet.serves(next!, request);
    await fleet.settled(...ranks, next!, decode);
  });
});
