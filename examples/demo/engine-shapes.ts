/** From the command line to the shapes of both sides' engines; refuses what the model cannot be cut into. */
import { isHandoffError } from 'state-handoff';
import { badInput } from '../engine/bad-input.js';
import { RankPlace, rankShape, rankSlice, type ModelConfig, type RankShape } from '../engine/index.js';

export interface EngineShapes {
  readonly prefill: readonly RankShape[];
  readonly decode: readonly RankShape[];
}

/** Processes of both sides at most. */
const ranksMax = 32;
const sizes = { tp: 'tp', pp: 'pp', ep: 'ep', dp: 'dp', expt_tp: 'expertTp' } as const;

/** @throws `ARGUMENT_INVALID` naming the flag */
export function enginesOf(given: ReadonlyMap<string, string>): EngineShapes {
  const spec = given.get('--inference-shards');
  const [prefill, decode] = [given.get('--prefill'), given.get('--decode')];
  if (spec !== undefined) {
    if (prefill !== undefined || decode !== undefined) {
      throw badInput('--inference-shards', 'neither --prefill nor --decode beside it', spec);
    }
    return shardsOf(spec);
  }
  return {
    prefill: [shapeOf('--prefill', prefill ?? '').shape],
    decode: [shapeOf('--decode', decode ?? '').shape],
  };
}

function shardsOf(spec: string): EngineShapes {
  const shards = spec
    .split(/[+;]/)
    .filter((shard) => shard.trim() !== '')
    .map((shard) => shapeOf('--inference-shards', shard));
  const having = (wanted: string): RankShape[] =>
    shards.filter(({ role }) => role === wanted).map(({ shape }) => shape);
  const engines = { prefill: having('prefill'), decode: having('decode') };
  if (shards.some(({ role }) => role === null) || engines.prefill.length === 0 || engines.decode.length === 0) {
    throw badInput('--inference-shards', 'a role for every shard, and each of prefill and decode', spec);
  }
  return engines;
}

/** `tp=2,pp=1`; what is left out is 1. */
function shapeOf(flag: string, text: string): { readonly role: string | null; readonly shape: RankShape } {
  const found: Record<string, number> = {};
  let role: string | null = null;
  for (const pair of text.split(',').filter((each) => each.trim() !== '')) {
    const [key = '', value = ''] = pair.split('=').map((part) => part.trim());
    if (key === 'role' && flag === '--inference-shards') {
      role = value.toLowerCase();
      if (role !== 'prefill' && role !== 'decode') throw badInput(`${flag} role`, 'prefill or decode', value);
    } else if (!Object.hasOwn(sizes, key)) {
      throw badInput(flag, `sizes named ${Object.keys(sizes).join(', ')}`, pair.trim());
    } else if (!/^[1-9]\d{0,3}$/.test(value)) {
      throw badInput(`${flag} ${key}`, 'an integer of at least 1', value);
    } else {
      found[sizes[key as keyof typeof sizes]] = Number(value);
    }
  }
  return { role, shape: named(flag, () => rankShape(found)) };
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
      if (shape.pp > layers) throw badInput(`${flag} pp`, `at most the ${layers} layers of the model`, shape.pp);
      named(flag, () => rankSlice(model, new RankPlace(shape, 0).parallelism));
    }
  }
}

/** What `make` returns, or its refusal with the flag in front. */
function named<Value>(flag: string, make: () => Value): Value {
  try {
    return make();
  } catch (error) {
    if (!isHandoffError(error) || error.code !== 'ARGUMENT_INVALID') throw error;
    const [, field = '', rest = ''] = /^(.*?): (.*)$/.exec(error.message) ?? [];
    const [, expected = '', got = ''] = /^expected (.*), got (.*)$/.exec(rest) ?? [];
    throw badInput(`${flag} ${field}`, expected, Number(got));
  }
}
