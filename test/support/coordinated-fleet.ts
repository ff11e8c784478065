/**
 * A coordinator with engines whose ranks are processes (`coordinated-rank-child.js`), and requests to it: what a client gets
 * is compared with what one engine generates alone, and in the end nobody holds anything.
 */
import { randomBytes } from 'node:crypto';
import { Coordinator, CoordinatorClient, CoordinatorServer, wireMap } from 'state-handoff/coordinator';
import type { HandoffError } from 'state-handoff';
import { startChild, type Child } from './child-process.js';
import { hostOfItsOwn } from './nccl-host.js';
import { until } from './waiting.js';

export interface RankState {
  readonly failures: readonly string[];
  /** Imports for which it said that it is ready. */
  readonly ready: number;
  readonly isRegistered: boolean;
  readonly pushes: number;
  readonly pins: number;
  readonly imports: readonly string[];
  readonly quarantine: number;
  readonly blocksHeld: number;
}

export interface RankProcess extends Child {
  /** Of its instance. */
  readonly name: string;
  /** Looks until the state is as wanted. */
  until(what: string, holds: (state: RankState) => boolean): Promise<RankState>;
}

export interface Asked {
  /** Resolves with the first delta. */
  readonly streams: Promise<void>;
  /** What was generated; null when it failed. */
  readonly tokens: Promise<readonly number[] | null>;
  /** Why it failed; null when it did not. */
  readonly error: Promise<HandoffError | null>;
  readonly sourceSafe: Promise<void>;
}

/** Which of a machine's GPUs the pools of prefill and decode engines are on. */
export interface FleetGpus {
  readonly source: number;
  readonly target: number;
}

/** Counts how often it told a source to send. */
class CountingCoordinator extends Coordinator {
  sendsTold = 0;

  override receive(...heard: Parameters<Coordinator['receive']>): ReturnType<Coordinator['receive']> {
    const effects = super.receive(...heard);
    for (const effect of effects) {
      if (effect.kind === 'send' && effect.message.header === 'SEND_KV') this.sendsTold += 1;
    }
    return effects;
  }
}

const count = 24;
const prompt = Array.from('The quick brown fox jumps over the lazy dog.', (letter) => letter.charCodeAt(0));
const waitingMs = 60_000;

export class CoordinatedFleet {
  private engines = 0;

  private constructor(
    private readonly core: CountingCoordinator,
    private readonly server: CoordinatorServer,
    readonly client: CoordinatorClient,
    private readonly memory: { readonly backend: string; readonly gpus?: FleetGpus },
    private readonly env: Record<string, string>,
  ) {}

  /** @param memory - where pools are: in host memory, or on `gpus` where those are named */
  static async open(
    memory: { readonly backend: string; readonly gpus?: FleetGpus },
    env: Record<string, string> = {},
  ): Promise<CoordinatedFleet> {
    const core = new CountingCoordinator({ instance: 'run', isDisaggregated: true });
    const address = 'tcp://127.0.0.1:0';
    const server = await CoordinatorServer.start({ core, address, fallsBack: false, heartbeatMs: 1_000 });
    const client = await CoordinatorClient.connect({ address: server.address, connectMs: waitingMs });
    return new CoordinatedFleet(core, server, client, memory, env);
  }

  /** The ranks of a new engine, rank 0 first; resolves when it is registered. */
  async engine(role: 'prefill' | 'decode', tp = 1): Promise<RankProcess[]> {
    this.engines += 1;
    const name = `${role}-${this.engines}-${process.pid}-${randomBytes(4).toString('hex')}`;
    const secret = randomBytes(16).toString('hex');
    const { backend, gpus } = this.memory;
    const sharesGpu = gpus !== undefined && gpus.source === gpus.target;
    const children = Array.from({ length: tp }, () =>
      startChild('coordinated-rank', [], { ...this.env, ...(sharesGpu ? hostOfItsOwn() : {}) }),
    );
    const { address } = this.server;
    const device = gpus?.[role === 'prefill' ? 'source' : 'target'] ?? null;
    await Promise.all(
      children.map((child, rank) =>
        child.ask('open', { role, backend, device, address, name, place: { tp, rank }, secret }),
      ),
    );
    return children.map((child) => ({ ...child, name, until: (what, holds) => comes(child, what, holds) }));
  }

  ask(): Asked {
    const sampling = wireMap({ num_tokens_to_generate: count, temperature: 0, streaming: true });
    const request = this.client.addRequest(prompt, sampling);
    let began: () => void = () => undefined;
    const streams = new Promise<void>((resolve) => (began = resolve));
    const read = async (): Promise<readonly number[]> => {
      let tokens: readonly number[] = [];
      for await (const { kind, body } of request) {
        began();
        if (kind === 'final') tokens = body.get('generated_tokens') as readonly number[];
      }
      return tokens;
    };
    const ended = read().then(
      (tokens) => ({ tokens, error: null }),
      (error: HandoffError) => ({ tokens: null, error }),
    );
    return {
      streams,
      tokens: ended.then(({ tokens }) => tokens),
      error: ended.then(({ error }) => error),
      sourceSafe: request.sourceSafe,
    };
  }

  /** A new request is generated as by one engine alone; `witness` is the process that computes it. */
  async serves(witness: RankProcess, asked = this.ask()): Promise<void> {
    expect(await asked.error).toBeNull();
    expect(await asked.tokens).toEqual(await witness.ask('alone', { prompt, count }));
    await asked.sourceSafe;
  }

  /** The coordinator has no request and no pin left, and these ranks hold nothing. */
  async settled(...ranks: readonly RankProcess[]): Promise<void> {
    await until('the coordinator has nothing left', () => {
      const { pins, requests } = this.server.snapshot();
      return pins.length + Object.values(requests).reduce((sum, each) => sum + each, 0) === 0;
    });
    for (const rank of ranks) {
      await rank.until(
        'nothing is held',
        ({ pins, imports, quarantine, pushes, blocksHeld }) =>
          pins + imports.length + quarantine + pushes + blocksHeld === 0,
      );
    }
  }

  /** How many sources the coordinator told to send. */
  get sendsTold(): number {
    return this.core.sendsTold;
  }

  /** Engines that the coordinator knows. */
  get registered(): number {
    return this.server.snapshot().engines.length;
  }

  async close(): Promise<void> {
    this.client.close();
    await this.server.close();
  }
}

async function comes(child: Child, what: string, holds: (state: RankState) => boolean): Promise<RankState> {
  for (const end = Date.now() + waitingMs; ;) {
    const state = await child.ask<RankState>('state');
    if (holds(state)) return state;
    if (Date.now() > end) throw new Error(`did not come: ${what}, ${JSON.stringify(state)}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
