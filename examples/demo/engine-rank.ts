/**
 * One rank of an engine in this process: its links to the other ranks, its engine, the handoff SDK around it, and its
 * turns, until the router says that it is over.
 */
import { StateHandoff, type RequestId } from 'state-handoff';
import {
  openRankLinks,
  RankLoop,
  runTurns,
  type Engine,
  type EngineMemory,
  type EngineOptions,
  type RankLinks,
  type RankLoopOptions,
} from '../engine/index.js';
import type { CoordinatedEngine, CoordinatedEngineOptions } from 'state-handoff/coordinator';
import { engineOptions } from './engine-setting.js';
import type { EngineSetting } from './messages.js';
import { SignOfLife } from './sign-of-life.js';

type Hooks = Pick<RankLoopOptions, 'onTicket' | 'onMoment'>;

/** A busy machine may take its time. */
const connectMs = 60_000;

export class EngineRank<Kind extends Engine> {
  readonly handoff: StateHandoff;
  readonly loop: RankLoop;
  /** Whether this rank leads its instance: it gets the requests, and speaks for the others. */
  readonly isLeader: boolean;
  private coordinated: CoordinatedEngine | null = null;

  private constructor(
    world: string,
    ticketSecret: string,
    private readonly links: RankLinks,
    readonly engine: Kind,
    readonly memory: EngineMemory,
    hooks: Hooks,
  ) {
    const { place, peers } = links;
    this.isLeader = place.isLeader;
    const instance = `${world}-${place.instance}`;
    this.handoff = new StateHandoff(engine, { instance, incarnation: world, ticketSecret });
    engine.attachHandoff(this.handoff);
    this.handoff.on('wake', () => this.wake());
    const onTurn = (): void => void this.coordinated?.drain();
    this.loop = new RankLoop({ engine, handoff: this.handoff, place, peers, onTurn, ...hooks });
  }

  /** Resolves when all ranks of the world are there and described to each other. */
  static async open<Kind extends Engine>(
    role: 'prefill' | 'decode',
    setting: EngineSetting,
    build: (options: EngineOptions) => Kind,
    hooks: Hooks,
  ): Promise<EngineRank<Kind>> {
    const { rank: number, world, secret, ...shape } = setting.ranks;
    const links = await openRankLinks(shape, number, world, secret);
    const options = engineOptions(role, setting, links);
    const rank = new EngineRank(world, setting.ticketSecret, links, build(options), options.memory, hooks);
    await rank.handoff.setupKvTransfer(role, setting.transport, { group: links.group });
    return rank;
  }

  /** The registration card of the instance; null on ranks that do not lead it. */
  get card(): unknown {
    return this.isLeader ? this.handoff.describeInstance() : null;
  }

  /** Takes its requests from a coordinator from now on. */
  async join(options: Omit<CoordinatedEngineOptions, 'handoff'>): Promise<void> {
    // What only this mode needs is loaded in this mode.
    const { CoordinatedEngine } = await import('state-handoff/coordinator');
    const { handoff } = this;
    const onMessage = (): void => this.wake();
    this.coordinated = await CoordinatedEngine.connect({ handoff, connectMs, onMessage, ...options });
  }

  /** Tokens that were just generated, for the client of a coordinator. */
  stream(requestId: RequestId, tokens: readonly number[]): void {
    this.coordinated?.partial(requestId, tokens);
  }

  /** Something came in from outside. */
  wake(): void {
    this.loop.wake();
    this.links.wakeUp.poke();
  }

  /** Takes turns until every rank is told to end, then lets go of everything. */
  async run(onLife: (tokens: number) => void, onEnd: () => void): Promise<void> {
    const { engine, handoff, links, loop } = this;
    const life = new SignOfLife(onLife);
    await runTurns(loop, handoff, links.wakeUp, this.isLeader, () => life.pass(engine.tokenCount));
    await this.coordinated?.close();
    onEnd();
    await handoff.close({ force: true });
    links.close();
  }
}
