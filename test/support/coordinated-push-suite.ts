/**
 * NCCL behind a coordinator, whether NCCL and GPUs are real or stand-ins: decode says that it is ready, the coordinator
 * tells prefill, and prefill sends. What is generated does not differ; either one is killed on the way.
 */
import type { ChildProcess } from 'node:child_process';
import { CoordinatedFleet, type FleetGpus, type RankProcess } from './coordinated-fleet.js';
import { until } from './waiting.js';

/** A way to keep pushes to a decode process from ending, and to let them go on. */
export interface PushHold {
  readonly title: string;
  readonly hold: (isHeld: boolean, decode: ChildProcess) => void;
}

export interface CoordinatedPushSetting {
  readonly env?: Record<string, string>;
  readonly gpus: FleetGpus;
  readonly holds: readonly PushHold[];
}

/** Needs nothing of NCCL: a process that stands still does not answer its source. */
export const standsStill: PushHold = {
  title: 'while decode stands still',
  hold: (isHeld, decode) => void decode.kill(isHeld ? 'SIGSTOP' : 'SIGCONT'),
};

export function coordinatedPushSuite({ env, gpus, holds }: CoordinatedPushSetting): void {
  let fleet: CoordinatedFleet;
  let prefill: RankProcess;
  let decode: RankProcess;

  beforeEach(async () => {
    fleet = await CoordinatedFleet.open({ backend: 'nccl', gpus }, env);
    [[prefill], [decode]] = (await Promise.all([fleet.engine('prefill'), fleet.engine('decode')])) as [
      [RankProcess],
      [RankProcess],
    ];
  });
  afterEach(() => fleet.close());

  test('generates what one engine generates alone, also where decode has cached a prefix', async () => {
    await fleet.serves(prefill);
    await fleet.serves(prefill);
    expect(fleet.sendsTold).toBe(2);
    await fleet.settled(prefill, decode);
  });

  test('a prefill engine of two ranks pushes from both, as its rank 0 is told', async () => {
    await prefill.kill();
    const ranks = await fleet.engine('prefill', 2);
    await fleet.serves(ranks[0]!);
    await fleet.serves(ranks[0]!);
    expect(fleet.sendsTold).toBe(2);
    await fleet.settled(...ranks, decode);
  });

  test('a decode engine that is killed before prefill hears that it is ready leaves no pin, and the next one is served', async () => {
    await prefill.ask('set', { messages: true });
    const request = fleet.ask();
    await decode.until('decode is ready', ({ ready }) => ready === 1);
    await decode.kill();
    expect(await request.error).toMatchObject({ code: 'ENGINE_FAILED' });
    await prefill.ask('set', { messages: false });
    await fleet.settled(prefill);
    const [next] = await fleet.engine('decode');
    await fleet.serves(prefill);
    await fleet.settled(prefill, next!);
  });

  test.each(holds)(
    'a prefill engine that is killed in a push, $title, costs its request only, and the next one is served',
    async ({ hold }) => {
      await prefill.ask('set', { messages: true });
      const request = fleet.ask();
      await until('the coordinator has told prefill to send', () => fleet.sendsTold === 1);
      hold(true, decode.process);
      await prefill.ask('set', { messages: false });
      await prefill.until('it pushes', ({ pushes }) => pushes === 1);
      await prefill.kill();
      expect(await request.error).toMatchObject({ code: 'ENGINE_FAILED' });
      hold(false, decode.process);
      await fleet.settled(decode);
      const [next] = await fleet.engine('prefill');
      await fleet.serves(next!);
      await fleet.settled(next!, decode);
    },
  );
}
