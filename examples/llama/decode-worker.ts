/**
 * The decode process of the llama.cpp demo: takes handoffs over, generates, and says when it has read the source. It tells
 * the router what it sees on the way, as the main demo's does.
 */
import { decodeTicket, isHandoffError, StateHandoff, type Finished, type RequestId } from 'state-handoff';
import type { CoordinatedEngine } from 'state-handoff/coordinator';
import { ImportWatch } from '../demo/import-watch.js';
import { remains } from '../demo/remains.js';
import { openPort } from '../demo/worker-port.js';
import { LlamaDecodeEngine, type DecodeFigures, type Operation } from './decode-engine.js';
import { connectMs, digestOf, engineOptions, residentBytes } from './engine-setting.js';
import { decodeAnswers, decodeCommands, type EngineSetting, type RecordedOperation } from './messages.js';

/** At this many tokens a step copies no more of one request's state, so that the others wait for milliseconds only. */
const loadTokensMax = 256;

class DecodeWorker {
  private readonly engine: LlamaDecodeEngine;
  private readonly handoff: StateHandoff;
  private coordinated: CoordinatedEngine | null = null;
  /** Behind a coordinator: by its numbers, which request they mean. */
  private readonly names = new Map<string, string>();
  private readonly watch: ImportWatch;
  private readonly digests = new Map<string, string[]>();
  private recorded: RecordedOperation[] = [];
  private turning = false;
  private again = false;
  private timer: NodeJS.Timeout | null = null;
  private corrupts: boolean;
  private isStopped = false;

  constructor(private readonly setting: EngineSetting) {
    this.corrupts = setting.corrupt;
    this.engine = new LlamaDecodeEngine({
      ...engineOptions(setting),
      loadBlocksMax: Math.ceil(loadTokensMax / setting.blockTokens),
      onToken: (requestId, index, token, logits) => {
        const id = this.nameOf(requestId);
        this.digests.get(id)?.push(digestOf(logits));
        if (this.coordinated === null) port.send({ kind: 'token', id, index, token });
        else this.coordinated.partial(Number(requestId), [token]);
      },
      onOperation: setting.shared ? (operation) => this.recorded.push(this.flat(operation)) : null,
    });
    this.handoff = new StateHandoff(this.engine, { instance: 'llama-decode' });
    this.engine.attachHandoff(this.handoff);
    const { handoff } = this;
    this.watch = new ImportWatch(
      () => handoff.inspect().imports,
      (sight) => port.send({ ...sight, id: this.nameOf(sight.id) }),
    );
    this.handoff.on('handoffAdmitted', ({ requestId }) => port.send({ kind: 'admitted', id: this.nameOf(requestId) }));
    this.handoff.on('kvReadDone', ({ requestId, source }) => {
      // A coordinator hears of it by itself.
      if (source !== null && this.coordinated === null)
        port.send({ kind: 'readDone', id: String(requestId), handoff: source });
    });
    this.handoff.on('engineFailed', port.fail);
    this.handoff.on('wake', () => this.wake());
  }

  async open(): Promise<void> {
    await this.handoff.setupKvTransfer('decode', this.setting.transport);
    port.send({ kind: 'ready', processId: process.pid, card: this.handoff.describeInstance() });
  }

  take(id: string, prompt: readonly number[], limit: number, ticket: string): void {
    this.look();
    this.digests.set(id, []);
    try {
      const { kvMeta, blockIds } = decodeTicket(ticket);
      const sampling = { num_tokens_to_generate: limit };
      this.handoff.addRequestWithKvHandoff(id, prompt, sampling, kvMeta, blockIds).then(
        (finished) => this.finished(id, finished),
        (error: unknown) => this.refused(id, error),
      );
    } catch (error) {
      this.refused(id, error);
    }
    this.look();
    this.wake();
  }

  /** From now on handoffs come from a coordinator, by its numbers. */
  async join(address: string): Promise<void> {
    // What only this mode needs is loaded in this mode.
    const { CoordinatedEngine } = await import('state-handoff/coordinator');
    this.coordinated = await CoordinatedEngine.connect({
      handoff: this.handoff,
      address,
      connectMs,
      onHandoff: ({ requestId, samplingParams }) => {
        const id = String(samplingParams['x_request_id']);
        this.names.set(String(requestId), id);
        this.digests.set(id, []);
      },
      onFinished: (requestId, finished) => this.finished(this.nameOf(requestId), finished),
      onFailed: (requestId, error) => this.refused(this.nameOf(requestId), error),
      onMessage: () => this.wake(),
    });
    this.wake();
    port.send({ kind: 'joined' });
  }

  abort(id: string): void {
    this.handoff.abortKvHandoff(id);
    this.wake();
  }

  attestDead(instance: string, incarnation: string): void {
    this.handoff.attestInstanceDead(instance, incarnation);
    this.wake();
  }

  async stop(): Promise<void> {
    this.isStopped = true;
    if (this.timer !== null) clearTimeout(this.timer);
    await this.coordinated?.close();
    const { evaluatedTokens, evaluatedPromptTokens } = this.engine;
    port.send({ kind: 'evaluated', tokens: evaluatedTokens, promptTokens: evaluatedPromptTokens });
    port.send(remains(this.handoff));
    await this.handoff.close({ force: true });
  }

  private nameOf(requestId: RequestId): string {
    return this.names.get(String(requestId)) ?? String(requestId);
  }

  private finished(id: string, { generatedTokens: tokens, finishReason: reason, extra }: Finished): void {
    const figures = (extra ?? { keptTokens: 0, loads: 0, loadMs: 0 }) as DecodeFigures;
    const logits = this.digests.get(id) ?? [];
    this.digests.delete(id);
    const { evaluatedTokens } = this.engine;
    port.send({ kind: 'finished', id, tokens, reason, logits, ...figures, evaluatedTokens });
  }

  private refused(id: string, error: unknown): void {
    if (!isHandoffError(error)) return port.fail(error);
    port.send({ kind: 'failed', id, code: error.code, message: error.message });
  }

  private wake(): void {
    this.again = true;
    if (this.isStopped || this.turning) return;
    this.turning = true;
    if (this.timer !== null) clearTimeout(this.timer);
    setImmediate(() => void this.turn().catch(port.fail));
  }

  /** Turns of the engine, until there is nothing to do: what landed, who is admitted, one evaluation. */
  private async turn(): Promise<void> {
    const { handoff, engine } = this;
    while (this.again && !this.isStopped) {
      this.again = false;
      this.look();
      this.coordinated?.drain();
      handoff.pollPendingKvImports();
      this.look();
      handoff.scheduleWaitingRequests(0);
      this.look();
      await engine.step();
      this.tellOperations();
      if (engine.hasWork || handoff.hasAdmittableKvImport) this.again = true;
      // Messages come in between.
      await new Promise(setImmediate);
    }
    this.turning = false;
    // Bytes that land wake this process; a peer is looked at now and then.
    if (!this.isStopped && handoff.pendingKvImportCount > 0) this.timer = setTimeout(() => this.wake(), 1);
  }

  /** Tells what is new. Whichever look finds that state has landed, nobody has used it yet. */
  private look(): void {
    const landed = this.watch.look();
    if (!this.corrupts || landed === null || landed.block < 0) return;
    this.corrupts = false;
    this.engine.memory.flipBit(landed.block);
  }

  private tellOperations(): void {
    if (this.recorded.length === 0) return;
    port.send({ kind: 'operations', operations: this.recorded });
    this.recorded = [];
  }

  private flat(operation: Operation): RecordedOperation {
    const { kind, lane } = { lane: 0, ...operation };
    const none = { what: kind, lane, id: '', from: 0, to: 0, rows: [] };
    switch (operation.kind) {
      case 'keep':
        return { ...none, to: operation.tokens };
      case 'load':
        return { ...none, id: this.nameOf(operation.requestId), from: operation.from, to: operation.to };
      case 'evaluate':
        return {
          ...none,
          rows: operation.rows.map(({ requestId, ...row }) => ({ id: this.nameOf(requestId), ...row })),
        };
    }
  }
}

let worker: DecodeWorker | null = null;
const port = openPort('decode', decodeCommands, decodeAnswers, async (command): Promise<void> => {
  switch (command.kind) {
    case 'start':
      worker = new DecodeWorker(command.engine);
      return worker.open();
    case 'handoff':
      return worker?.take(command.id, command.prompt, command.limit, command.ticket);
    case 'abort':
      return worker?.abort(command.id);
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
