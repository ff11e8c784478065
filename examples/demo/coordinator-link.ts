/**
 * A coordinator as a process of its own, and a client of it: what a router needs that leaves the requests to the shipped
 * coordinator. Both demos use it. Refuses nothing itself: what the coordinator says of a request is the request's end.
 */
import { computeBlockHashes, isHandoffError } from 'state-handoff';
import {
  CoordinatorClient,
  Float64,
  spawnCoordinator,
  wireMap,
  type ClientRequest,
  type CoordinatorSettings,
  type SpawnedCoordinator,
  type Wire,
  type WireMap,
} from 'state-handoff/coordinator';

/** A busy machine may take its time. */
const connectMs = 60_000;

export interface Answer {
  readonly tokens: number[];
  /** Null unless the request asked for them. */
  readonly logProbs: number[] | null;
  readonly reason: 'length' | 'stop';
}

/** What becomes of one request: tokens, then one end. */
export interface Heard {
  token(token: number): void;
  finished(answer: Answer): void;
  failed(code: string, message: string): void;
}

export class CoordinatorLink {
  private client: CoordinatorClient | null = null;
  private isClosing = false;

  private constructor(
    private readonly coordinator: SpawnedCoordinator,
    private readonly blockSize: number,
    private readonly lost: (error: Error) => void,
  ) {
    void coordinator.ended.then(({ status, signal }) => {
      if (!this.isClosing) lost(new Error(`the coordinator process ended uncalled with ${signal ?? status}`));
    });
  }

  /**
   * @param settings - beside those of both demos, see `state-handoff coordinator --help`
   * @param blockSize - of the engines: prefixes are known by their blocks
   * @param lost - the coordinator has gone
   * @throws (rejects) when it does not start
   */
  static async start(
    settings: CoordinatorSettings,
    blockSize: number,
    lost: (error: Error) => void,
  ): Promise<CoordinatorLink> {
    const all = { policy: 'longest_prefix', 'drain-ms': 0, 'log-level': 'error', ...settings };
    return new CoordinatorLink(await spawnCoordinator(all), blockSize, lost);
  }

  get processId(): number {
    return this.coordinator.processId;
  }

  get address(): string {
    return this.coordinator.address;
  }

  /** Once the engines are registered. */
  async connect(): Promise<void> {
    this.client = await CoordinatorClient.connect({ address: this.address, connectMs });
  }

  /** Submits a request, drawn greedily; what it returns aborts it. */
  ask(id: string, prompt: Int32Array, sampling: Readonly<Record<string, Wire>>, heard: Heard): () => void {
    const abort = new AbortController();
    const blockHashes = computeBlockHashes(prompt, this.blockSize);
    const options = { signal: abort.signal, xRequestId: id, blockHashes };
    const map = wireMap({ ...sampling, temperature: new Float64(0), streaming: true });
    void this.follow(this.client!.addRequest(Array.from(prompt), map, options), heard);
    return () => abort.abort();
  }

  attestDead(instance: string, incarnation: string): Promise<void> {
    return this.client!.attestDead(instance, incarnation, connectMs);
  }

  /** Resolves when the process has gone. */
  async close(): Promise<void> {
    this.isClosing = true;
    this.client?.close();
    await this.coordinator.close();
  }

  private async follow(request: ClientRequest, heard: Heard): Promise<void> {
    try {
      for await (const { kind, body } of request) {
        if (kind === 'partial') for (const token of numbers(body, 'new_tokens')!) heard.token(token);
        else heard.finished(answerOf(body));
      }
    } catch (error) {
      if (!isHandoffError(error)) return this.lost(error as Error);
      // Its client ends every request itself.
      if (!this.isClosing) heard.failed(error.code, error.message);
    }
  }
}

function answerOf(body: WireMap): Answer {
  return {
    tokens: numbers(body, 'generated_tokens')!,
    logProbs: numbers(body, 'generated_log_probs'),
    reason: body.get('finish_reason') === 'stop' ? 'stop' : 'length',
  };
}

function numbers(body: WireMap, key: string): number[] | null {
  const values = body.get(key) as readonly Wire[] | null;
  return values?.map((value) => (value instanceof Float64 ? value.value : (value as number))) ?? null;
}
