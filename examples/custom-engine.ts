/**
 * A whole engine that hands its state off, in under 100 lines. Its "model" keeps one number a token in paged memory; the
 * next token follows from all numbers so far, so a single wrong byte changes the output.
 */
import * as sdk from 'state-handoff';

const blockSize = 4;
const poolSize = 33;
const numberBytes = 4;
const oneRank = { tpSize: 1, tpRank: 0, ppSize: 1, ppRank: 0, globalRank: 0, layerStart: 0, layerEnd: 1 };
const handsOff = { doKvHandoff: true, returnLogProbs: false, resumeLogProbs: null };
const axis = (name: sdk.AxisName, size: number, strideBytes: number): sdk.Axis => ({ name, size, strideBytes });
const axes = [axis('block', poolSize, blockSize * numberBytes), axis('token', blockSize, numberBytes)];

/** A request that decodes. `tokens` are in memory; the last of `out` is not yet. */
type Running = { request: sdk.PrefilledRequest; table: number[]; tokens: number[]; out: number[] };

export class ToyEngine implements sdk.EngineContext {
  readonly dtype = 'int32';
  readonly blockSize = blockSize;
  readonly maxRequests = 8;
  readonly maxSequenceLength = 64;
  readonly numSpeculativeTokens = 0;
  readonly hasSsmSnapshotCache = false;
  readonly ssm = null;
  readonly slots = null;
  // The SDK's pool and memory: other processes can read it, and generations tell those that come too late.
  readonly blocks = new sdk.BlockPool({ poolSize, generations: new sdk.Generations(poolSize) });
  readonly regions = [sdk.allocateHostRegion({ bytes: poolSize * blockSize * numberBytes })];
  // Where the numbers lie: named axes with byte strides.
  readonly kv: sdk.KvBuffers = {
    layout: { numLayersGlobal: 1, numKvHeadsGlobal: 1, headDim: 1, ...oneRank },
    layerStarts: [0],
    buffers: [{ region: 0, offsetBytes: 0, elementBytes: numberBytes, axes }],
  };
  readonly handoff = new sdk.StateHandoff(this);
  private readonly numbers = new Int32Array(this.regions[0]!.buffer!);
  private running: Running[] = [];

  constructor(readonly model = 'toy-1') {}

  /** Stores a token's number through the block table, reads all of them back, and says which token follows. */
  forward(table: readonly number[], position: number, token: number): number {
    const place = (at: number): number => table[Math.floor(at / blockSize)]! * blockSize + (at % blockSize);
    this.numbers[place(position)] = token * 31 + position;
    let sum = 7;
    for (let at = 0; at <= position; at += 1) sum = Math.imul(sum, 16_777_619) ^ this.numbers[place(at)]!;
    return (sum >>> 0) % 251;
  }

  /** Prefill: computes the prompt, pins its blocks and lets go of its own references. The ticket is all decode needs. */
  prefill(requestId: sdk.RequestId, prompt: readonly number[]): sdk.Ticket {
    const blocks = this.blocks.allocate(Math.ceil(prompt.length / blockSize));
    if (blocks === null) throw new Error('no room for the prompt; try again when a pin was released');
    const next = prompt.map((token, position) => this.forward([...blocks], position, token)).at(-1)!;
    const finished = { requestId, promptTokens: prompt.length, blocks, slot: null, resumeTokens: [next], ...handsOff };
    const prepared = this.handoff.prepareHandoffMetadataBatch([finished]); // what it refuses, it has given back
    try {
      return this.handoff.captureHandoffMeta(requestId, prepared);
    } finally {
      this.blocks.release(blocks);
    }
  }

  /** Decode: one engine step. The SDK's two calls, then one token for every running request. */
  step(): void {
    this.handoff.pollPendingKvImports();
    this.handoff.scheduleWaitingRequests(0);
    for (const each of [...this.running]) {
      const token = each.out.at(-1)!;
      if (each.tokens.length === each.table.length * blockSize) each.table.push(this.blocks.allocate(1)![0]!);
      each.out.push(this.forward(each.table, each.tokens.length, token));
      each.tokens.push(token);
      if (each.out.length >= this.limitOf(each.request)) this.end(each);
    }
  }

  private end = (each: Running): void => {
    this.running = this.running.filter((other) => other !== each);
    this.blocks.release(Int32Array.from(each.table));
    const result = { generatedTokens: each.out, generatedLogProbs: null, cachedTokens: each.request.prompt.length };
    this.handoff.finishRequest(each.request.attemptId, { ...result, finishReason: 'length' });
  };

  // What the SDK asks of a decode engine.
  canAdmitPrefilledDecode = (): boolean => this.running.length < this.maxRequests;
  admitPrefilledDecode = (request: sdk.PrefilledRequest): void => {
    const table = [...request.blocks, ...request.continuationBlocks];
    this.running.push({ request, table, tokens: [...request.prompt], out: [...request.resumeTokens] });
  };
  abortRequest = (id: number): void => this.running.filter(({ request }) => request.attemptId === id).forEach(this.end);
  isComplete = (request: sdk.PrefilledRequest): 'no' | 'length' => (this.limitOf(request) === 1 ? 'length' : 'no');
  growthReserve = (): number => this.running.reduce((sum, each) => sum + this.growthOf(each), 0);
  targetQuiescent = (): null => null;
  private limitOf = ({ prompt, samplingParams }: sdk.PrefilledRequest): number =>
    Math.min(samplingParams.num_tokens_to_generate ?? Infinity, this.maxSequenceLength - prompt.length);
  private growthOf = ({ request, table }: Running): number =>
    Math.ceil((request.prompt.length + this.limitOf(request)) / blockSize) - table.length;
}
