/**
 * The prefill process: computes prompts, pins their state, and says where it lies. It keeps a pin until the router says
 * that decode has read it.
 */
import { encodeTicket, StateHandoff, type HandoffRef } from 'state-handoff';
import { Engine } from '../engine/index.js';
import { digestOf, engineOptions } from './engine-setting.js';
import { prefillAnswers, prefillCommands, type EngineSetting, type Message } from './messages.js';
import { remains } from './remains.js';
import { SignOfLife } from './sign-of-life.js';
import { openPort } from './worker-port.js';

class PrefillWorker {
  private readonly engine: Engine;
  private readonly handoff: StateHandoff;
  private readonly life: SignOfLife;
  private turning = false;

  constructor(
    private readonly setting: EngineSetting,
    private readonly send: (message: Message<typeof prefillAnswers>) => void,
    private readonly fail: (error: unknown) => void,
  ) {
    this.life = new SignOfLife((tokens) => send({ kind: 'busy', tokens }));
    this.engine = new Engine(engineOptions('prefill', setting));
    this.handoff = new StateHandoff(this.engine, { instance: 'demo-prefill' });
    this.engine.attachHandoff(this.handoff);
    this.handoff.on('released', ({ requestId }) => send({ kind: 'released', id: String(requestId) }));
  }

  async open(): Promise<void> {
    await this.handoff.setupKvTransfer('prefill', this.setting.transport);
    this.send({ kind: 'ready', processId: process.pid, card: this.handoff.describeInstance() });
  }

  prompt({ id, prompt, sampling }: Extract<Message<typeof prefillCommands>, { kind: 'prompt' }>): void {
    const samplingParams = {
      ...sampling,
      temperature: 0,
      do_kv_handoff: true,
      return_log_probs: true,
      skip_prompt_log_probs: true,
    };
    this.engine
      .addRequest({ requestId: id, prompt, samplingParams })
      .catch((error: { code: string; message: string }) => {
        this.send({ kind: 'failed', id, code: error.code, message: error.message });
      });
    this.wake();
  }

  release(handoff: HandoffRef): void {
    this.handoff.releaseHandoffBlocks(handoff);
    this.wake();
  }

  async stop(): Promise<void> {
    this.handoff.pollPendingKvPushes();
    this.send(remains(this.handoff));
    await this.handoff.close({ force: true });
  }

  private wake(): void {
    if (this.turning) return;
    this.turning = true;
    setImmediate(() => this.turn());
  }

  /** One turn: a step of the engine, and tickets for what it finished. */
  private turn(): void {
    try {
      this.turning = false;
      this.handoff.pollPendingKvPushes();
      this.engine.step();
      this.life.pass(this.engine.tokenCount);
      this.handOff();
      this.engine.cleanupFinished();
      if (this.engine.hasWork) this.wake();
    } catch (error) {
      this.fail(error);
    }
  }

  private handOff(): void {
    const { handoff } = this;
    const finished = this.engine.takeFinishedPrefills();
    if (finished.length === 0) return;
    const prepared = handoff.prepareHandoffMetadataBatch(
      finished.map((each) => ({
        ...each,
        promptTokens: each.prompt.length,
        doKvHandoff: true,
        returnLogProbs: true,
      })),
    );
    for (const each of finished) {
      const ticket = encodeTicket(handoff.captureHandoffMeta(each, prepared));
      this.send({
        kind: 'prefilled',
        id: String(each.requestId),
        ticket,
        logits: digestOf(each.logits!),
        blocks: each.blocks.length,
        computedTokens: each.prompt.length - each.cachedTokens,
      });
    }
  }
}

let worker: PrefillWorker | null = null;
const port = openPort('prefill', prefillCommands, prefillAnswers, async (command): Promise<void> => {
  switch (command.kind) {
    case 'start':
      worker = new PrefillWorker(command.engine, port.send, port.fail);
      return worker.open();
    case 'prompt':
      return worker?.prompt(command);
    case 'release':
      return worker?.release(command.handoff);
    case 'stop':
      await worker?.stop();
      process.disconnect();
  }
});
