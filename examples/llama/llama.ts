/**
 * The only door to the example's addon: llama.cpp as a model and as caches of it, with types. The addon is built from
 * examples/llama/native by the scripts of `npm run demo:llama` and `npm run test:llama`; it is no part of the package.
 */
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** What a model says of itself. */
export interface ModelFacts {
  readonly description: string;
  readonly layers: number;
  /** Heads that keys and values have. */
  readonly heads: number;
  readonly headDim: number;
  readonly vocabulary: number;
  readonly trainedLength: number;
  /** Of llama.cpp. */
  readonly release: string;
}

/** A model in memory. Everything here may be called while a cache evaluates. */
export interface LlamaModel {
  readonly facts: ModelFacts;
  /** @param special - adds what the model wants at the ends, and reads the names of special tokens as such */
  tokenize(text: string, special: boolean): Int32Array;
  /** The bytes of a token's text; a character may be cut between two. */
  piece(token: number): Buffer;
  /** The model's own chat form of `[role, text]` messages, asking for an answer at the end. */
  chat(messages: readonly (readonly [role: string, text: string])[], asks: boolean): string;
  /** Whether a token ends the text. */
  endsText(token: number): boolean;
}

/** Element types of keys and values that stand alone. */
export type CacheType = 'float16' | 'bfloat16' | 'float32';

/** Where a block's rows lie, in bytes; see native/sequence_state.h. */
export interface BlockForm {
  readonly blockTokens: number;
  readonly blockStride: number;
  readonly layerStride: number;
  readonly planeStride: number;
}

/**
 * llama.cpp's own memory of keys and values, and the evaluation on it. One call at a time: while `evaluate` runs, every
 * other call throws.
 */
export interface LlamaCache {
  /** Bytes of the keys of one token in one layer; the values have as many. */
  readonly rowBytes: number;
  /** Resolves with the rows of logits that `outputs` asks for, in order. Runs on a thread of its own. */
  evaluate(
    tokens: Int32Array,
    positions: Int32Array,
    sequences: Int32Array,
    outputs: Uint8Array,
  ): Promise<Float32Array<ArrayBuffer>>;
  /** Forgets a sequence from a position on. */
  truncate(sequence: number, from: number): void;
  /** -1 when the sequence is empty. */
  lastPosition(sequence: number): number;
  /** Copies tokens [from, to) of a sequence into blocks; `blocks[0]` gets `from`, the first token of a block. */
  exportBlocks(
    sequence: number,
    from: number,
    to: number,
    blocks: Int32Array,
    form: BlockForm,
    memory: Uint8Array,
  ): void;
  /** Appends tokens [from, to) from blocks to a sequence that ends before `from`. */
  importBlocks(
    sequence: number,
    from: number,
    to: number,
    blocks: Int32Array,
    form: BlockForm,
    memory: Uint8Array,
  ): void;
  /** Frees the memory; refused while it evaluates. */
  close(): void;
}

export interface CacheOptions {
  /** Tokens that fit, over all sequences. */
  readonly cells: number;
  readonly sequences: number;
  /** Tokens of one evaluation at most; more than there are sequences. */
  readonly batch: number;
  readonly dtype: CacheType;
}

interface Addon {
  readonly NativeModel: new (libraryFolder: string, modelFile: string) => LlamaModel;
  readonly NativeCache: new (model: LlamaModel, options: CacheOptions) => LlamaCache;
}

/** The release whose structs native/llama_api.h declares, as llama.cpp names it. */
const release = '0.5.0-dev';

let loaded: Addon | null = null;

function addon(): Addon {
  if (loaded === null) {
    let root = __dirname;
    while (!existsSync(join(root, 'package.json'))) root = dirname(root);
    const file = join(root, 'examples', 'llama', 'native', 'build', 'Release', 'llama_state.node');
    if (!existsSync(file)) throw new Error('the addon of examples/llama is not built; run npm run demo:llama');
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    loaded = require(file) as Addon;
  }
  return loaded;
}

/** @throws Error when llama.cpp or the model does not load, or is of another release than this example knows */
export function loadModel(libraryFolder: string, modelFile: string): LlamaModel {
  const model = new (addon().NativeModel)(libraryFolder, modelFile);
  if (model.facts.release !== release) {
    throw new Error(`llama.cpp: expected release ${release}, got ${model.facts.release}`);
  }
  return model;
}

/** @throws Error when there is no memory for it */
export function openCache(model: LlamaModel, options: CacheOptions): LlamaCache {
  return new (addon().NativeCache)(model, options);
}
