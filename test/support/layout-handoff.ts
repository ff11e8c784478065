/** One handoff between two layouts, against one engine of one rank that has none. */
import { checkCompatible, type Backend, type Finished } from '../../lib/index.js';
import type { EngineMemory } from '../../examples/engine/engine-memory.js';
import type { FinishedExtra } from '../../examples/engine/request.js';
import { bitsOf, greedy, promptOf } from './engine-fixture.js';
import { layoutModel, shapes, type LayoutCase, type Situation } from './layout-cases.js';
import { computeAlone, LayoutWorld } from './layout-instance.js';

const sampling = { ...greedy, num_tokens_to_generate: 6, return_log_probs: true, skip_prompt_log_probs: true };

/** Blocks hold 2, 4 or 8 tokens. */
const promptLengths: Readonly<Record<Situation, number>> = {
  cold: 12,
  'cached prefix': 14,
  'partial block': 11,
  MTP: 13,
};

export interface LayoutOutcome {
  readonly bits: string;
  readonly expected: string;
  readonly logProbs: readonly number[] | null;
  readonly expectedLogProbs: readonly number[] | null;
  /** Blocks of the prompt that the target had already, by rank. */
  readonly cachedBlocks: readonly number[];
  readonly warnings: readonly string[];
  /** Why a router would not bring the two together. */
  readonly differences: readonly string[];
  /** Bytes of an element, as each rank of both instances registers them. */
  readonly elementSizes: readonly unknown[];
  /** Free blocks and slots that are missing when all is over, by rank. */
  readonly missing: readonly number[];
  /** Blocks and slot that each rank reserved: all the same, or pools have come apart. */
  readonly memory: readonly string[];
  /** What moved something for each target rank, by name. */
  readonly movers: readonly (readonly string[])[];
}

const alone = new Map<string, Promise<Finished>>();

function expectedOf({ kind, situation }: LayoutCase, prompt: readonly number[]): Promise<Finished> {
  const key = `${kind} ${situation}`;
  const known = alone.get(key) ?? computeAlone(layoutModel(kind, 0), prompt, sampling);
  alone.set(key, known);
  return known;
}

/**
 * @param transportOf - what each rank is set up with; the host transport by default
 * @param onTheWay - what becomes of an encoded ticket between the two
 */
export async function runLayoutCase(
  each: LayoutCase,
  transportOf?: (role: 'prefill' | 'decode', memory: EngineMemory) => Backend,
  onTheWay: (ticket: string) => string = (ticket) => ticket,
): Promise<LayoutOutcome> {
  const { situation } = each;
  const model = layoutModel(each.kind, situation === 'MTP' ? 2 : 0);
  const source = await LayoutWorld.create({
    ...each.sourceMemory,
    role: 'prefill',
    blockSize: each.sourceBlock,
    carrier: each.carrier,
    model,
    shape: shapes[each.source]!,
    ...(transportOf === undefined ? {} : { transportOf: (memory: EngineMemory) => transportOf('prefill', memory) }),
  });
  const target = await LayoutWorld.create({
    ...each.targetMemory,
    role: 'decode',
    blockSize: each.targetBlock,
    carrier: each.carrier,
    balance: each.balance,
    model,
    shape: shapes[each.target]!,
    ...(transportOf === undefined ? {} : { transportOf: (memory: EngineMemory) => transportOf('decode', memory) }),
  });
  try {
    // The last instance of each world: where there are several, the first one only keeps it company.
    const from = source.shape.dp - 1;
    const to = target.shape.dp - 1;
    const decode = target.leader(to);
    const prefill = source.leader(from);
    decode.handoff.on('kvReadDone', ({ source: ref }) => prefill.loop.release(ref!));
    const handOver = async (requestId: string, prompt: readonly number[]): Promise<Finished> => {
      const { ticket, finished } = await source.prefill(requestId, prompt, sampling, from);
      const result = decode.loop.takeOver({ requestId, prompt, samplingParams: sampling, ticket: onTheWay(ticket) });
      let outcome: Finished | Error | null = null;
      result.then(
        (value) => (outcome = value),
        (error: Error) => (outcome = error),
      );
      await target.until(() => outcome !== null);
      if ((outcome as unknown) instanceof Error) throw outcome as unknown as Error;
      const settled = outcome as unknown as Finished;
      const extra = settled.extra as FinishedExtra;
      return { ...settled, extra: { ...extra, logits: [finished.logits, ...extra.logits!.slice(1)] } };
    };
    const prompt = promptOf(promptLengths[situation], 3);
    if (situation === 'cached prefix') await handOver('before', [...prompt.slice(0, 9), 120, 121, 122]);
    const actual = await handOver('handed', prompt);
    await source.until(() => source.ranks.every(({ handoff }) => handoff.inspect().pins.length === 0));
    const expected = await expectedOf(each, prompt);
    const ranks = [...source.ranks, ...target.ranks];
    const admitted = target.ranks
      .filter(({ place }) => place.instance === to)
      .map(({ engine }) => engine.admitted.at(-1)!);
    return {
      bits: bitsOf(actual),
      expected: bitsOf(expected),
      logProbs: actual.generatedLogProbs,
      expectedLogProbs: expected.generatedLogProbs,
      cachedBlocks: admitted.map(({ cachedPrefixBlocks }) => cachedPrefixBlocks),
      differences: checkCompatible(prefill.handoff.describeInstance(), decode.handoff.describeInstance()).map(
        ({ field }) => field,
      ),
      elementSizes: [prefill, decode].flatMap(({ handoff }) =>
        handoff.instanceMeta.map((meta) => meta['element_size']),
      ),
      warnings: ranks.flatMap(({ warnings }) => warnings),
      missing: ranks.map(({ handoff }) => {
        const { blocksUsable, blocksFree, blocksEvictable, slotsTotal, slotsFree } = handoff.load();
        return blocksUsable - blocksFree - blocksEvictable + Number(slotsTotal) - Number(slotsFree);
      }),
      movers: target.ranks.map(({ handoff }) => Object.keys(handoff.metrics().transferBytes)),
      memory: admitted.map(({ blocks, slot }) => JSON.stringify([Array.from(blocks), slot])),
    };
  } finally {
    await target.close();
    await source.close();
  }
}
