/**
 * The processes of one engine, or of several that share experts: one for each rank, named so that a reader knows which
 * one is meant. What the ranks say goes to the router; what is meant for an instance goes to the rank that leads it.
 */
import { randomBytes } from 'node:crypto';
import { RankPlace, type RankShape } from '../engine/index.js';
import type { EngineSetting, Message, parseMessage } from './messages.js';
import { WorkerProcess } from './worker-process.js';

type Schema = Parameters<typeof parseMessage>[0];
export type Side = 'prefill' | 'decode';

export interface RankWorker<Commands extends Schema, Answers extends Schema> {
  readonly name: string;
  readonly side: Side;
  readonly place: RankPlace;
  readonly process: WorkerProcess<Commands, Answers>;
}

/** One instance, as the router knows it. */
export interface EngineInstance<Commands extends Schema, Answers extends Schema> {
  readonly shape: RankShape;
  readonly leader: RankWorker<Commands, Answers>;
}

export class EngineWorld<Commands extends Schema, Answers extends Schema> {
  readonly workers: readonly RankWorker<Commands, Answers>[];
  readonly instances: readonly EngineInstance<Commands, Answers>[];

  /**
   * Starts the processes.
   *
   * @param label - of the world among its side's; empty when there is only one
   */
  constructor(
    private readonly side: Side,
    label: string,
    private readonly shape: RankShape,
    answers: Answers,
    receive: (answer: Message<Answers>, from: RankWorker<Commands, Answers>) => void,
    fail: (error: Error, isConsequence?: boolean) => void,
  ) {
    const size = shape.tp * shape.pp * shape.dp;
    this.workers = Array.from({ length: size }, (_, rank) => {
      const name = [side, ...(label === '' ? [] : [label]), ...(size === 1 ? [] : ['rank', rank])].join(' ');
      const worker: RankWorker<Commands, Answers> = {
        name,
        side,
        place: new RankPlace(shape, rank),
        process: new WorkerProcess<Commands, Answers>(
          name,
          answers,
          (answer) => receive(answer, worker),
          fail,
          __dirname,
          side,
        ),
      };
      return worker;
    });
    this.instances = this.workers
      .filter(({ place }) => place.isLeader)
      .map((leader): EngineInstance<Commands, Answers> => ({ shape, leader }));
  }

  /**
   * Tells every rank what it is and how to find the others.
   *
   * @param shard - of which number this is among all worlds' shards; a coordinator knows its engines by that
   */
  start(engine: Omit<EngineSetting, 'ranks' | 'identity'>, shard: number): void {
    const world = `state-handoff-demo-${process.pid}-${randomBytes(8).toString('hex')}`;
    const secret = randomBytes(16).toString('hex');
    for (const worker of this.workers) {
      const ranks = { ...this.shape, stages: this.shape.stages ?? null, rank: worker.place.rank, world, secret };
      const identity = `${this.side}_s${shard}_dp${worker.place.instance}`;
      worker.process.send({ kind: 'start', engine: { ...engine, ranks, identity } } as never);
    }
  }
}
