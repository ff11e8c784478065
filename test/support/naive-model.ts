/**
 * The reference engine's model written a second time from its description: whole sequences, plain float64, no cache, no
 * shards, no state. Slow and obvious; it shares nothing with the engine but the weights.
 */
import type { ModelConfig } from '../../examples/engine/config.js';
import { SeededWeights } from '../../examples/engine/weights.js';

type Vector = number[];

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
const silu = (x: number): number => x * sigmoid(x);
const dot = (a: Vector, b: Vector): number => a.reduce((sum, x, i) => sum + x * b[i]!, 0);
const range = (count: number): number[] => Array.from({ length: count }, (_, i) => i);

function norm(x: Vector, gain: Vector): Vector {
  const rms = Math.sqrt(dot(x, x) / x.length + 1e-5);
  return x.map((value, i) => (value / rms) * gain[i]!);
}

function softmax(x: Vector): Vector {
  const peak = Math.max(...x);
  const powers = x.map((value) => Math.exp(value - peak));
  const total = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / total);
}

class NaiveModel {
  private readonly weights: SeededWeights;

  constructor(private readonly config: ModelConfig) {
    this.weights = new SeededWeights(config.seed);
  }

  /** Logits after every token. */
  logits(tokens: readonly number[]): Vector[] {
    const { dModel, vocabSize, layers } = this.config;
    const embedding = this.matrix('embedding', vocabSize, dModel, Math.sqrt(dModel));
    let stream = tokens.map((token) => embedding[token]!);
    for (const [layer, { mixer, feedForward }] of layers.entries()) {
      const kinds = [mixer, feedForward === 'dense' ? ('feedForward' as const) : ('experts' as const)];
      for (const kind of kinds) {
        const name = `layers.${layer}.${kind}`;
        const gain = this.gain(`${name}.norm`, dModel);
        const output = this[kind](
          name,
          stream.map((x) => norm(x, gain)),
        );
        stream = stream.map((x, t) => x.map((value, i) => value + 0.5 * output[t]![i]!));
      }
    }
    const gain = this.gain('readOut.norm', dModel);
    const readOut = this.matrix('readOut', vocabSize, dModel);
    const isShown = (token: number): boolean => token === 10 || (token >= 32 && token <= 126);
    return stream.map((x) => readOut.map((row, token) => dot(row, norm(x, gain)) - (isShown(token) ? 0 : 8)));
  }

  attention(name: string, inputs: Vector[]): Vector[] {
    const { dModel } = this.config;
    const { heads, kvHeads, headDim, ropeTheta } = this.config.attention;
    const weights = this.matrix(`${name}.input`, (heads + 2 * kvHeads) * headDim, dModel);
    const output = this.matrix(`${name}.output`, dModel, heads * headDim);
    const headGain = this.gain(`${name}.headNorm`, heads * headDim);
    const rotate = (x: Vector, position: number): Vector => {
      const half = headDim / 2;
      return x.map((value, i) => {
        const pair = i % half;
        const angle = position * ropeTheta ** ((-2 * pair) / headDim);
        return i < half
          ? value * Math.cos(angle) - x[i + half]! * Math.sin(angle)
          : value * Math.cos(angle) + x[pair]! * Math.sin(angle);
      });
    };
    const rows = inputs.map((x) => weights.map((row) => dot(row, x)));
    const part = (t: number, index: number): Vector => rows[t]!.slice(index * headDim, (index + 1) * headDim);
    return inputs.map((_, t) => {
      const mixed = range(heads).flatMap((head) => {
        const group = Math.floor(head / (heads / kvHeads));
        const query = rotate(part(t, head), t);
        const shares = softmax(
          range(t + 1).map((s) => dot(query, rotate(part(s, heads + group), s)) / Math.sqrt(headDim)),
        );
        const sums = range(headDim).map((dim) =>
          shares.reduce((sum, share, s) => sum + share * part(s, heads + kvHeads + group)[dim]!, 0),
        );
        return norm(sums, headGain.slice(head * headDim, (head + 1) * headDim));
      });
      return output.map((row) => dot(row, mixed));
    });
  }

  /** The state space as the sum it is: every past input, faded by all steps since. */
  ssm(name: string, inputs: Vector[]): Vector[] {
    const { dModel } = this.config;
    const { nheads, headdim, dState, ngroups, dConv } = this.config.ssm!;
    const inner = nheads * headdim;
    const channels = inner + 2 * ngroups * dState;
    const weights = this.matrix(`${name}.input`, inner + channels + nheads, dModel);
    const output = this.matrix(`${name}.output`, dModel, inner);
    const taps = this.matrix(`${name}.taps`, channels, dConv + 1, 0.3).map((row) =>
      row.map((tap) => tap + (tap < 0 ? -0.2 : 0.2)),
    );
    const bias = this.matrix(`${name}.convBias`, channels, 1, 0.1);
    const rates = this.vector(`${name}.decayRates`, nheads, 0.05, 0.5);
    const stepBias = this.vector(`${name}.stepBias`, nheads, -1, 0);
    const skip = this.vector(`${name}.skip`, nheads, 0.5, 1.5);
    const groupGain = this.gain(`${name}.groupNorm`, inner);
    const rows = inputs.map((x) => weights.map((row) => dot(row, x)));
    const convolved = inputs.map((_, t) =>
      range(channels).map((channel) => {
        let sum = bias[channel]![0]!;
        for (let age = 0; age <= dConv && age <= t; age++)
          sum += taps[channel]![dConv - age]! * rows[t - age]![inner + channel]!;
        return silu(sum);
      }),
    );
    const steps = rows.map((row) =>
      range(nheads).map((head) => Math.log(1 + Math.exp(row[inner + channels + head]! + stepBias[head]!))),
    );
    return inputs.map((_, t) => {
      const mixed = range(inner).map((i) => {
        const head = Math.floor(i / headdim);
        const group = Math.floor(head / (nheads / ngroups));
        const at = (s: number, band: number): Vector =>
          convolved[s]!.slice(inner + (band * ngroups + group) * dState).slice(0, dState);
        let y = skip[head]! * convolved[t]![i]!;
        for (let s = 0; s <= t; s++) {
          let fade = 1;
          for (let u = s + 1; u <= t; u++) fade *= Math.exp(-steps[u]![head]! * rates[head]!);
          y += fade * steps[s]![head]! * convolved[s]![i]! * dot(at(s, 0), at(t, 1));
        }
        return y * silu(rows[t]![i]!);
      });
      const size = inner / ngroups;
      const normed = range(ngroups).flatMap((group) =>
        norm(mixed.slice(group * size, (group + 1) * size), groupGain.slice(group * size, (group + 1) * size)),
      );
      return output.map((row) => dot(row, normed));
    });
  }

  feedForward(name: string, inputs: Vector[]): Vector[] {
    return inputs.map((x) => this.gated(name, x, this.config.feedForwardDim));
  }

  experts(name: string, inputs: Vector[]): Vector[] {
    const { count, perToken, dim } = this.config.experts!;
    const router = this.matrix(`${name}.router`, count, this.config.dModel);
    return inputs.map((x) => {
      const scores = router.map((row) => dot(row, x));
      const chosen = range(count)
        .sort((a, b) => scores[b]! - scores[a]!)
        .slice(0, perToken);
      const gates = softmax(chosen.map((id) => scores[id]!));
      const outputs = chosen.map((id) => this.gated(`${name}.${id}`, x, dim));
      return x.map((_, i) => outputs.reduce((sum, output, term) => sum + gates[term]! * output[i]!, 0));
    });
  }

  private gated(name: string, x: Vector, dim: number): Vector {
    const rows = this.matrix(`${name}.input`, 2 * dim, x.length).map((row) => dot(row, x));
    const hidden = range(dim).map((i) => silu(rows[i]!) * rows[dim + i]!);
    return this.matrix(`${name}.output`, x.length, dim).map((row) => dot(row, hidden));
  }

  private matrix(name: string, rows: number, columns: number, gain = 1): Vector[] {
    const flat = this.weights.matrix(name, [{ from: 0, to: rows }], columns, { from: 0, to: columns }, gain);
    return range(rows).map((row) => [...flat.subarray(row * columns, (row + 1) * columns)]);
  }

  private vector(name: string, size: number, low: number, high: number): Vector {
    return [...this.weights.vector(name, { from: 0, to: size }, low, high)];
  }

  private gain(name: string, size: number): Vector {
    return [...this.weights.normGain(name, { from: 0, to: size })];
  }
}

/** Logits that follow each token of `tokens`. */
export function naiveLogits(config: ModelConfig, tokens: readonly number[]): Vector[] {
  return new NaiveModel(config).logits(tokens);
}
