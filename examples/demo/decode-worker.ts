/**
 * The decode process: takes handoffs over, generates, and says when it has read the source. It tells the router what it
 * sees on the way: who waits for room, what was cached, what moved and how fast.
 */
import { decodeTicket, isHandoffError, StateHandoff, type Fence } from 'state-handoff';
import { Engine, type EngineMemory, type FinishedExtra } from '../engine/index.js';
import { digestOf, engineOptions } from './engine-setting.js';
import { ImportWatch } from './import-watch.js';
import { decodeAnswers, decodeCommands, type EngineSetting, type Message } from './messages.js';
import { remains } from './remains.js';
import { SignOfLife } from './sign-of-life.js';
import { openPort } from './worker-port.js';

type HandoffCommand = Extract<Message<typeof decodeCommands>, { kind: 'handoff' }>;

/** An engine that can say of a target that earlier work may still touch it, as one on a GPU would. */
class HoldingEngine extends Engine {
  holdsTargets = false;

  override targetQuiescent(blocks: Int32Array, slot: number | null): Fence | null {
    return this.holdsTargets ? { isComplete: () => false } : super.targetQuiescent(blocks, slot);
  }
}

class DecodeWorker {
  private readonly memory: EngineMemory;
  private readonly engine: HoldingEngine;
  private readonly handoff: StateHandoff;
  private readonly watch: ImportWatch;
  private readonly life: SignOfLife;
  private next: { readonly isSoon: boolean; readonly cancel: () => void } | null = null;
  private corrupts: boolean;
  private isStopped = false;

  constructor(
    private readonly setting: EngineSetting,
    private readonly send: (message: Message<typeof decodeAnswers>) => void,
    private readonly fail: (error: unknown) => void,
  ) {
    const options = engineOptions('decode', setting);
    this.memory = options.memory;
    this.corrupts = setting.corrupt;
    this.life = new SignOfLife((tokens) => send({ kind: 'busy', tokens }));
    this.engine = new HoldingEngine({
      ...options,
      onToken: ({ requestId, token, index }) => send({ kind: 'token', id: String(requestId), index, token }),
    });
    const handoff = new StateHandoff(this.engine, { instance: 'demo-decode' });
    this.handoff = handoff;
    this.watch = new ImportWatch(() => handoff.inspect().imports, send);
    this.engine.attachHandoff(handoff);
    handoff.on('handoffAdmitted', ({ requestId }) => send({ kind: 'admitted', id: String(requestId) }));
    handoff.on('kvReadDone', ({ requestId, source }) => {
      if (source !== null) send({ kind: 'readDone', id: String(requestId), handoff: source });
    });
    handoff.on('engineFailed', fail);
    handoff.on('wake', () => this.wake());
  }

  async open(): Promise<void> {
    await this.handoff.setupKvTransfer('decode', this.setting.transport);
    this.send({ kind: 'ready', processId: process.pid, card: this.handoff.describeInstance() });
  }

  take({ id, prompt, sampling, ticket, holdTransfer }: HandoffCommand): void {
    const { kvMeta, blockIds } = decodeTicket(ticket);
    const samplingParams = { ...sampling, temperature: 0, return_log_probs: true, skip_prompt_log_probs: true };
    this.watch.look();
    this.engine.holdsTargets = holdTransfer;
    const result = this.handoff.addRequestWithKvHandoff(id, prompt, samplingParams, kvMeta, blockIds);
    this.engine.holdsTargets = false;
    result.then(
      ({ generatedTokens, generatedLogProbs, finishReason, extra }) => {
        const { logits, proposed, accepted } = (extra ?? { logits: [], proposed: 0, accepted: 0 }) as FinishedExtra;
        this.send({
          kind: 'finished',
          id,
          tokens: generatedTokens,
          reason: finishReason,
          logProbs: generatedLogProbs,
          logits: (logits ?? []).flatMap((row) => (row === null ? [] : [digestOf(row)])),
          proposed,
          accepted,
        });
      },
      (error: unknown) => {
        if (!isHandoffError(error)) return this.fail(error);
        this.send({ kind: 'failed', id, code: error.code, message: error.message });
      },
    );
    this.watch.look();
    this.wake();
  }

  abort(id: string): void {
    this.handoff.abortKvHandoff(id);
    this.wake();
  }

  async stop(): Promise<void> {
    this.isStopped = true;
    this.next?.cancel();
    this.send(remains(this.handoff));
    await this.handoff.close({ force: true });
  }

  private wake(): void {
    if (this.isStopped || this.next?.isSoon === true) return;
    this.next?.cancel();
    const timer = setImmediate(() => this.turn());
    this.next = { isSoon: true, cancel: () => clearImmediate(timer) };
  }

  /** Bytes that land wake this process; a peer or a fence is looked at now and then. */
  private wakeLater(): void {
    if (this.isStopped || this.next !== null) return;
    const timer = setTimeout(() => this.turn(), 1);
    this.next = { isSoon: false, cancel: () => clearTimeout(timer) };
  }

  /** One turn of the engine: what landed, who is admitted, one forward pass. */
  private turn(): void {
    try {
      const { handoff, engine, watch } = this;
      this.next = null;
      watch.look();
      handoff.pollPendingKvImports();
      const landed = watch.look();
      if (this.corrupts && landed !== null && landed.block >= 0) this.flipBit(landed.block);
      handoff.scheduleWaitingRequests(0);
      watch.look();
      const tokens = engine.step();
      watch.look();
      this.life.pass(engine.tokenCount);
      if (engine.hasWork || handoff.hasAdmittableKvImport || tokens > 0) this.wake();
      else if (handoff.pendingKvImportCount > 0) this.wakeLater();
    } catch (error) {
      this.fail(error);
    }
  }

  private flipBit(block: number): void {
    this.corrupts = false;
    const { numbers, keys, blockStride } = this.memory.kvMemory.layers[0]!;
    const bytes = new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength);
    const at = 4 * (keys + block * blockStride) + 3;
    bytes[at] = bytes[at]! ^ 1;
  }
}

let worker: DecodeWorker | null = null;
const port = openPort('decode', decodeCommands, decodeAnswers, async (command): Promise<void> => {
  switch (command.kind) {
    case 'start':
      worker = new DecodeWorker(command.engine, port.send, port.fail);
      return worker.open();
    case 'handoff':
      return worker?.take(command);
    case 'abort':
      return worker?.abort(command.id);
    case 'stop':
      await worker?.stop();
      process.disconnect();
  }
});
