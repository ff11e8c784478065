/**
 * The demo behind the shipped coordinator. Engines are chosen by the coordinator, by prefix and load; the router's channels
 * to its workers carry no request.
 */
import type { ControlPlane, Engines } from './control-plane.js';
import { CoordinatorLink, type Answer } from './coordinator-link.js';
import { shardSpec, type EngineShapes } from './engine-shapes.js';
import type { Observation } from './observation.js';
import type { DemoOptions } from './options.js';
import type { Stage } from './scenario.js';

export interface PlaneEvents {
  readonly token: (seen: Observation, token: number) => void;
  readonly finished: (seen: Observation, finished: Answer) => void;
  readonly failed: (seen: Observation, code: string, message: string) => void;
  /** The coordinator has gone. */
  readonly lost: (error: Error) => void;
}

export class CoordinatorPlane implements ControlPlane {
  private engines: Engines = { prefills: [], decodes: [] };
  private readonly aborts = new Map<Observation, () => void>();
  private arrivals = 0;

  private constructor(
    private readonly link: CoordinatorLink,
    private readonly events: PlaneEvents,
  ) {}

  /** It takes the engines of these options and no others. @throws (rejects) when it does not start */
  static async start(
    { blockSize, ...options }: EngineShapes & Pick<DemoOptions, 'blockSize'>,
    events: PlaneEvents,
  ): Promise<CoordinatorPlane> {
    const settings = { 'inference-shards': shardSpec(options) };
    return new CoordinatorPlane(await CoordinatorLink.start(settings, blockSize, events.lost), events);
  }

  get processId(): number {
    return this.link.processId;
  }

  get address(): string {
    return this.link.address;
  }

  async begin(engines: Engines): Promise<void> {
    this.engines = engines;
    await this.link.connect();
  }

  submit(seen: Observation): void {
    const { id, prompt, held } = seen.request;
    const { events } = this;
    const sampling = {
      ...seen.sampling,
      return_log_probs: true,
      skip_prompt_log_probs: true,
      // Not the protocol's: travels to the decode engine as all that it does not know.
      demo_hold: held,
    };
    const abort = this.link.ask(id, prompt, sampling, {
      token: (token) => events.token(seen, token),
      finished: (answer) => events.finished(seen, answer),
      failed: (code, message) => events.failed(seen, code, message),
    });
    this.aborts.set(seen, abort);
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
    return this.link.attestDead(instance, incarnation);
  }

  abort(seen: Observation): void {
    this.aborts.get(seen)!();
  }

  readDone(): void {
    // The engine tells the coordinator itself.
  }

  close(): Promise<void> {
    return this.link.close();
  }
}
