/**
 * A rank of a prefill engine: computes prompts, pins their state, and says where it lies. Pins are kept until the router
 * says that decode has read them.
 */
import { encodeTicket, type HandoffRef, type RequestId, type Ticket } from 'state-handoff';
import type { PrefillOrder } from 'state-handoff/coordinator';
import { Engine, type FinishedPrefill } from '../engine/index.js';
import { EngineRank } from './engine-rank.js';
import { digestOf } from './engine-setting.js';
import { prefillAnswers, prefillCommands, type EngineSetting, type Message } from './messages.js';
import { remains } from './remains.js';
import { openPort } from './worker-port.js';

class PrefillWorker {
  /** Behind a coordinator: who waits for which ticket. */
  private readonly awaited = new Map<RequestId, (ticket: Ticket) => void>();

  private constructor(
    private readonly rank: EngineRank<Engine>,
    private readonly send: (message: Message<typeof prefillAnswers>) => void,
  ) {
    const { handoff, isLeader } = rank;
    if (isLeader) handoff.on('released', ({ requestId }) => send({ kind: 'released', id: String(requestId) }));
  }

  static async open(
    setting: EngineSetting,
    send: (message: Message<typeof prefillAnswers>) => void,
  ): Promise<PrefillWorker> {
    const parts: { worker: PrefillWorker | null } = { worker: null };
    const onTicket = (finished: FinishedPrefill, ticket: Ticket): void => {
      send(prefilled(finished, ticket));
      parts.worker?.awaited.get(finished.requestId)?.(ticket);
    };
    const rank = await EngineRank.open('prefill', setting, (options) => new Engine(options), { onTicket });
    const worker = (parts.worker = new PrefillWorker(rank, send));
    const { coordinator: address, identity } = setting;
    if (address !== null) await rank.join({ address, identity, prefill: (order) => worker.compute(order) });
    return worker;
  }

  async run(): Promise<void> {
    const { rank, send } = this;
    send({ kind: 'ready', processId: process.pid, card: rank.card });
    await rank.run(
      (tokens) => rank.isLeader && send({ kind: 'busy', tokens }),
      () => send(remains(rank.handoff)),
    );
  }

  prompt({ id, prompt, sampling }: Extract<Message<typeof prefillCommands>, { kind: 'prompt' }>): void {
    const samplingParams = {
      ...sampling,
      temperature: 0,
      do_kv_handoff: true,
      return_log_probs: true,
      skip_prompt_log_probs: true,
    };
    this.rank.loop
      .submit({ requestId: id, prompt, samplingParams })
      .catch((error: { code: string; message: string }) => {
        this.send({ kind: 'failed', id, code: error.code, message: error.message });
      });
    this.rank.wake();
  }

  /** What the coordinator asks for, on every rank; the leader has the ticket. */
  private async compute({ requestId, prompt, samplingParams, signal }: PrefillOrder): Promise<Ticket | null> {
    const { engine, isLeader } = this.rank;
    if (isLeader) this.send({ kind: 'labelled', id: String(samplingParams['x_request_id']), label: String(requestId) });
    const ticket = new Promise<Ticket>((resolve) => this.awaited.set(requestId, resolve));
    signal.addEventListener('abort', () => engine.abort(requestId));
    try {
      // Its ticket is there before its promise resolves.
      await engine.addRequest({ requestId, prompt, samplingParams });
      return isLeader ? await ticket : null;
    } finally {
      this.awaited.delete(requestId);
    }
  }

  release(handoff: HandoffRef): void {
    this.rank.loop.release(handoff);
    this.rank.wake();
  }

  stop(): void {
    this.rank.loop.end();
    this.rank.wake();
  }
}

function prefilled(
  finished: FinishedPrefill,
  ticket: Ticket,
): Extract<Message<typeof prefillAnswers>, { kind: 'prefilled' }> {
  return {
    kind: 'prefilled',
    id: String(finished.requestId),
    ticket: encodeTicket(ticket),
    logits: digestOf(finished.logits!),
    blocks: finished.blocks.length,
    computedTokens: finished.prompt.length - finished.cachedTokens,
  };
}

let worker: PrefillWorker | null = null;
const port = openPort('prefill', prefillCommands, prefillAnswers, async (command): Promise<void> => {
  switch (command.kind) {
    case 'start':
      worker = await PrefillWorker.open(command.engine, port.send);
      await worker.run();
      return process.disconnect();
    case 'prompt':
      return worker?.prompt(command);
    case 'release':
      return worker?.release(command.handoff);
    case 'stop':
      return worker?.stop();
  }
});
