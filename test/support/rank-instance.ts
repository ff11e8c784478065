/**
 * Instances whose ranks are processes (`rank-child.js`), moved step by step by a test. Each (layer, head, token) of a prompt
 * fills words of its own, so that every rank can tell whether its part came right; deadlines pass when the test says so.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startChild, type Child } from './child-process.js';

/** Blocks that requests can have, on every rank. */
export const usable = 23;
export const prompt = Array.from({ length: 18 }, (_, at) => at * 7 + 1);
/** Of the prompt and its continuation. */
export const promptBlocks = 5;
export const deadlines = { queueMs: null, handshakeMs: null, transferMs: 1000, pinMs: null };
const folder = mkdtempSync(join(tmpdir(), 'ranks-'));
afterAll(() => rmSync(folder, { recursive: true }));

export interface View {
  readonly shared: {
    readonly imports: readonly object[];
    readonly quarantine: readonly object[];
    readonly running: string[];
  };
  readonly states: Readonly<Record<string, string>>;
  readonly free: number;
  readonly results: Readonly<Record<string, { readonly wrong?: number; readonly code?: string } | null>>;
  readonly failures: readonly { readonly code: string; readonly rank: number }[];
  readonly read: readonly unknown[];
  readonly errors: readonly { readonly requestId: string; readonly code: string; readonly sourceSafe: boolean }[];
  readonly pins: number;
}
export type Thrown = { readonly code: string | null; readonly rank?: number };

let instances = 0;

/** Ranks of one instance, moved together. */
export class RankInstance {
  /** What the test is about: the request begun last. */
  request = '';

  private constructor(
    readonly name: string,
    readonly ranks: readonly Child[],
  ) {}

  static async open(tpSize: number, ppSize: number, role: 'prefill' | 'decode' = 'decode'): Promise<RankInstance> {
    instances += 1;
    const name = `${role}-${instances}`;
    const size = tpSize * ppSize;
    const instance = new RankInstance(
      name,
      Array.from({ length: size }, () => startChild('rank')),
    );
    const path = join(folder, name);
    await Promise.all(
      instance.ranks.map((child, rank) => {
        const place = { tpSize, tpRank: rank % tpSize, ppSize, ppRank: Math.floor(rank / tpSize) };
        const group = size === 1 ? null : { rank, size, address: { path }, token: `token of ${name} here` };
        return child.ask('open', { role, instance: name, place, group, deadlines });
      }),
    );
    return instance;
  }

  get leader(): Child {
    return this.ranks[0]!;
  }

  /** One engine step of these ranks: rank 0 publishes, the others apply. What each threw. */
  async step(ranks: readonly Child[] = this.ranks): Promise<Thrown[]> {
    return Promise.all(ranks.map((child) => child.ask<Thrown>('step')));
  }

  async poll(ranks: readonly Child[] = this.ranks): Promise<void> {
    for (const child of [...ranks].reverse()) await child.ask('poll');
  }

  views(ranks: readonly Child[] = this.ranks): Promise<View[]> {
    return Promise.all(ranks.map((child) => child.ask<View>('view')));
  }

  /** Steps until rank 0 says so. What every rank threw in the last step. */
  async until(holds: (leader: View) => boolean, ranks: readonly Child[] = this.ranks): Promise<Thrown[]> {
    for (;;) {
      await this.poll(ranks);
      const thrown = await this.step(ranks);
      if (holds(await this.leader.ask<View>('view'))) return thrown;
    }
  }

  /** All that the log decides is the same on these ranks; what rank 0 shows. */
  async expectEqual(ranks: readonly Child[] = this.ranks): Promise<View> {
    const [leader, ...others] = await this.views(ranks);
    for (const other of others) expect(other.shared).toEqual(leader!.shared);
    return leader!;
  }

  set(flags: Record<string, boolean>, ranks: readonly Child[] = this.ranks): Promise<unknown> {
    return Promise.all(ranks.map((child) => child.ask('set', flags)));
  }

  advance(ms: number, ranks: readonly Child[] = this.ranks): Promise<unknown> {
    return Promise.all(ranks.map((child) => child.ask('advance', { ms })));
  }

  kill(): Promise<unknown> {
    return Promise.all(this.ranks.map((child) => child.kill()));
  }
}
