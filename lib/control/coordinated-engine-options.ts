/** What a host engine gives to be connected to a coordinator, and what it is asked. Data and signatures only. */
import type { Finished, SamplingParams } from '../engine-context.js';
import type { HandoffError } from '../errors.js';
import type { StateHandoff } from '../state-handoff.js';
import type { Ticket } from '../ticket.js';
import type { WireProfile } from './protocol/codec.js';
import type { CurvePeer } from './zeromq/curve-peers.js';
import type { ControlSignal } from './protocol/messages.js';

/** A prompt that a prefill engine is asked to compute. */
export interface PrefillOrder {
  /** The coordinator's number; the label to capture the handoff under. */
  readonly requestId: number;
  readonly prompt: Int32Array;
  readonly samplingParams: SamplingParams;
  /** Aborts when nobody waits for it any more. To reject then is the quickest end; a ticket is as good. */
  readonly signal: AbortSignal;
}

/** A request that a decode engine is given, with its handoff. */
export interface DecodeOrder {
  /** The coordinator's number; the label of the import. */
  readonly requestId: number;
  readonly prompt: Int32Array;
  /** As the client sent them, `x_request_id` among them when it gave one. */
  readonly samplingParams: SamplingParams;
}

/** How an engine connects. */
export interface CoordinatedEngineOptions {
  /** Set up. Of several ranks, each connects its own with the same options. */
  readonly handoff: StateHandoff;
  /** As the coordinator printed it, for example `tcp://127.0.0.1:5757`. Only rank 0 connects to it. */
  readonly address: string;
  /**
   * Its name on the control plane, for a coordinator that knows its engines (`--inference-shards`): `prefill_s0_dp0`, see
   * `shardInstances`. Default: made of the instance's name; with `curve` it is that name.
   */
  readonly identity?: string;
  /** The coordinator's. Default `multi-frame`. */
  readonly profile?: WireProfile;
  /** Keys and name, for a coordinator that uses CURVE; the name is this engine's alone. */
  readonly curve?: CurvePeer;
  /**
   * Milliseconds between words to the coordinator on how loaded this engine is (`load()`); one that misses three is shown as
   * stopped. Default 1,000 in the multi-frame profile; null, the default in the other: none, as Megatron's router knows none.
   */
  readonly statusMs?: number | null;
  /** How long the coordinator may take to accept the registration, in milliseconds. Default 5,000. */
  readonly connectMs?: number;
  /**
   * Prefill, required there: computes a prompt and gives what `captureHandoffMeta` gave. Called inside `drain`; of several
   * ranks on each of them, in the step that carries the prompt, and it must come to the same end on all: what another rank
   * than 0 gives, `null` will do, is not looked at.
   */
  readonly prefill?: (order: PrefillOrder) => Ticket | null | Promise<Ticket | null>;
  /** Decode, rank 0: a request has come and its import begins when this returns; what it throws fails the request. */
  readonly onHandoff?: (order: DecodeOrder) => void;
  /**
   * Decode, rank 0: a request is over, with what the engine gave to `finishRequest`, its `extra` too. The client is answered when
   * this returns; what it throws fails the request.
   */
  readonly onFinished?: (requestId: number, finished: Finished) => void;
  /** Decode, rank 0: a request of `onHandoff` has failed or was aborted. The client hears of it by itself. */
  readonly onFailed?: (requestId: number, error: HandoffError) => void;
  /** Token ids of a prompt that came as text; without it such a request fails. */
  readonly tokenize?: (text: string) => readonly number[];
  /** Control signals, called inside `drain`, or on every rank in the step that carries them; a new epoch is given to `setGenerationEpoch` when this returns. */
  readonly onSignal?: (signal: ControlSignal) => void;
  /** Something came: call `drain` soon. For engines that sleep when they have nothing to do. */
  readonly onMessage?: () => void;
  /** The coordinator refused this engine when it came back; it is no longer connected. */
  readonly onRejected?: (error: HandoffError) => void;
}
