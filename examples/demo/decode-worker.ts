/**
 * A rank of a decode engine: takes handoffs over, generates, and says when it has read the source. It tells the router
 * what it sees on the way: who waits for room, what was cached, what moved and how fast.
 */
import { isHandoffError, type Fence } from 'state-handoff';
import type { DecodeOrder } from 'state-handoff/coordinator';
import { Engine, type EngineOptions, type FinishedExtra } from '../engine/index.js';
import { EngineRank } from './engine-rank.js';
import { digestOf } from './engine-setting.js';
import { ImportWatch } from './import-watch.js';
import { decodeAnswers, decodeCommands, type EngineSetting, type Message } from './messages.js';
import { remains } from './remains.js';
import { openPort } from './worker-port.js';

type HandoffCommand = Extract<Message<typeof decodeCommands>, { kind: 'handoff' }>;

/** An engine that can say of some targets that earlier work may still touch them, as one on a GPU would. */
class HoldingEngine extends Engine {
  /** Whether these blocks are a target that is held; null: none is. */
  holds: ((blocks: Int32Array) => boolean) | null = null;

  override targetQuiescent(blocks: Int32Array, slot: number | null): Fence | null {
    if (this.holds === null) return super.targetQuiescent(blocks, slot);
    const own = blocks.slice();
    return { isComplete: () => this.holds?.(own) !== true };
  }
}

class DecodeWorker {
  /** Requests whose transfer is not to start. */
  private readonly held = new Set<string>();
  private readonly watch: ImportWatch;

  private constructor(
    private readonly rank: EngineRank<HoldingEngine>,
    private corrupts: boolean,
    private readonly send: (message: Message<typeof decodeAnswers>) => void,
    private readonly fail: (error: unknown) => void,
  ) {
    const { handoff, isLeader } = rank;
    this.watch = new ImportWatch(() => handoff.inspect().imports, send, isLeader);
    handoff.on('engineFailed', fail);
    if (!isLeader) return;
    handoff.on('handoffAdmitted', ({ requestId }) => send({ kind: 'admitted', id: String(requestId) }));
    handoff.on('kvReadDone', ({ requestId, source }) => {
      this.letGo(String(requestId));
      if (source !== null) send({ kind: 'readDone', id: String(requestId), handoff: source });
    });
    rank.engine.attachHandoff({
      finishRequest: (attemptId, result) => {
        const { logits, proposed, accepted } = result.extra as FinishedExtra;
        const rows = (logits ?? []).flatMap((row) => (row === null ? [] : [digestOf(row)]));
        send({ kind: 'computed', id: String(result.requestId), logits: rows, proposed, accepted });
        handoff.finishRequest(attemptId, result);
      },
      failRequest: (attemptId, error) => handoff.failRequest(attemptId, error),
    });
  }

  static async open(
    setting: EngineSetting,
    send: (message: Message<typeof decodeAnswers>) => void,
    fail: (error: unknown) => void,
  ): Promise<DecodeWorker> {
    const { coordinator: address, identity } = setting;
    const onToken: NonNullable<EngineOptions['onToken']> = ({ requestId, token, index }) =>
      address === null
        ? send({ kind: 'token', id: String(requestId), index, token })
        : parts.worker?.rank.stream(requestId, [token]);
    const build = (options: EngineOptions): HoldingEngine =>
      new HoldingEngine(options.ranks?.place.isLeader === true ? { ...options, onToken } : options);
    const parts: { worker: DecodeWorker | null } = { worker: null };
    const onMoment = (): void => parts.worker?.look();
    const rank = await EngineRank.open('decode', setting, build, { onMoment });
    const worker = (parts.worker = new DecodeWorker(rank, setting.corrupt, send, fail));
    if (address !== null) await rank.join({ address, identity, onHandoff: (order) => worker.receive(order) });
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

  take({ id, prompt, sampling, ticket, holdTransfer }: HandoffCommand): void {
    const samplingParams = { ...sampling, temperature: 0, return_log_probs: true, skip_prompt_log_probs: true };
    this.look();
    if (holdTransfer) this.hold(id);
    const result = this.rank.loop.takeOver({ requestId: id, prompt, samplingParams, ticket });
    result.then(
      ({ generatedTokens: tokens, generatedLogProbs: logProbs, finishReason: reason }) =>
        this.send({ kind: 'finished', id, tokens, reason, logProbs }),
      (error: unknown) => {
        if (!isHandoffError(error)) return this.fail(error);
        this.send({ kind: 'failed', id, code: error.code, message: error.message });
      },
    );
    this.look();
    this.rank.wake();
  }

  /** What the coordinator asks for; the SDK takes it over. */
  private receive({ requestId, samplingParams }: DecodeOrder): void {
    this.look();
    this.send({ kind: 'labelled', id: String(samplingParams['x_request_id']), label: String(requestId) });
    if (samplingParams['demo_hold'] === true) this.hold(String(requestId));
  }

  /** No transfer is held back any more. */
  letAllGo(): void {
    for (const id of [...this.held]) this.letGo(id);
    this.rank.wake();
  }

  abort(id: string): void {
    this.rank.handoff.abortKvHandoff(id);
    this.rank.wake();
  }

  stop(): void {
    this.rank.loop.end();
    this.rank.wake();
  }

  private hold(id: string): void {
    this.held.add(id);
    this.rank.engine.holds = (blocks) => this.isHeld(blocks);
  }

  private letGo(id: string): void {
    this.held.delete(id);
    if (this.held.size === 0) this.rank.engine.holds = null;
  }

  private look(): void {
    const landed = this.watch.look();
    if (this.corrupts && landed?.isFirst === true) this.flipBit(landed.block);
  }

  private isHeld(blocks: Int32Array): boolean {
    const { imports } = this.rank.handoff.inspect();
    return imports.some(({ requestId, blocks: own }) => this.held.has(String(requestId)) && own.includes(blocks[0]!));
  }

  private flipBit(block: number): void {
    const [layer] = this.rank.memory.kvMemory.layers;
    if (layer === undefined) return;
    this.corrupts = false;
    const { numbers, keys, blockStride } = layer;
    const bytes = new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength);
    const at = 4 * (keys + block * blockStride) + 3;
    bytes[at] = bytes[at]! ^ 1;
  }
}

let worker: DecodeWorker | null = null;
const port = openPort('decode', decodeCommands, decodeAnswers, async (command): Promise<void> => {
  switch (command.kind) {
    case 'start':
      worker = await DecodeWorker.open(command.engine, port.send, port.fail);
      await worker.run();
      return process.disconnect();
    case 'handoff':
      return worker?.take(command);
    case 'abort':
      return worker?.abort(command.id);
    case 'letGo':
      return worker?.letAllGo();
    case 'stop':
      return worker?.stop();
  }
});
