/**
 * One reference engine of `bench:benefit` in a process of its own: prefill, decode, or both in one. Computes what its
 * parent sends, and tells it of every token, with the time of the machine's clock: a parent that hears late notes no
 * other time.
 */
import { encodeTicket, StateHandoff, type HandoffRef } from 'state-handoff';
import { Engine, openRankLinks, rankShape, RankLoop, runTurns } from '../../../examples/engine/index.js';
import { nowMs, optionsOf, type EngineSize, type FromEngine, type Role, type ToEngine } from './engine-setting.js';

const say = (message: FromEngine): void => void process.send!(message);
const reasonOf = (error: unknown): string => String((error as { message?: unknown } | null)?.message ?? error);

interface Running {
  readonly loop: RankLoop;
  readonly wake: () => void;
}

async function open(role: Role, name: string, size: EngineSize): Promise<Running> {
  const links = await openRankLinks(rankShape({}), 0, name, name);
  const engine = new Engine({
    ...optionsOf(role, size),
    onToken: ({ requestId }) => say({ kind: 'token', id: Number(requestId), at: nowMs() }),
  });
  let handoff: StateHandoff | null = null;
  if (role !== 'both') {
    handoff = new StateHandoff(engine, { instance: name, incarnation: name });
    engine.attachHandoff(handoff);
    handoff.on('wake', () => wake());
    handoff.on('handoffAdmitted', ({ requestId }) => say({ kind: 'admitted', id: Number(requestId), at: nowMs() }));
    handoff.on('kvReadDone', ({ source }) => {
      if (source !== null) say({ kind: 'readDone', handoff: source });
    });
    await handoff.setupKvTransfer(role, 'host', { group: null });
  }
  const { place, peers, wakeUp } = links;
  const loop = new RankLoop({
    engine,
    handoff,
    place,
    peers,
    onTicket: ({ requestId }, ticket) =>
      say({ kind: 'prefilled', id: Number(requestId), at: nowMs(), ticket: encodeTicket(ticket) }),
  });
  const wake = (): void => {
    loop.wake();
    wakeUp.poke();
  };
  runTurns(loop, handoff, wakeUp, true).then(
    () => process.exit(0),
    (error: unknown) => {
      say({ kind: 'failed', id: null, reason: reasonOf(error) });
      process.exitCode = 1;
    },
  );
  return { loop, wake };
}

let running: Running | null = null;

async function take(message: ToEngine): Promise<void> {
  if (message.kind === 'start') {
    running = await open(message.role, message.name, message.size);
    return say({ kind: 'ready' });
  }
  const { loop, wake } = running!;
  if (message.kind === 'release') loop.release(message.handoff as HandoffRef);
  else {
    const { id, prompt, tokens } = message;
    const samplingParams = { num_tokens_to_generate: tokens, termination_id: -1, temperature: 0 };
    const result =
      message.kind === 'handoff'
        ? loop.takeOver({ requestId: id, prompt, samplingParams, ticket: message.ticket })
        : loop.submit({
            requestId: id,
            prompt,
            samplingParams: message.kind === 'prefill' ? { ...samplingParams, do_kv_handoff: true } : samplingParams,
          });
    result.then(
      () => message.kind !== 'prefill' && say({ kind: 'finished', id, at: nowMs() }),
      (error: unknown) => say({ kind: 'failed', id, reason: reasonOf(error) }),
    );
  }
  wake();
}

process.on('disconnect', () => process.exit(0));
process.on('message', (message: ToEngine) => {
  take(message).catch((error: unknown) => say({ kind: 'failed', id: null, reason: reasonOf(error) }));
});
