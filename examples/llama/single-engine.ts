/**
 * llama.cpp without any handoff, to compare with: computes a request alone from its prompt to its end, with the same chunks
 * and one token at a time; or does again, operation by operation, what a decode engine did with several at once.
 */
import type { EngineOptions } from './engine-options.js';
import { greedy, Lanes } from './lanes.js';
import type { RecordedOperation } from './messages.js';
import { evaluatePrompt } from './prompt-evaluation.js';

export interface SingleResult {
  readonly tokens: readonly number[];
  readonly reason: 'length' | 'stop';
  readonly evaluateMs: number;
}

export class SingleEngine {
  private readonly lanes: Lanes<Int32Array>;

  constructor(private readonly options: EngineOptions) {
    this.lanes = new Lanes<Int32Array>(options.llama, new Int32Array(0), options);
  }

  /** @param onLogits - gets each row that a token is drawn from, the first token's too */
  async run(prompt: Int32Array, limit: number, onLogits: (logits: Float32Array) => void): Promise<SingleResult> {
    const { llama, chunk, maxSequenceLength } = this.options;
    const lane = this.lanes.all[0]!;
    this.lanes.keep(lane, 0, 0);
    const started = performance.now();
    let logits: Float32Array = await evaluatePrompt(lane, prompt, chunk, () => undefined);
    const evaluateMs = performance.now() - started;
    const end = Math.min(limit, maxSequenceLength - prompt.length);
    const tokens: number[] = [];
    for (;;) {
      onLogits(logits);
      const token = greedy(logits);
      tokens.push(token);
      if (llama.endsText(token)) return { tokens, reason: 'stop', evaluateMs };
      if (tokens.length >= end) return { tokens, reason: 'length', evaluateMs };
      const position = Int32Array.of(prompt.length + tokens.length - 1);
      logits = await lane.cache.evaluate(Int32Array.of(token), position, Int32Array.of(0), Uint8Array.of(1));
    }
  }

  /**
   * The same operations in the same places. Where decode loaded a prompt's state, the prompt is evaluated; every other
   * token is the one that decode evaluated. Returns by request how many tokens were drawn, and how many drawn alike.
   */
  async replay(
    prompts: ReadonlyMap<string, Int32Array>,
    operations: readonly RecordedOperation[],
  ): Promise<ReadonlyMap<string, { drawn: number; agreeing: number }>> {
    const counts = new Map([...prompts.keys()].map((id) => [id, { drawn: 0, agreeing: 0 }]));
    const { chunk } = this.options;
    for (const { what, lane: index, id, from, to, rows } of operations) {
      const lane = this.lanes.all[index]!;
      if (what === 'keep') {
        lane.cache.truncate(lane.sequence, to);
      } else if (what === 'load') {
        const prompt = prompts.get(id)!;
        for (let at = from, end = 0; at < to; at = end) {
          end = Math.min(to, (Math.floor(at / chunk) + 1) * chunk);
          const part = prompt.slice(at, end);
          const positions = part.map((_, offset) => at + offset);
          const nothing = new Uint8Array(part.length);
          await lane.cache.evaluate(
            part,
            positions,
            part.map(() => lane.sequence),
            nothing,
          );
        }
      } else {
        const logits = await lane.cache.evaluate(
          Int32Array.from(rows, ({ token }) => token),
          Int32Array.from(rows, ({ position }) => position),
          Int32Array.from(rows, (row) => this.lanes.all[row.lane]!.sequence),
          new Uint8Array(rows.length).fill(1),
        );
        const size = logits.length / rows.length;
        for (const [row, { id: owner, drawn }] of rows.entries()) {
          const count = counts.get(owner)!;
          count.drawn += 1;
          if (greedy(logits.subarray(row * size, (row + 1) * size)) === drawn) count.agreeing += 1;
        }
      }
    }
    return counts;
  }

  close(): void {
    this.lanes.close();
  }
}
