/**
 * One rank of an engine whose attention state is not keys and values of heads alone: a latent without heads and its rope
 * part, quantised data with scales by head, by token or by block. Real memory that other processes could read.
 *
 * It computes no logits. Every byte follows from the tokens up to its position and from its place in the whole model, so
 * what decode got is compared byte for byte, when a request is admitted and again when it ends.
 */
import {
  allocateHostRegion,
  BlockPool,
  Generations,
  rowMajorBuffer,
  type AxisName,
  type BufferGeometry,
  type EngineContext,
  type KvBuffers,
  type PrefilledRequest,
  type Region,
  type StateHandoff,
} from '../../lib/index.js';

/** One kind of state. */
export interface ContentPart {
  /** Absent: the data that `headDim` speaks of. */
  readonly content?: string;
  /** 1: a single plane, without an axis for it. */
  readonly planes: 1 | 2;
  readonly perHead: boolean;
  /** False: one value for a whole block. */
  readonly perToken: boolean;
  /** Null: no such axis. */
  readonly dim: number | null;
  readonly elementBytes: number;
}

export interface ContentModel {
  readonly layers: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly parts: readonly ContentPart[];
}

/** How one side cuts the model and lays it out. */
export interface ContentSide {
  readonly tp: number;
  /** By stage: one past its last layer. */
  readonly stages: readonly number[];
  readonly blockSize: number;
  /** Outermost first; parts leave out what they lack. */
  readonly axes: readonly AxisName[];
  readonly perLayer: boolean;
  readonly padding: number;
}

interface Placed {
  readonly part: ContentPart;
  readonly kind: number;
  readonly buffer: BufferGeometry;
  readonly layerStart: number;
}

interface Running {
  readonly request: PrefilledRequest;
  readonly blocks: number[];
  readonly tokens: number[];
  readonly out: number[];
}

const mix = (hash: number, value: number): number => {
  const mixed = Math.imul(hash ^ (value + 0x51ed27), 0x9e3779b1);
  return mixed ^ (mixed >>> 15);
};

/** One number for each position, from all tokens up to it. */
function histories(tokens: readonly number[]): number[] {
  let hash = 7;
  return tokens.map((token) => (hash = mix(hash, token)));
}

export function nextToken(tokens: readonly number[]): number {
  return (histories(tokens).at(-1)! >>> 0) % 251;
}

export class ContentEngine implements EngineContext {
  readonly model = 'contents-1';
  readonly dtype = 'contents';
  readonly maxRequests = 4;
  readonly maxSequenceLength = 64;
  readonly hasSsmSnapshotCache = false;
  readonly ssm = null;
  readonly slots = null;
  readonly blockSize: number;
  readonly blocks: BlockPool;
  readonly regions: readonly Region[];
  readonly kv: KvBuffers;
  readonly admitted: PrefilledRequest[] = [];
  /** What was found wrong, in words. */
  readonly faults: string[] = [];
  private readonly placed: Placed[] = [];
  private readonly bytes: Uint8Array;
  private running: Running[] = [];
  private handoff: StateHandoff | null = null;

  constructor(
    whole: ContentModel,
    side: ContentSide,
    rank: number,
    readonly numSpeculativeTokens = 0,
    poolSize = 20 + Math.ceil(120 / side.blockSize),
  ) {
    const { tp, stages, blockSize } = side;
    this.blockSize = blockSize;
    this.blocks = new BlockPool({ poolSize, generations: new Generations(poolSize) });
    const [tpRank, ppRank] = [rank % tp, Math.floor(rank / tp)];
    const [layerStart, layerEnd] = [stages[ppRank - 1] ?? 0, stages[ppRank]!];
    const end = this.place(whole, side, layerStart, layerEnd, poolSize);
    this.regions = end === 0 ? [] : [allocateHostRegion({ bytes: end })];
    this.bytes = new Uint8Array(this.regions[0]?.buffer ?? new ArrayBuffer(0));
    for (let at = 0; at < end; at++) this.bytes[at] = mix(rank, at);
    this.kv = {
      layout: {
        ...{ numLayersGlobal: whole.layers, numKvHeadsGlobal: whole.kvHeads, headDim: whole.headDim },
        ...{ tpSize: tp, tpRank, ppSize: stages.length, ppRank, globalRank: rank, layerStart, layerEnd },
      },
      buffers: this.placed.map(({ buffer }) => buffer),
      layerStarts: this.placed.map(({ layerStart: first }) => first),
    };
  }

  attach(handoff: StateHandoff): void {
    this.handoff = handoff;
  }

  /** Lays the buffers out; returns their end. */
  private place(whole: ContentModel, side: ContentSide, from: number, to: number, poolSize: number): number {
    let end = 0;
    const heads = Math.max(1, whole.kvHeads / side.tp);
    for (const [kind, part] of whole.parts.entries()) {
      const step = side.perLayer ? 1 : to - from;
      for (let layer = from; layer < to; layer += step) {
        const sizes: Partial<Record<AxisName, number>> = {
          ...(part.planes === 1 ? {} : { plane: part.planes }),
          ...(side.perLayer ? {} : { layer: step }),
          block: poolSize,
          ...(part.perToken ? { token: side.blockSize } : {}),
          ...(part.perHead ? { head: heads } : {}),
          ...(part.dim === null ? {} : { dim: part.dim }),
        };
        const axes = side.axes.flatMap((name) => (sizes[name] === undefined ? [] : [[name, sizes[name]] as const]));
        const { elementBytes, content } = part;
        const buffer = rowMajorBuffer({
          ...{ offsetBytes: end, elementBytes, axes },
          ...(side.padding === 0 ? {} : { paddingBytes: { block: side.padding } }),
          ...(content === undefined ? {} : { content }),
        });
        this.placed.push({ part, kind, buffer, layerStart: layer });
        end = buffer.axes.reduce((sum, axis) => sum + (axis.size - 1) * axis.strideBytes, end + elementBytes);
      }
    }
    return end;
  }

  /** Visits every byte of positions `from … to - 1`, and of the values of the blocks they lie in. */
  private visit(
    blocks: readonly number[],
    history: readonly number[],
    from: number,
    to: number,
    each: (at: number, value: number) => void,
  ): void {
    const { layout } = this.kv;
    const firstHead = Math.floor((layout.tpRank * layout.numKvHeadsGlobal) / layout.tpSize);
    for (const { part, kind, buffer, layerStart } of this.placed) {
      const axis = (name: AxisName): { size: number; strideBytes: number } =>
        buffer.axes.find((known) => known.name === name) ?? { size: 1, strideBytes: 0 };
      const [plane, layer, head, dim] = [axis('plane'), axis('layer'), axis('head'), axis('dim')];
      for (let position = from; position < to; position++) {
        const [block, token] = [Math.floor(position / this.blockSize), position % this.blockSize];
        const last = Math.min((block + 1) * this.blockSize, to) - 1;
        // A block's own value is that of its last token.
        if (!part.perToken && position !== last) continue;
        const at = buffer.offsetBytes + blocks[block]! * axis('block').strideBytes + token * axis('token').strideBytes;
        const seed = mix(history[position]!, kind);
        for (let p = 0; p < plane.size; p++) {
          for (let l = 0; l < layer.size; l++) {
            for (let h = 0; h < head.size; h++) {
              for (let d = 0; d < dim.size; d++) {
                const value = mix(mix(mix(mix(seed, p), layerStart + l), firstHead + h), d);
                const start = at + p * plane.strideBytes + l * layer.strideBytes + h * head.strideBytes;
                for (let byte = 0; byte < part.elementBytes; byte++)
                  each(start + d * dim.strideBytes + byte, (value >>> (8 * (byte % 4))) & 0xff);
              }
            }
          }
        }
      }
    }
  }

  private write(blocks: readonly number[], tokens: readonly number[], from: number): void {
    this.visit(blocks, histories(tokens), from, tokens.length, (at, value) => (this.bytes[at] = value));
  }

  private verify(what: string, blocks: readonly number[], tokens: readonly number[]): void {
    let wrong = 0;
    let seen = 0;
    this.visit(blocks, histories(tokens), 0, tokens.length, (at, value) => {
      seen += 1;
      if (this.bytes[at] !== value) wrong += 1;
    });
    if (wrong > 0) this.faults.push(`${what}: ${wrong} of ${seen} bytes are wrong`);
  }

  /** Prefill: writes the prompt's state; the caller pins it and then releases these blocks. */
  compute(prompt: readonly number[]): Int32Array {
    const blocks = this.blocks.allocate(Math.ceil(prompt.length / this.blockSize));
    if (blocks === null) throw new Error('no room for the prompt');
    this.write([...blocks], prompt, 0);
    return blocks;
  }

  /** Decode: one token for each request that runs. */
  step(): void {
    for (const each of [...this.running]) {
      const { tokens, blocks, out, request } = each;
      if (tokens.length === blocks.length * this.blockSize) blocks.push(this.blocks.allocate(1)![0]!);
      tokens.push(out.at(-1)!);
      this.write(blocks, tokens, tokens.length - 1);
      out.push(nextToken(tokens));
      if (out.length < (request.samplingParams.num_tokens_to_generate ?? 1)) continue;
      this.end(each);
    }
  }

  private end(each: Running): void {
    this.verify(`${each.request.requestId} at its end`, each.blocks, each.tokens);
    this.running = this.running.filter((other) => other !== each);
    this.blocks.release(Int32Array.from(each.blocks));
    this.handoff!.finishRequest(each.request.attemptId, {
      ...{ generatedTokens: each.out, generatedLogProbs: null, finishReason: 'length' },
      cachedTokens: each.request.prompt.length,
    });
  }

  canAdmitPrefilledDecode(): boolean {
    return this.running.length < this.maxRequests;
  }

  admitPrefilledDecode(request: PrefilledRequest): void {
    this.admitted.push(request);
    const tokens = [...request.prompt];
    this.verify(`${request.requestId} at its admission`, [...request.blocks], tokens);
    const blocks = [...request.blocks, ...request.continuationBlocks];
    this.running.push({ request, blocks, tokens, out: [request.resumeTokens[0]!] });
  }

  abortRequest(attemptId: number): void {
    for (const each of this.running.filter(({ request }) => request.attemptId === attemptId)) this.end(each);
  }

  isComplete(): 'no' {
    return 'no';
  }

  growthReserve(): number {
    return this.running.reduce((sum, { request, blocks }) => {
      const length = request.prompt.length + (request.samplingParams.num_tokens_to_generate ?? 1);
      return sum + Math.max(0, Math.ceil(length / this.blockSize) - blocks.length);
    }, 0);
  }

  targetQuiescent(): null {
    return null;
  }
}
