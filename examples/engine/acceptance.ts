/**
 * What a step's logits mean for a request: the tokens they give, which proposals they confirm, and what runs next.
 *
 * A proposal counts only if it is the very token that the model draws at that position. So the output with proposals is
 * the output without them, a few steps earlier.
 */
import type { Batch } from './batch.js';
import type { ModelConfig } from './config.js';
import type { Proposer } from './proposer.js';
import type { Request } from './request.js';
import { Sampler } from './sampler.js';
import { completion, type End } from './sampling.js';
import type { SsmMemory } from './ssm-memory.js';

export class Acceptance {
  private readonly sampler: Sampler;

  /** @param onToken - told of every token as it is accepted */
  constructor(
    private readonly config: ModelConfig,
    private readonly proposer: Proposer,
    private readonly ssm: SsmMemory | null,
    private readonly recordsLogits: boolean,
    private readonly onToken: (request: Request, token: number, logProb: number | null) => void,
  ) {
    this.sampler = new Sampler(config.vocabSize);
  }

  /** Draws the token that follows the sequence in `logitRow`, and its log-probability if that was asked for. */
  draw(batch: Batch, logitRow: number, request: Request): { token: number; logProb: number | null } {
    const at = logitRow * this.config.vocabSize;
    const position = request.prompt.length + request.generated.length;
    const token = this.sampler.sample(batch.logits, at, request.sampling, position);
    return { token, logProb: request.sampling.returnLogProbs ? this.sampler.logProb(batch.logits, at, token) : null };
  }

  /** Appends a token; returns whether the request is at its end. `logits` is what it was drawn from, if kept. */
  append(request: Request, token: number, logProb: number | null, logits: Float32Array | null): End {
    request.generated.push(token);
    if (logProb !== null) request.logProbs.push(logProb);
    if (this.recordsLogits) request.logits.push(logits);
    this.onToken(request, token, logProb);
    return completion(request.sampling, request.generated, request.limit);
  }

  /**
   * Draws along the pending tokens that just ran, whose logits start at `logitRow`, until one differs from its proposal
   * or the request ends. Takes refused tokens' state back.
   */
  verify(batch: Batch, logitRow: number, request: Request): End {
    const fed = request.pendingCount;
    let confirmed = 0;
    let end: End = 'no';
    for (;;) {
      const row = logitRow + confirmed;
      const { token, logProb } = this.draw(batch, row, request);
      end = this.append(request, token, logProb, this.recordsLogits ? batch.copyLogits(row) : null);
      confirmed += 1;
      if (end !== 'no' || confirmed === fed || request.pending[confirmed] !== token) break;
    }
    request.position += confirmed;
    request.proposed += fed - 1;
    request.accepted += confirmed - 1;
    if (end !== 'no') return end;
    if (confirmed < fed && this.ssm !== null) {
      this.ssm.writeSlot(request.slot, request.snapshots!, (confirmed - 1) * this.ssm.slotNumbers);
    }
    this.propose(batch, logitRow + confirmed - 1, request);
    return 'no';
  }

  /** Sets what runs next: the last token and as many proposals as tokens may still follow it. */
  propose(batch: Batch, logitRow: number, request: Request): void {
    const token = request.generated[request.generated.length - 1]!;
    const left = request.limit - request.generated.length;
    const count = Math.min(this.config.numSpeculativeTokens, left - 1);
    request.pending[0] = token;
    this.proposer.propose(batch.hidden, logitRow * this.config.dModel, token, count, request.pending, 1);
    request.pendingCount = 1 + count;
  }

  /** The tokens that travel: the sampled one and all proposals, whatever the limit. */
  resumeTokens(batch: Batch, logitRow: number, token: number): number[] {
    const proposals = new Int32Array(this.config.numSpeculativeTokens);
    this.proposer.propose(batch.hidden, logitRow * this.config.dModel, token, proposals.length, proposals, 0);
    return [token, ...proposals];
  }
}
