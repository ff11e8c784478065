/**
 * The prompts that a coordinator asked a prefill engine for: from the message to the published handoff, on rank 0, and the
 * same computation on every other rank. Publishes no ticket whose state is not in place; what was never published is
 * released at once.
 */
import { argumentError, isHandoffError, type HandoffError } from '../errors.js';
import type { HandoffRef } from '../events.js';
import type { SamplingParams } from '../engine-context.js';
import type { StateHandoff } from '../state-handoff.js';
import { unreadyFence } from '../ticket-readiness.js';
import { disaggregatedParams, type Ticket } from '../ticket.js';
import type { CoordinatedEngineOptions } from './coordinated-engine-options.js';
import { plainToWire } from './plain-wire.js';
import { stripAgentMetadata } from './protocol/agent-metadata.js';
import type { ToCoordinator } from './protocol/messages.js';
import { encodeValue, wireMap } from './protocol/wire-bytes.js';

/** A prompt as every rank gets it. */
export interface PrefillWork {
  readonly requestId: number;
  readonly prompt: Int32Array;
  readonly samplingParams: SamplingParams;
}

/** What it needs of its engine. */
export interface PrefillSurroundings {
  readonly handoff: StateHandoff;
  readonly prefill: NonNullable<CoordinatedEngineOptions['prefill']>;
  readonly maxRequests: number;
  /** Whether this rank has the socket. */
  readonly speaks: boolean;
  readonly say: (message: ToCoordinator) => void;
  /** Has every rank call `compute`. */
  readonly spread: (work: PrefillWork) => void;
}

export class CoordinatedPrefills {
  private readonly computing = new Map<number, AbortController>();
  private readonly refs = new Map<number, HandoffRef>();
  /** Tickets whose state is not in place yet. */
  private unready: Ticket[] = [];

  constructor(private readonly around: PrefillSurroundings) {}

  get size(): number {
    return this.computing.size;
  }

  /** Being computed. */
  get requestIds(): readonly number[] {
    return [...this.computing.keys()];
  }

  has(requestId: number): boolean {
    return this.computing.has(requestId);
  }

  /** Of what was published. */
  refOf(requestId: number): HandoffRef | undefined {
    return this.refs.get(requestId);
  }

  forget(requestId: number): void {
    this.refs.delete(requestId);
  }

  /**
   * Rank 0: the coordinator asks for it. The same id once more is the same request once more, and its pin may be read.
   *
   * @param read - what it is; why it cannot be read fails the request
   */
  accept(requestId: number, read: () => PrefillWork, failure: HandoffError | null): void {
    const { handoff, maxRequests, spread } = this.around;
    const isPinned = (): boolean => handoff.inspect().pins.some((pin) => pin.requestId === requestId);
    if (this.computing.has(requestId) || this.refs.has(requestId) || isPinned()) return;
    if (failure !== null) return this.fail(requestId, failure);
    if (this.computing.size >= maxRequests)
      return this.fail(requestId, new Error('this engine computes as many as it can'));
    try {
      const work = read();
      this.computing.set(requestId, new AbortController());
      spread(work);
    } catch (error) {
      this.computing.delete(requestId);
      this.fail(requestId, error);
    }
  }

  /** Every rank. */
  compute({ requestId, prompt, samplingParams }: PrefillWork): void {
    const abort = this.computing.get(requestId) ?? new AbortController();
    this.computing.set(requestId, abort);
    void this.run({ requestId, prompt, samplingParams }, abort);
  }

  /** Every rank. */
  abort(requestId: number): void {
    this.computing.get(requestId)?.abort();
  }

  /** Rank 0, each step: publishes what has become ready. */
  publishReady(): void {
    const ready = this.unready.filter(({ kvMeta }) => unreadyFence(kvMeta) === null);
    if (ready.length > 0) this.unready = this.unready.filter((ticket) => !ready.includes(ticket));
    for (const ticket of ready) this.publish(ticket);
  }

  /** Tells the coordinator that nobody computes it, or ever will. */
  fail(requestId: number, error: unknown): void {
    this.around.say({ header: 'REQUEST_ERROR', requestId, reason: reasonOf(error), sourceSafe: true });
  }

  private async run(work: PrefillWork, abort: AbortController): Promise<void> {
    const { requestId } = work;
    const { handoff, prefill, speaks, say } = this.around;
    try {
      const ticket = await prefill({ ...work, signal: abort.signal });
      // Rank 0 speaks for the others.
      if (!speaks) return;
      if (ticket?.requestId !== requestId)
        throw argumentError('ticket.requestId', String(requestId), ticket?.requestId);
      if (unreadyFence(ticket.kvMeta) === null) this.publish(ticket);
      else this.unready.push(ticket);
    } catch (error) {
      if (!speaks) return;
      // Not published, so nobody reads it.
      unlessClosed(() => handoff.releaseHandoffBlocks(requestId));
      if (abort.signal.aborted) say({ header: 'REQUEST_ABORTED', requestId, sourceSafe: true });
      else this.fail(requestId, error);
    } finally {
      if (this.computing.get(requestId) === abort) this.computing.delete(requestId);
    }
  }

  private publish(ticket: Ticket): void {
    const { say } = this.around;
    const requestId = ticket.requestId as number;
    if (ticket.handoff !== null) this.refs.set(requestId, ticket.handoff);
    const params = stripAgentMetadata(plainToWire(disaggregatedParams(ticket), 'ticket'));
    const body = encodeValue(wireMap({ request_id: requestId, disaggregated_params: params }));
    say({ header: 'REGISTER_KV', requestId });
    say({ header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body }] });
  }
}

/** For the coordinator. */
export function reasonOf(error: unknown): string {
  return isHandoffError(error) || error instanceof Error ? error.message : String(error);
}

/** After the handoff was closed there is nothing left to end. */
export function unlessClosed(call: () => void): void {
  try {
    call();
  } catch (error) {
    if (!isHandoffError(error) || error.code !== 'CLOSED') throw error;
  }
}
