/**
 * Whole instances of `ContentEngine`s: their ranks, one log each, the host transport. What hands over between them goes
 * through everything a user goes through: setup, ticket as text, import, admission, release.
 */
import {
  decodeTicket,
  encodeTicket,
  InProcessRankGroup,
  StateHandoff,
  type Finished,
  type SetupOptions,
} from '../../lib/index.js';
import { ContentEngine, nextToken, type ContentModel, type ContentSide } from './content-engine.js';

interface ContentRank {
  readonly engine: ContentEngine;
  readonly handoff: StateHandoff;
}

const tokensWanted = 4;

export class ContentInstance {
  private constructor(
    readonly role: 'prefill' | 'decode',
    readonly ranks: readonly ContentRank[],
    /** Everything that went wrong without failing a request. */
    readonly warnings: string[],
  ) {}

  static async create(
    role: 'prefill' | 'decode',
    model: ContentModel,
    side: ContentSide,
    setup: Omit<SetupOptions, 'group'> = {},
    speculative = 0,
  ): Promise<ContentInstance> {
    const count = side.tp * side.stages.length;
    const groups = count === 1 ? [null] : InProcessRankGroup.create(count);
    const warnings: string[] = [];
    const ranks = groups.map((_, rank): ContentRank => {
      const engine = new ContentEngine(model, side, rank, speculative);
      const handoff = new StateHandoff(engine, { instance: role, incarnation: 'boot-1' });
      engine.attach(handoff);
      handoff.on('warning', ({ message }) => warnings.push(message));
      handoff.on('engineFailed', (error) => warnings.push(String(error)));
      return { engine, handoff };
    });
    await Promise.all(
      ranks.map(({ handoff }, rank) => handoff.setupKvTransfer(role, 'host', { ...setup, group: groups[rank]! })),
    );
    return new ContentInstance(role, ranks, warnings);
  }

  get leader(): StateHandoff {
    return this.ranks[0]!.handoff;
  }

  /** Prefill: the ticket of a computed prompt, as text. */
  prefill(requestId: string, prompt: readonly number[]): string {
    const [ticket] = this.ranks.map(({ engine, handoff }) => {
      const blocks = engine.compute(prompt);
      const resumeTokens = [nextToken(prompt), ...Array<number>(engine.numSpeculativeTokens).fill(5)];
      const finished = { requestId, blocks, slot: null, resumeTokens, promptTokens: prompt.length };
      const flags = { doKvHandoff: true, returnLogProbs: false, resumeLogProbs: null };
      const prepared = handoff.prepareHandoffMetadataBatch([{ ...finished, ...flags }]);
      const taken = handoff.captureHandoffMeta(requestId, prepared);
      engine.blocks.release(blocks);
      return taken;
    });
    return encodeTicket(ticket!);
  }

  /** Decode: resolves when the request has ended on every rank. */
  async takeOver(requestId: string, prompt: readonly number[], ticket: string): Promise<Finished> {
    const { kvMeta, blockIds } = decodeTicket(ticket);
    const params = { num_tokens_to_generate: tokensWanted };
    let isOver = false;
    const result = this.leader.addRequestWithKvHandoff(requestId, prompt, params, kvMeta, blockIds);
    void result.catch(() => undefined).finally(() => (isOver = true));
    for (const started = Date.now(); !isOver;) {
      if (Date.now() - started > 30_000) throw new Error('the handoff did not end within 30 s');
      await this.step();
    }
    return result;
  }

  async step(): Promise<void> {
    // Workers first, so that rank 0 has their reports.
    for (const { handoff } of [...this.ranks].reverse()) {
      if (this.role === 'decode') handoff.pollPendingKvImports();
      else handoff.pollPendingKvPushes();
    }
    for (const { handoff } of this.ranks) {
      if (this.role === 'decode') handoff.scheduleWaitingRequests(0);
      else handoff.beginStep();
    }
    for (const { engine } of this.ranks) engine.step();
    await new Promise((resolve) => setImmediate(resolve));
  }

  /** Free blocks that are missing, by rank. */
  get missing(): number[] {
    return this.ranks.map(({ handoff }) => {
      const { blocksUsable, blocksFree, blocksEvictable } = handoff.load();
      return blocksUsable - blocksFree - blocksEvictable;
    });
  }

  async close(): Promise<void> {
    await Promise.all(this.ranks.map(({ handoff }) => handoff.close({ force: true })));
  }
}

/** What one engine generates for a prompt: each token follows from all before. */
export function expectedTokens(prompt: readonly number[]): number[] {
  const tokens = [...prompt];
  for (let made = 0; made < tokensWanted; made++) tokens.push(nextToken(tokens));
  return tokens.slice(prompt.length);
}
