/** From the command line to the shapes of both sides' engines; refuses what the model cannot be cut into. */
import {
  HandoffError,
  isHandoffError,
  parseInferenceShards,
  requireDisaggregated,
  type InferenceShard,
} from 'state-handoff';
import { badInput } from '../engine/bad-input.js';
import { RankPlace, rankShape, rankSlice, type ModelConfig, type RankShape } from '../engine/index.js';

export interface EngineShapes {
  readonly prefill: readonly RankShape[];
  readonly decode: readonly RankShape[];
}

/** Processes of both sides at most. */
const ranksMax = 32;

/**
 * @param usual - engines of a side that no flag tells about, of one rank each
 * @throws `ARGUMENT_INVALID` naming the flag
 */
export function enginesOf(given: ReadonlyMap<string, string>, usual = 1): EngineShapes {
  const spec = given.get('--inference-shards');
  if (spec === undefined) return { prefill: sideOf('prefill', given, usual), decode: sideOf('decode', given, usual) };
  if (given.has('--prefill') || given.has('--decode')) {
    throw badInput('--inference-shards', 'neither --prefill nor --decode beside it', spec);
  }
  const shards = named('--inference-shards', () => shardsIn(spec, true));
  const having = (wanted: 'prefill' | 'decode'): RankShape[] =>
    staged(wanted, given, shards.filter(({ role }) => role === wanted).map(shapeOf));
  return { prefill: having('prefill'), decode: having('decode') };
}

/** One shard or several, without a role or with the side's own; the usual number of single ranks when the flag is not given. */
function sideOf(side: 'prefill' | 'decode', given: ReadonlyMap<string, string>, usual: number): RankShape[] {
  const flag = `--${side}`;
  const shards = named(flag, () => shardsIn(given.get(flag) ?? Array(usual).fill('tp=1').join('+'), false));
  const other = shards.find(({ role }) => role !== null && role !== side);
  if (other !== undefined) throw badInput(`${flag} role`, side, other.role);
  return staged(side, given, shards.map(shapeOf));
}

/** With the layers of each stage, when they are given: `--prefill-stages 3,0,1`. */
function staged(side: 'prefill' | 'decode', given: ReadonlyMap<string, string>, shapes: RankShape[]): RankShape[] {
  const flag = `--${side}-stages`;
  const text = given.get(flag);
  if (text === undefined) return shapes;
  if (!/^\d{1,4}(?:,\d{1,4})*$/.test(text)) throw badInput(flag, 'numbers of layers with commas between', text);
  const stages = text.split(',').map(Number);
  return shapes.map((shape) => {
    if (shape.pp !== stages.length) throw badInput(flag, `${shape.pp} numbers, one a stage (pp)`, text);
    return { ...shape, stages };
  });
}

/** What `--inference-shards` of the coordinator is given for these engines: prefill's first, each a shard of its own. */
export function shardSpec({ prefill, decode }: EngineShapes): string {
  const shards = (role: string, shapes: readonly RankShape[]): string[] =>
    shapes.map(
      ({ tp, pp, ep, dp, expertTp }) => `tp=${tp},pp=${pp},ep=${ep},dp=${dp},expt_tp=${expertTp},role=${role}`,
    );
  return [...shards('prefill', prefill), ...shards('decode', decode)].join('+');
}

/** A key that is given twice is a slip; the reference takes the last one (spec 2). */
function shardsIn(spec: string, needsRoles: boolean): readonly InferenceShard[] {
  const parsed = parseInferenceShards(spec);
  const [overridden] = parsed.overridden;
  if (overridden !== undefined) throw badInput(overridden, 'one value', 'several');
  if (needsRoles) requireDisaggregated(parsed);
  return parsed.shards;
}

function shapeOf({ tp, pp, ep, dp, exptTp }: InferenceShard): RankShape {
  return { tp, pp, ep, dp, expertTp: exptTp };
}

/** @throws `ARGUMENT_INVALID` for too many processes, or when the model cannot be cut so */
export function checkEngines(model: ModelConfig, { prefill, decode }: EngineShapes): void {
  const ranks = [...prefill, ...decode].reduce((sum, { tp, pp, dp }) => sum + tp * pp * dp, 0);
  if (ranks > ranksMax) throw badInput('--prefill and --decode', `at most ${ranksMax} ranks together`, ranks);
  for (const [flag, shapes] of [
    ['--prefill', prefill],
    ['--decode', decode],
  ] as const) {
    for (const shape of shapes) {
      const layers = model.layers.length;
      if (shape.pp > layers && !shape.stages)
        throw badInput(`${flag} pp`, `at most the ${layers} layers of the model`, shape.pp);
      named(shape.stages ? `${flag}-stages` : flag, () =>
        rankSlice(model, new RankPlace(rankShape(shape), 0).parallelism),
      );
    }
  }
}

/** What `make` returns, or its refusal with the flag in front. */
function named<Value>(flag: string, make: () => Value): Value {
  try {
    return make();
  } catch (error) {
    if (!isHandoffError(error) || error.code !== 'ARGUMENT_INVALID') throw error;
    throw new HandoffError('ARGUMENT_INVALID', `${flag} ${error.message}`, { cause: error });
  }
}
