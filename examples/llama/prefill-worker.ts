/**
 * The prefill process of the llama.cpp demo: computes prompts, pins their state, and says where it lies. It keeps a pin until
 * the router, or a coordinator, says that decode has read it.
 */
import { encodeTicket, isHandoffError, StateHandoff, type RequestId, type Ticket } from 'state-handoff';
import type { CoordinatedEngine, PrefillOrder } from 'state-handoff/coordinator';
import { remains } from '../demo/remains.js';
import { openPort } from '../demo/worker-port.js';
import { connectMs, digestOf, engineOptions, residentBytes } from './engine-setting.js';
import { prefillAnswers, prefillCommands, type EngineSetting } from './messages.js';
import { LlamaPrefillEngine } from './prefill-engine.js';

class PrefillWorker {
  private readonly engine: LlamaPrefillEngine;
  private readonly handoff: StateHandoff;
  private coordinated: CoordinatedEngine | null = null;
  /** Behind a coordinator: which request its numbers mean. */
  private readonly names = new Map<RequestId, string>();

  constructor(private readonly setting: EngineSetting) {
    this.engine = new LlamaPrefillEngine(engineOptions(setting));
    this.handoff = new StateHandoff(this.engine, { instance: 'llama-prefill' });
    this.engine.attachHandoff(this.handoff);
    this.handoff.on('released', ({ requestId }) =>
      port.send({ kind: 'released', id: this.names.get(requestId) ?? String(requestId) }),
    );
    this.handoff.on('wake', () => this.handoff.pollPendingKvPushes());
  }

  async open(): Promise<void> {
    await this.handoff.setupKvTransfer('prefill', this.setting.transport);
    port.send({ kind: 'ready', processId: process.pid, card: this.handoff.describeInstance() });
  }

  async prompt(id: string, prompt: readonly number[], owner: string): Promise<void> {
    try {
      const { handoff } = await this.compute(id, id, Int32Array.from(prompt));
      // Should that instance die, its death gives the blocks back.
      this.handoff.claimHandoff(handoff!, owner);
    } catch (error) {
      if (!isHandoffError(error)) throw error;
      port.send({ kind: 'failed', id, code: error.code, message: error.message });
    }
  }

  /** From now on prompts come from a coordinator, by its numbers. */
  async join(address: string): Promise<void> {
    // What only this mode needs is loaded in this mode.
    const { CoordinatedEngine } = await import('state-handoff/coordinator');
    const drain = (): void => void this.coordinated?.drain();
    this.coordinated = await CoordinatedEngine.connect({
      handoff: this.handoff,
      address,
      connectMs,
      prefill: (order) => this.obey(order),
      onMessage: () => setImmediate(drain),
    });
    drain();
    port.send({ kind: 'joined' });
  }

  abort(id: string): void {
    this.engine.abort(id);
  }

  release(handoff: Parameters<StateHandoff['releaseHandoffBlocks']>[0]): void {
    this.handoff.releaseHandoffBlocks(handoff);
  }

  attestDead(instance: string, incarnation: string): void {
    this.handoff.attestInstanceDead(instance, incarnation);
  }

  async stop(): Promise<void> {
    await this.coordinated?.close();
    this.handoff.pollPendingKvPushes();
    port.send(remains(this.handoff));
    await this.handoff.close({ force: true });
  }

  private async obey({ requestId, prompt, samplingParams, signal }: PrefillOrder): Promise<Ticket> {
    const id = String(samplingParams['x_request_id']);
    this.names.set(requestId, id);
    signal.addEventListener('abort', () => this.engine.abort(requestId));
    return this.compute(id, requestId, prompt);
  }

  /** @param label - what the handoff is called; the router knows it as `id` */
  private async compute(id: string, label: RequestId, prompt: Int32Array): Promise<Ticket> {
    const { ticket, logits, ...figures } = await this.engine.prefill(label, prompt);
    port.send({ kind: 'prefilled', id, ticket: encodeTicket(ticket), logits: digestOf(logits), ...figures });
    return ticket;
  }
}

let worker: PrefillWorker | null = null;
const port = openPort('prefill', prefillCommands, prefillAnswers, async (command): Promise<void> => {
  switch (command.kind) {
    case 'start':
      worker = new PrefillWorker(command.engine);
      return worker.open();
    case 'prompt':
      return worker?.prompt(command.id, command.prompt, command.owner);
    case 'abort':
      return worker?.abort(command.id);
    case 'release':
      return worker?.release(command.handoff);
    case 'join':
      return worker?.join(command.address);
    case 'attestDead':
      return worker?.attestDead(command.instance, command.incarnation);
    case 'measure':
      return port.send({ kind: 'memory', residentBytes: residentBytes() });
    case 'stop':
      await worker?.stop();
      process.disconnect();
  }
});
