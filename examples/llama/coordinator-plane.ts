/**
 * The llama.cpp demo behind the shipped coordinator: starts it as a process, is its client, and tells what it answers. Refuses
 * nothing itself: what the coordinator says of a request is the request's end.
 */
import { computeBlockHashes, isHandoffError } from 'state-handoff';
import {
  CoordinatorClient,
  Float64,
  spawnCoordinator,
  wireMap,
  type ClientRequest,
  type SpawnedCoordinator,
  type WireMap,
} from 'state-handoff/coordinator';
import { connectMs } from './engine-setting.js';
import type { Observation, Reply } from './observation.js';

export interface PlaneEvents {
  readonly token: (seen: Observation, token: number) => void;
  readonly ended: (seen: Observation, reply: Reply) => void;
  /** The coordinator has gone. */
  readonly lost: (error: Error) => void;
}

export class CoordinatorPlane {
  private client: CoordinatorClient | null = null;
  private readonly aborts = new Map<string, AbortController>();
  private isClosing = false;

  private constructor(
    private readonly coordinator: SpawnedCoordinator,
    private readonly blockTokens: number,
    private readonly events: PlaneEvents,
  ) {
    void coordinator.ended.then(({ status, signal }) => {
      if (!this.isClosing) events.lost(new Error(`the coordinator process ended uncalled with ${signal ?? status}`));
    });
  }

  /** @throws (rejects) when it does not start */
  static async start(blockTokens: number, events: PlaneEvents): Promise<CoordinatorPlane> {
    const settings = { policy: 'longest_prefix', 'drain-ms': 0, 'log-level': 'error' };
    return new CoordinatorPlane(await spawnCoordinator(settings), blockTokens, events);
  }

  get processId(): number {
    return this.coordinator.processId;
  }

  get address(): string {
    return this.coordinator.address;
  }

  /** Once both engines are registered. */
  async connect(): Promise<void> {
    this.client = await CoordinatorClient.connect({ address: this.address, connectMs });
  }

  submit(seen: Observation): void {
    const { id, prompt, limit } = seen.request;
    const abort = new AbortController();
    this.aborts.set(id, abort);
    const sampling = wireMap({ num_tokens_to_generate: limit, temperature: new Float64(0), streaming: true });
    const blockHashes = computeBlockHashes(prompt, this.blockTokens);
    const options = { signal: abort.signal, xRequestId: id, blockHashes };
    void this.follow(seen, this.client!.addRequest(Array.from(prompt), sampling, options));
  }

  abort(id: string): void {
    this.aborts.get(id)?.abort();
  }

  /** Resolves when the process has gone. */
  async close(): Promise<void> {
    this.isClosing = true;
    this.client?.close();
    await this.coordinator.close();
  }

  private async follow(seen: Observation, request: ClientRequest): Promise<void> {
    const { events } = this;
    try {
      for await (const { kind, body } of request) {
        if (kind === 'partial') for (const token of tokensOf(body, 'new_tokens')) events.token(seen, token);
        else {
          const reason = body.get('finish_reason') === 'stop' ? 'stop' : 'length';
          events.ended(seen, { tokens: tokensOf(body, 'generated_tokens'), reason });
        }
      }
    } catch (error) {
      if (!isHandoffError(error)) return events.lost(error as Error);
      if (!this.isClosing) events.ended(seen, { code: error.code, message: error.message });
    }
  }
}

function tokensOf(body: WireMap, key: string): number[] {
  return [...(body.get(key) as readonly number[])];
}
