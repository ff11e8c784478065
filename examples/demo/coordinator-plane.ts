/**
 * The demo behind the shipped coordinator: starts it as a process, is its client, and tells what it answers. Engines are
 * chosen by the coordinator, by prefix and load; the router's channels to its workers carry no request.
 */
import { computeBlockHashes, isHandoffError } from 'state-handoff';
import {
  CoordinatorClient,
  Float64,
  spawnCoordinator,
  wireMap,
  type ClientRequest,
  type SpawnedCoordinator,
  type Wire,
  type WireMap,
} from 'state-handoff/coordinator';
import type { ControlPlane, Engines } from './control-plane.js';
import { shardSpec, type EngineShapes } from './engine-shapes.js';
import type { DemoOptions } from './options.js';
import type { Observation } from './observation.js';
import type { Stage } from './scenario.js';

/** A busy machine may take its time. */
const connectMs = 60_000;

export interface PlaneEvents {
  readonly token: (seen: Observation, token: number) => void;
  readonly finished: (seen: Observation, finished: NonNullable<Observation['finished']>) => void;
  readonly failed: (seen: Observation, code: string, message: string) => void;
  /** The coordinator has gone. */
  readonly lost: (error: Error) => void;
}

export class CoordinatorPlane implements ControlPlane {
  private engines: Engines = { prefills: [], decodes: [] };
  private client: CoordinatorClient | null = null;
  private readonly aborts = new Map<Observation, AbortController>();
  private arrivals = 0;
  private isClosing = false;

  private constructor(
    private readonly coordinator: SpawnedCoordinator,
    private readonly blockSize: number,
    private readonly events: PlaneEvents,
  ) {
    void coordinator.ended.then(({ status, signal }) => {
      if (!this.isClosing) events.lost(new Error(`the coordinator process ended uncalled with ${signal ?? status}`));
    });
  }

  /** It takes the engines of these options and no others. @throws (rejects) when it does not start */
  static async start(
    { blockSize, ...options }: EngineShapes & Pick<DemoOptions, 'blockSize'>,
    events: PlaneEvents,
  ): Promise<CoordinatorPlane> {
    const settings = {
      'inference-shards': shardSpec(options),
      policy: 'longest_prefix',
      'drain-ms': 0,
      'log-level': 'error',
    };
    return new CoordinatorPlane(await spawnCoordinator(settings), blockSize, events);
  }

  get processId(): number {
    return this.coordinator.processId;
  }

  get address(): string {
    return this.coordinator.address;
  }

  async begin(engines: Engines): Promise<void> {
    this.engines = engines;
    this.client = await CoordinatorClient.connect({ address: this.address, connectMs });
  }

  submit(seen: Observation): void {
    const { id, prompt, held } = seen.request;
    const abort = new AbortController();
    this.aborts.set(seen, abort);
    const sampling = wireMap({
      ...seen.sampling,
      temperature: new Float64(0),
      return_log_probs: true,
      skip_prompt_log_probs: true,
      streaming: true,
      // Not the protocol's: travels to the decode engine as all that it does not know.
      demo_hold: held,
    });
    const blockHashes = computeBlockHashes(prompt, this.blockSize);
    const options = { signal: abort.signal, xRequestId: id, blockHashes };
    void this.follow(seen, this.client!.addRequest(Array.from(prompt), sampling, options));
  }

  prefilled(): void {
    // The coordinator chooses who decodes it.
  }

  /** What is to wait in line is held back until all of it is there. */
  arrived(seen: Observation, { together }: Stage, all: readonly Observation[]): void {
    if (seen.arrival < 0) seen.arrival = this.arrivals++;
    if (!together || all.some(({ arrival, isSettled }) => arrival < 0 && !isSettled)) return;
    this.letGo();
  }

  letGo(): void {
    for (const { leader } of this.engines.decodes) leader.process.send({ kind: 'letGo' });
  }

  attestDead({ instance, incarnation }: { readonly instance: string; readonly incarnation: string }): Promise<void> {
    return this.client!.attestDead(instance, incarnation, connectMs);
  }

  abort(seen: Observation): void {
    this.aborts.get(seen)!.abort();
  }

  readDone(): void {
    // The engine tells the coordinator itself.
  }

  async close(): Promise<void> {
    this.isClosing = true;
    this.client?.close();
    await this.coordinator.close();
  }

  private async follow(seen: Observation, request: ClientRequest): Promise<void> {
    try {
      for await (const { kind, body } of request) {
        if (kind === 'partial') for (const token of numbers(body, 'new_tokens')) this.events.token(seen, token);
        else this.events.finished(seen, finishedOf(body));
      }
    } catch (error) {
      if (!isHandoffError(error)) return this.events.lost(error as Error);
      // Its client ends every request itself.
      if (!this.isClosing) this.events.failed(seen, error.code, error.message);
    }
  }
}

function finishedOf(body: WireMap): NonNullable<Observation['finished']> {
  return {
    tokens: numbers(body, 'generated_tokens'),
    logProbs: body.get('generated_log_probs') === null ? null : numbers(body, 'generated_log_probs'),
    reason: body.get('finish_reason') === 'stop' ? 'stop' : 'length',
  };
}

function numbers(body: WireMap, key: string): number[] {
  return (body.get(key) as readonly Wire[]).map((value) =>
    value instanceof Float64 ? value.value : (value as number),
  );
}
