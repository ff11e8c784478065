/**
 * The prefill process of the llama.cpp demo: computes prompts, pins their state, and says where it lies. It keeps a pin until
 * the router says that decode has read it.
 */
import { encodeTicket, isHandoffError, StateHandoff } from 'state-handoff';
import { remains } from '../demo/remains.js';
import { openPort } from '../demo/worker-port.js';
import { digestOf, engineOptions, residentBytes } from './engine-setting.js';
import { prefillAnswers, prefillCommands, type EngineSetting } from './messages.js';
import { LlamaPrefillEngine } from './prefill-engine.js';

class PrefillWorker {
  private readonly engine: LlamaPrefillEngine;
  private readonly handoff: StateHandoff;

  constructor(private readonly setting: EngineSetting) {
    this.engine = new LlamaPrefillEngine(engineOptions(setting));
    this.handoff = new StateHandoff(this.engine, { instance: 'llama-prefill' });
    this.engine.attachHandoff(this.handoff);
    this.handoff.on('released', ({ requestId }) => port.send({ kind: 'released', id: String(requestId) }));
    this.handoff.on('wake', () => this.handoff.pollPendingKvPushes());
  }

  async open(): Promise<void> {
    await this.handoff.setupKvTransfer('prefill', this.setting.transport);
    port.send({ kind: 'ready', processId: process.pid, card: this.handoff.describeInstance() });
  }

  async prompt(id: string, prompt: readonly number[], owner: string): Promise<void> {
    try {
      const { ticket, logits, ...figures } = await this.engine.prefill(id, Int32Array.from(prompt));
      // Should that instance die, its death gives the blocks back.
      this.handoff.claimHandoff(ticket.handoff!, owner);
      port.send({ kind: 'prefilled', id, ticket: encodeTicket(ticket), logits: digestOf(logits), ...figures });
    } catch (error) {
      if (!isHandoffError(error)) throw error;
      port.send({ kind: 'failed', id, code: error.code, message: error.message });
    }
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
    this.handoff.pollPendingKvPushes();
    port.send(remains(this.handoff));
    await this.handoff.close({ force: true });
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
    case 'attestDead':
      return worker?.attestDead(command.instance, command.incarnation);
    case 'measure':
      return port.send({ kind: 'memory', residentBytes: residentBytes() });
    case 'stop':
      await worker?.stop();
      process.disconnect();
  }
});
