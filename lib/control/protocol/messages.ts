/**
 * The messages of spec 1.4, decoded: what a peer said, checked and typed, the same for both wire profiles. `header` tells
 * them apart. Three unions by the place that receives, since one header can carry different things towards different
 * places. What a coordinator only passes on is {@link Opaque}. No message is trusted beyond its form: who may say it, and
 * when, is the coordinator's to judge.
 */
import type { Opaque, Wire, WireMap } from './wire-value.js';

/** Messages without content. */
export interface Bare<H extends string> {
  readonly header: H;
}

/** Control signals without content (spec 1.8); broadcast as they came. */
export type PlainSignal =
  'PAUSE' | 'UNPAUSE' | 'SUSPEND' | 'RESUME' | 'STOP' | 'START_CUDA_PROFILER' | 'STOP_CUDA_PROFILER';

/** A control signal: from a client, and broadcast to the engines. */
export type ControlSignal = Bare<PlainSignal> | { readonly header: 'SET_GENERATION_EPOCH'; readonly epoch: number };

/**
 * A request to compute. Towards the coordinator `requestId` is the client's own, towards an engine the coordinator's.
 */
export interface SubmitRequest {
  readonly header: 'SUBMIT_REQUEST';
  readonly requestId: number;
  /** Text or token ids: a msgpack string, or a list of integers. Only its form as msgpack is checked. */
  readonly prompt: Opaque;
  readonly sampling: WireMap;
  /** Client to coordinator, multi-frame: null when the coordinator must hash; empty when shorter than a block. */
  readonly blockHashes: BigInt64Array | null;
  /** Multi-frame only; null when absent or nil. */
  readonly mediaMeta: Opaque | null;
  readonly media: Opaque | null;
  readonly offloadParams: Opaque | null;
}

/** A request whose prompt another engine has computed (spec 1.4): client or coordinator to a decode engine. */
export interface SubmitRequestWithKv {
  readonly header: 'SUBMIT_REQUEST_WITH_KV';
  readonly requestId: number;
  readonly prompt: Opaque;
  readonly sampling: WireMap;
  /** A msgpack map (spec 1.5.3). */
  readonly kvMeta: Opaque;
  /** A msgpack list of integers, the source's blocks in the order of the prompt. */
  readonly sourceBlockIds: Opaque;
  readonly offloadParams: Opaque | null;
}

/** One finished request in an engine's reply. */
export interface ReplyEntry {
  /** The coordinator's id. */
  readonly requestId: number;
  readonly needsDetokenize: boolean;
  /** A msgpack map (spec 1.5.4). In the single-frame profile it holds `request_id` itself. */
  readonly body: Opaque;
}

/** One streamed delta of an engine. */
export interface PartialEntry {
  readonly requestId: number;
  /** A msgpack map (spec 1.4). */
  readonly body: Opaque;
}

/** A message that names a request and says no more. */
export interface RequestRef<H extends string> {
  readonly header: H;
  readonly requestId: number;
}

/**
 * A handoff that an engine still holds when it registers: this is how a restarted coordinator learns of it. Only this
 * package's engines say it.
 */
export interface HeldHandoff {
  /** The id under which the engine knows it; another coordinator may have minted it. */
  readonly requestId: number;
  /** `pinned`: a source held for a reader. `importing`, `quarantined`: a target that is or may be written. */
  readonly state: 'pinned' | 'importing' | 'quarantined';
  /** Who reads (for a pin: the owner that claimed it) or is read, as `instance` of its registration; null: nobody yet. */
  readonly peerInstance: string | null;
  readonly peerIncarnation: string | null;
  readonly ageMs: number;
  readonly blocks: number;
}

/** What this package's engines add to their registration; null from a Megatron engine. */
export interface EngineExtension {
  readonly instance: string;
  readonly incarnation: string;
  /** Every transport the engine offers, best first, the registered one among them. */
  readonly transports: readonly string[];
  readonly held: readonly HeldHandoff[];
}

/** An engine joins a pool (spec 1.6). */
export interface RegisterRole {
  readonly header: 'REGISTER_ROLE';
  /** As the engine wrote it: `prefill` or `decode`, else the coordinator rejects the registration by name. */
  readonly role: string;
  readonly transport: string;
  /** One map per (pp, tp) rank (spec 1.5.2); anything else in the list is the coordinator's to reject. */
  readonly instanceMeta: readonly Wire[];
  readonly extension: EngineExtension | null;
}

/** A terminal failure of one request (spec 1.4). */
export interface RequestError {
  readonly header: 'REQUEST_ERROR';
  readonly requestId: number;
  readonly reason: string;
  readonly sourceSafe: boolean;
}

/** A cancellation can be finalised; the source may be freed when `sourceSafe` (spec 1.6). */
export interface RequestAborted {
  readonly header: 'REQUEST_ABORTED';
  readonly requestId: number;
  readonly sourceSafe: boolean;
}

/** `[25, rid]`, or fenced with the coordinator instance that minted the id (spec 1.7). */
export interface ReleaseKv {
  readonly header: 'RELEASE_KV';
  readonly requestId: number;
  readonly instance: string | null;
}

/** How loaded an engine is, every so often; only this package's engines say it. Unknown keys are kept for `status`. */
export interface EngineStatus {
  readonly header: 'ENGINE_STATUS';
  readonly status: WireMap;
}

/** What a coordinator can be told: by clients, by engines and by external owners. */
export type ToCoordinator =
  | Bare<'CONNECT' | 'DISCONNECT' | 'SHUTDOWN' | 'STATUS'>
  /** The empty frame with which an aggregated engine registers (spec 1.2); it has no header value. */
  | Bare<'REGISTER'>
  | ControlSignal
  | SubmitRequest
  | SubmitRequestWithKv
  | RequestRef<'ABORT_REQUEST'>
  | ReleaseKv
  | RegisterRole
  | { readonly header: 'ENGINE_REPLY'; readonly replies: readonly ReplyEntry[] }
  | { readonly header: 'ENGINE_REPLY_PARTIAL'; readonly partials: readonly PartialEntry[] }
  | RequestRef<'KV_READ_DONE'>
  | { readonly header: 'KV_TRANSFER_READY'; readonly requestId: number; readonly cachedPrefixBlocks: number }
  | RequestError
  | RequestAborted
  | RequestRef<'REGISTER_KV'>
  | { readonly header: 'CLAIM_KV'; readonly requestId: number; readonly instance: string; readonly owner: string }
  | { readonly header: 'RELEASE_KV_OWNER'; readonly instance: string; readonly owner: string }
  | EngineStatus;

/** What an engine can be told. */
export type ToEngine =
  | Bare<'REGISTER_ROLE_ACK'>
  /** A rejected registration: `[29, reason]`. */
  | { readonly header: 'REGISTRATION_ERROR'; readonly reason: string }
  | ControlSignal
  | SubmitRequest
  | SubmitRequestWithKv
  | RequestRef<'ABORT_REQUEST'>
  | ReleaseKv
  | {
      readonly header: 'SEND_KV';
      readonly requestId: number;
      /** The decode engine's registered list (spec 1.5.2). */
      readonly decodeInstanceMeta: readonly Wire[];
      /** 0 when a peer leaves it out. */
      readonly cachedPrefixBlocks: number;
    }
  /** Tells this package's prefill engines which decode instance will read a pin: `owner` is `instance/incarnation`. */
  | { readonly header: 'CLAIM_KV'; readonly requestId: number; readonly instance: string; readonly owner: string };

/** What a client, or an external owner of handoffs, can be told. */
export type ToClient =
  /** `instance` is null in the single-frame profile. */
  | { readonly header: 'CONNECT_ACK'; readonly instance: string | null }
  /** The one final reply of a request, under the client's id. */
  | { readonly header: 'ENGINE_REPLY'; readonly requestId: number; readonly body: Opaque }
  | { readonly header: 'ENGINE_REPLY_PARTIAL'; readonly requestId: number; readonly body: Opaque }
  | RequestError
  | RequestAborted
  | {
      readonly header: 'CLAIM_KV_ACK';
      readonly requestId: number;
      readonly instance: string;
      readonly granted: boolean;
    }
  | { readonly header: 'RELEASE_KV_ACK'; readonly requestId: number; readonly instance: string }
  | { readonly header: 'RELEASE_KV_OWNER_ACK'; readonly instance: string; readonly owner: string }
  /** The coordinator's snapshot as a map; keys are those of `CoordinatorSnapshot` in snake_case. */
  | { readonly header: 'STATUS_REPLY'; readonly status: WireMap };

/** Among the ranks of one instance: rank 0 to all (spec 1.2). */
export type ToRanks = {
  readonly header: 'KV_HANDOFF_COMPLETE';
  readonly requestId: number;
  readonly failed: boolean;
  /** Equal to `!failed` where an older peer leaves it out. */
  readonly sourceSafe: boolean;
};
