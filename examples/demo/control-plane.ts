/**
 * Who carries requests to the engines and messages between them. Two of them: the router itself, over the channels that it
 * has to its workers (here), and the coordinator that ships with the package (`coordinator-plane.ts`). Neither sees state.
 */
import type { HandoffRef } from 'state-handoff';
import type { EngineInstance } from './engine-world.js';
import type { decodeAnswers, decodeCommands, prefillAnswers, prefillCommands } from './messages.js';
import type { Observation } from './observation.js';
import type { Stage } from './scenario.js';

export type PrefillInstance = EngineInstance<typeof prefillCommands, typeof prefillAnswers>;
export type DecodeInstance = EngineInstance<typeof decodeCommands, typeof decodeAnswers>;

/** All engines, once they are there. */
export interface Engines {
  readonly prefills: readonly PrefillInstance[];
  readonly decodes: readonly DecodeInstance[];
}

export interface ControlPlane {
  /** For the first line of the output; null: no process of its own. */
  readonly processId: number | null;
  /** What engines connect to; null: nothing. */
  readonly address: string | null;
  /** All engines are ready. */
  begin(engines: Engines): Promise<void>;
  submit(seen: Observation, stage: Stage): void;
  /** Its state is pinned, and its ticket here. */
  prefilled(seen: Observation, stage: Stage, all: readonly Observation[]): void;
  /** A decode engine has it, with or without room for it. `all`: of its stage. */
  arrived(seen: Observation, stage: Stage, all: readonly Observation[]): void;
  abort(seen: Observation): void;
  /** Decode does not read that source any more. */
  readDone(seen: Observation, source: HandoffRef): void;
  /** All that is held back may go on. */
  letGo(): void;
  /** Every process of that instance has ended. */
  attestDead(identity: { readonly instance: string; readonly incarnation: string }): Promise<void>;
  /** Idempotent; resolves when nothing of it is left. */
  close(): Promise<void>;
}

/** The router relays: prompts to prefill, tickets to decode, releases back. */
export class RelayPlane implements ControlPlane {
  readonly processId = null;
  readonly address = null;
  private engines: Engines = { prefills: [], decodes: [] };
  private readonly routes = new Map<
    Observation,
    { readonly prefill: PrefillInstance; readonly decode: DecodeInstance }
  >();
  /** Where prompts that begin alike go. */
  private readonly turns = new Map<string, number>();
  private arrivals = 0;

  constructor(private readonly blockSize: number) {}

  begin(engines: Engines): Promise<void> {
    this.engines = engines;
    return Promise.resolve();
  }

  /**
   * Prompts that begin alike go to the same instances, which may have the beginning; others by turns. Those that are to
   * wait in line need one line.
   */
  submit(seen: Observation, { title, waitingMin }: Stage): void {
    const { prefills, decodes } = this.engines;
    const { id, prompt } = seen.request;
    const key = waitingMin > 0 ? title : Array.from(prompt.subarray(0, this.blockSize)).join(' ');
    const turn = this.turns.get(key) ?? this.turns.size;
    this.turns.set(key, turn);
    const route = { prefill: prefills[turn % prefills.length]!, decode: decodes[turn % decodes.length]! };
    this.routes.set(seen, route);
    const { sampling } = seen;
    route.prefill.leader.process.send({ kind: 'prompt', id, prompt: Array.from(prompt), sampling });
  }

  prefilled(ready: Observation, { together }: Stage, all: readonly Observation[]): void {
    if (together && all.some(({ ticket, isSettled }) => ticket === null && !isSettled)) return;
    for (const seen of together ? all : [ready]) {
      const { request, sampling, ticket } = seen;
      if (ticket === null) continue;
      const prompt = Array.from(request.prompt);
      seen.arrival = this.arrivals++;
      const { leader } = this.routes.get(seen)!.decode;
      leader.process.send({ kind: 'handoff', id: request.id, prompt, sampling, ticket, holdTransfer: request.aborts });
    }
  }

  arrived(): void {
    // In the order in which they were sent.
  }

  abort(seen: Observation): void {
    this.routes.get(seen)!.decode.leader.process.send({ kind: 'abort', id: seen.request.id });
  }

  readDone(seen: Observation, handoff: HandoffRef): void {
    this.routes.get(seen)!.prefill.leader.process.send({ kind: 'release', handoff });
  }

  letGo(): void {
    // Nothing is: it relays when it likes.
  }

  attestDead(): Promise<void> {
    return Promise.reject(new Error('a router that relays kills no engine'));
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}
