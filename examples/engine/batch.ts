/**
 * One forward pass: which tokens of which requests, and the scratch memory that layers write into.
 *
 * Rows are tokens. Nothing a layer computes for one row depends on which other rows are in the batch, except through
 * the state in the KV pool and in the slots.
 */
import type { ModelConfig } from './config.js';
import { shardCount } from './math.js';

const { cos, exp, log, sin } = Math;

/** Consecutive tokens of one request. */
export interface Piece {
  readonly tokens: Int32Array;
  /** Index in `tokens` of the first token to run, and how many. */
  readonly from: number;
  readonly count: number;
  /** Position in the sequence of the first token. */
  readonly position: number;
  /** Block table of the request: block `i` holds positions from `i * blockSize` on. */
  readonly blocks: Int32Array;
  /** State slot, or -1 for attention-only models. */
  readonly slot: number;
  /** Logits are computed for the tokens of the piece from this one on; `count` for none. */
  readonly logitsFrom: number;
  /** Takes the SSM state after each token, so that tokens can be taken back; null when none will be. */
  readonly snapshots: Float32Array | null;
}

export class Batch {
  readonly pieces: Piece[] = [];
  /** Rows in use. */
  rows = 0;
  readonly tokens: Int32Array;
  readonly positions: Int32Array;
  /** Index of the row's piece. */
  readonly pieceOf: Int32Array;

  /** `[row][dModel]`: the stream that layers add to. */
  readonly residual: Float64Array;
  /** `[row][dModel]`: scratch for normed input. */
  readonly normed: Float64Array;
  /** How many terms the current sublayer adds: 1, or the experts of a token in id order. */
  terms = 1;
  /** `[row][term]`: factor of each term. */
  readonly gates: Float64Array;
  /** `[row][term]`: the expert of each term, in an expert layer. */
  readonly chosen: Int32Array;
  /** `[row][term][shard][dModel]`: what tensor and expert ranks exchange. */
  readonly partials: Float32Array;
  /** `[row][headDim / 2]`. */
  readonly cosines: Float64Array;
  readonly sines: Float64Array;

  /** Rows with logits, in row order. */
  logitRows = 0;
  /** `[logit row][vocabSize]`. */
  readonly logits: Float32Array;
  /** `[logit row][dModel]`: the residual stream there, which the proposing head continues. */
  readonly hidden: Float64Array;
  /** Logit row of each row, or -1. */
  readonly logitRowOf: Int32Array;
  private readonly frequencies: Float64Array;

  /**
   * @param capacity - rows at most
   * @param logitCapacity - rows with logits at most
   */
  constructor(
    private readonly config: ModelConfig,
    readonly capacity: number,
    logitCapacity: number,
  ) {
    const { dModel } = config;
    const termsMax = config.experts?.perToken ?? 1;
    const pairs = config.attention.headDim / 2;
    this.tokens = new Int32Array(capacity);
    this.positions = new Int32Array(capacity);
    this.pieceOf = new Int32Array(capacity);
    this.logitRowOf = new Int32Array(capacity);
    this.residual = new Float64Array(capacity * dModel);
    this.normed = new Float64Array(capacity * dModel);
    this.gates = new Float64Array(capacity * termsMax);
    this.chosen = new Int32Array(capacity * termsMax);
    this.partials = new Float32Array(capacity * termsMax * shardCount * dModel);
    this.cosines = new Float64Array(capacity * pairs);
    this.sines = new Float64Array(capacity * pairs);
    this.logits = new Float32Array(logitCapacity * config.vocabSize);
    this.hidden = new Float64Array(logitCapacity * dModel);
    const { headDim, ropeTheta } = config.attention;
    this.frequencies = Float64Array.from({ length: pairs }, (_, i) => exp((-2 * i * log(ropeTheta)) / headDim));
  }

  clear(): void {
    this.pieces.length = 0;
    this.rows = 0;
    this.logitRows = 0;
  }

  /** Adds a piece; it must fit. */
  add(piece: Piece): void {
    const pairs = this.frequencies.length;
    for (let i = 0; i < piece.count; i++) {
      const row = this.rows++;
      const position = piece.position + i;
      this.tokens[row] = piece.tokens[piece.from + i]!;
      this.positions[row] = position;
      this.pieceOf[row] = this.pieces.length;
      this.logitRowOf[row] = i >= piece.logitsFrom ? this.logitRows++ : -1;
      for (let pair = 0; pair < pairs; pair++) {
        const angle = position * this.frequencies[pair]!;
        this.cosines[row * pairs + pair] = cos(angle);
        this.sines[row * pairs + pair] = sin(angle);
      }
    }
    this.pieces.push(piece);
  }

  /** A copy of one logit row. */
  copyLogits(logitRow: number): Float32Array {
    const { vocabSize } = this.config;
    return this.logits.slice(logitRow * vocabSize, (logitRow + 1) * vocabSize);
  }
}
