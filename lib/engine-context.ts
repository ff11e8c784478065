/**
 * What a host engine implements. Everything the SDK wants from an engine is here, and nothing else is called.
 */
import type { BlockAllocator, SlotAllocator } from './memory/allocators.js';
import type { BufferGeometry } from './memory/axes-geometry.js';
import type { KvLayout } from './memory/kv-layout.js';
import type { Region } from './memory/region.js';
import type { SsmLayout } from './memory/ssm-layout.js';

/** The caller's name of a request: a label, unique among the living requests of an instance. */
export type RequestId = number | string;

/**
 * Something that completes on a device or elsewhere. `isComplete` is polled; once true it stays true. Host engines
 * whose work is finished when the call returns use `null` instead.
 */
export interface Fence {
  /** Whether it has completed; never blocks. */
  isComplete(): boolean;
}

/** Sampling parameters as they travel (spec 1.5.5); unknown keys are kept. */
export interface SamplingParams {
  readonly num_tokens_to_generate?: number | null;
  readonly num_tokens_total?: number | null;
  readonly termination_id?: number | null;
  readonly stop_words?: readonly string[] | null;
  readonly return_log_probs?: boolean;
  readonly skip_prompt_log_probs?: boolean;
  readonly top_n_logprobs?: number;
  readonly [key: string]: unknown;
}

/** A request whose prompt state is in place and that the engine now owns. */
export interface PrefilledRequest {
  /** Minted by the SDK in log order; never used twice in an incarnation. Use it in `finishRequest` and `failRequest`. */
  readonly attemptId: number;
  readonly requestId: RequestId;
  readonly prompt: Int32Array;
  readonly samplingParams: SamplingParams;
  /** `1 + numSpeculativeTokens` tokens: the sampled token, then the proposals. */
  readonly resumeTokens: readonly number[];
  /** Log-probability of the sampled token, when it was asked for. */
  readonly resumeLogProbs: readonly number[] | null;
  /** Blocks of the prompt in sequence order, including a partial last block. One reference each, now the engine's. */
  readonly blocks: Int32Array;
  /** Further blocks for the resume tokens. One reference each, now the engine's. */
  readonly continuationBlocks: Int32Array;
  /** SSM state slot, now the engine's; null for attention-only models. */
  readonly slot: number | null;
  /** How many leading blocks came from this engine's own cache. */
  readonly cachedPrefixBlocks: number;
  /** Hashes of the complete blocks of the prompt. */
  readonly blockHashes: BigInt64Array;
  /** The engine must not read the state before this fence completes; null when it is already in place. */
  readonly landed: Fence | null;
}

/** Attention state of this rank. Several buffers (one a layer, K and V apart) cover disjoint parts of the layout. */
export interface KvBuffers {
  readonly layout: KvLayout;
  readonly buffers: readonly BufferGeometry[];
  /** For each buffer, the first global layer it holds; its `layer` axis counts from there. */
  readonly layerStarts: readonly number[];
}

/** SSM state of this rank: live slots. */
export interface SsmBuffers {
  readonly layout: SsmLayout;
  readonly conv: BufferGeometry;
  readonly recurrent: BufferGeometry;
  /** Slots that exist in memory, a dummy slot included. */
  readonly physicalSlots: number;
}

/** What an engine that only prefills implements: its memory and its allocators. */
export interface PrefillContext {
  /** Model identity; both sides must agree. */
  readonly model: string;
  readonly dtype: string;
  /** Tokens per block. */
  readonly blockSize: number;
  readonly maxRequests: number;
  readonly maxSequenceLength: number;
  /** Multi-token-prediction proposals that travel beside the sampled token. */
  readonly numSpeculativeTokens: number;
  readonly regions: readonly Region[];
  readonly kv: KvBuffers;
  /** Null for attention-only models. */
  readonly ssm: SsmBuffers | null;
  readonly blocks: BlockAllocator;
  /** Null for attention-only models. */
  readonly slots: SlotAllocator | null;
  /** Whether the engine keeps durable SSM snapshots. Allowed on prefill, refused on decode (spec 5). */
  readonly hasSsmSnapshotCache: boolean;
}

/**
 * What a host engine implements: its memory, its allocators, and the few questions the SDK asks a decode engine.
 *
 * No method may throw: the engine is then taken for broken (`ENGINE_CALL_FAILED`, event `engineFailed`). Questions
 * (`canAdmitPrefilledDecode`, `isComplete`, `growthReserve`, `growthBlocks`, `targetQuiescent`) change nothing and call
 * nothing of `StateHandoff`; `admitPrefilledDecode` and `abortRequest` may call `finishRequest` and `failRequest` only.
 */
export interface EngineContext extends PrefillContext {
  /**
   * Decode, optional. False for an engine that copies imported state into memory of its own: its requests get no blocks
   * beyond the prompt's, neither to resume nor to grow. Default true.
   */
  readonly growsInBlocks?: boolean;
  /** Decode. Whether the running batch has room. Asked at the scheduling point only; must not change anything. */
  canAdmitPrefilledDecode(request: PrefilledRequest): boolean;
  /** Decode. Takes ownership of blocks and slot and puts the request into the running batch. Must not throw. */
  admitPrefilledDecode(request: PrefilledRequest): void;
  /** Decode. Ends an admitted request at its next step and then calls `finishRequest` or `failRequest`. */
  abortRequest(attemptId: number): void;
  /** Decode. Whether the transferred first token already ends the request. Must not change anything. */
  isComplete(request: PrefilledRequest, firstToken: number): 'no' | 'length' | 'stop';
  /** Decode. Blocks that running requests may still need before they end; imports leave them alone. */
  growthReserve(): number;
  /**
   * Decode, optional. Blocks an import may still need after its resume tokens. Default: up to its token limit, or to
   * `maxSequenceLength` when it has none. An engine that can preempt may return less.
   */
  growthBlocks?(promptTokens: number, samplingParams: SamplingParams): number;
  /** Decode. Completes once no earlier work of the engine can touch this memory; null when that is so already. */
  targetQuiescent(blocks: Int32Array, slot: number | null): Fence | null;
}

/** What a finished request resolves with. */
export interface Finished {
  readonly requestId: RequestId;
  readonly attemptId: number;
  readonly generatedTokens: readonly number[];
  readonly generatedLogProbs: readonly number[] | null;
  readonly finishReason: 'length' | 'stop';
  /** Prompt tokens that were not computed here: all of them, after a handoff. */
  readonly cachedTokens: number;
  /** Whatever the engine adds. */
  readonly extra?: unknown;
}
