/** Section `aggregated_routing`: which of several engines without roles gets a request, in both generations. */
import { EngineChooser, type EngineLoad, type RoutingPolicy } from '../control/routing/engine-chooser.js';
import { scorings, type Behaviour, type EngineFacts } from '../control/routing/scoring.js';
import { JsonFloat, type ExactObject, type ExactValue } from './exact-json.js';
import { expectEqual, int64Of, Mismatch, render } from './mismatch.js';
import {
  booleanOf,
  fieldsOf,
  integerOf,
  integersOf,
  listOf,
  bigintOf,
  objectOf,
  stringOf,
  type Section,
} from './section.js';

const inputs = ['policy', 'assignments', 'engines', 'hashes', 'pending', 'max_requests', 'alpha'];

export const aggregatedRoutingSection: Section = {
  name: 'aggregated_routing',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', inputs, ['name', 'gen_b_ref', 'gen_c_derived']);
      if (Object.hasOwn(fields, 'gen_b_ref'))
        runGenB(fields, fieldsOf(fields['gen_b_ref'], 'gen_b_ref', ['match', 'recency', 'pick']));
      if (Object.hasOwn(fields, 'gen_c_derived')) {
        const keys = ['alpha', 'depth', 'relative_load', 'scores', 'pick', 'applies'];
        runGenC(fields, fieldsOf(fields['gen_c_derived'], 'gen_c_derived', keys));
      }
    },
    removal: runRemoval,
  },
};

function runGenB(fields: ExactObject, expected: ExactObject): void {
  const world = new RoutingWorld('gen-b', fields, policyOf(fields), numberOf(fields['alpha'], 'alpha'));
  const facts = world.facts();
  expectEqual(
    'gen_b_ref.match',
    expected['match']!,
    facts.map(({ match }) => new JsonFloat(match)),
  );
  expectEqual(
    'gen_b_ref.recency',
    expected['recency']!,
    facts.map(({ recency }) => new JsonFloat(recency)),
  );
  expectEqual('gen_b_ref.pick', expected['pick']!, world.pick());
}

function runGenC(fields: ExactObject, expected: ExactObject): void {
  // Where the policy leaves prefixes out, the file says what the score would be without that.
  const applies = booleanOf(expected['applies'], 'gen_c_derived.applies');
  const alpha = numberOf(expected['alpha'], 'gen_c_derived.alpha');
  const world = new RoutingWorld('gen-c', fields, applies ? policyOf(fields) : 'longest_prefix', alpha);
  const facts = world.facts();
  const float = (number: number): JsonFloat => new JsonFloat(number);
  const size = Math.max(1, world.hashes.length);
  expectEqual(
    'gen_c_derived.depth',
    expected['depth']!,
    facts.map(({ depthShare }) => Math.round(depthShare * size)),
  );
  expectEqual(
    'gen_c_derived.relative_load',
    expected['relative_load']!,
    facts.map(({ relativeLoad }) => float(relativeLoad)),
  );
  const scores = facts.map((each) => float(scorings['gen-c'].score(each, alpha)));
  expectEqual('gen_c_derived.scores', expected['scores']!, scores);
  expectEqual('gen_c_derived.pick', expected['pick']!, world.pick());
}

/** Engines, what they were assigned and how loaded they are, as a case tells it. */
class RoutingWorld {
  readonly hashes: BigInt64Array;
  readonly #chooser: EngineChooser;
  readonly #loads: readonly EngineLoad[];

  constructor(behaviour: Behaviour, fields: ExactObject, policy: RoutingPolicy, alpha: number) {
    this.#chooser = new EngineChooser({ behaviour, policy, alpha });
    const requestsMax = integerOf(fields['max_requests'], 'max_requests');
    const pending = integersOf(fields['pending'], 'pending');
    expectEqual('engines', fields['engines']!, pending.length);
    this.#loads = pending.map((active) => loadOf(this.#chooser, active, requestsMax));
    this.hashes = hashesOf(fields['hashes'], 'hashes');
    for (const [index, assignment] of listOf(fields['assignments'], 'assignments').entries()) {
      const path = `assignments[${index}]`;
      const [name, hashes, ...rest] = listOf(assignment, path);
      if (rest.length > 0) throw new Mismatch(path, 'an engine and hashes', render(assignment));
      const engine = /^e(0|[1-9]\d*)$/.exec(stringOf(name, `${path}[0]`))?.[1];
      const load = this.#loads[Number(engine ?? -1)];
      if (load === undefined) throw new Mismatch(`${path}[0]`, 'one of the engines', render(name));
      // What was assigned is remembered under every policy here, as the file's facts are.
      this.#chooser.affinity.record(load.column, hashesOf(hashes, `${path}[1]`), 0);
    }
  }

  facts(): EngineFacts[] {
    return this.#chooser.facts(this.#loads, this.hashes, 0);
  }

  pick(): string {
    return `e${this.#chooser.chooseAggregated(this.#loads, this.hashes, 0)}`;
  }
}

/** An engine's rows go with it, and those behind it move up. */
function runRemoval(value: ExactValue): void {
  const keys = ['before', 'after', 'index_after', 'pending_after'];
  const fields = fieldsOf(value, '', keys, ['name']);
  const before = rowsOf(fields['before'], 'before');
  const indexAfter = objectOf(fields['index_after'], 'index_after');
  const pendingAfter = integersOf(fields['pending_after'], 'pending_after');
  const staying = Object.keys(indexAfter);
  const count = Math.max(
    staying.length + 1,
    ...[...before.values()].flatMap((row) => [...row.keys()].map((at) => at + 1)),
  );
  const chooser = new EngineChooser({ behaviour: 'gen-b', policy: 'longest_prefix' });
  const pendingOf = (name: string): number =>
    pendingAfter[integerOf(indexAfter[name] ?? -1, `index_after.${name}`)] ?? 0;
  let engines = Array.from({ length: count }, (_, index) => {
    const name = `e${index}`;
    return { name, load: loadOf(chooser, Object.hasOwn(indexAfter, name) ? pendingOf(name) : 0, 1) };
  });
  const last = Math.max(0, ...[...before.values()].flatMap((row) => [...row.values()]));
  for (let recording = 1; recording <= last; recording++) {
    for (const [index, { load }] of engines.entries()) {
      const hashes = [...before].filter(([, row]) => row.get(index) === recording).map(([hash]) => hash);
      if (hashes.length > 0) chooser.affinity.record(load.column, BigInt64Array.from(hashes), 0);
    }
  }
  expectEqual('before', fields['before']!, rowsIn(chooser, before, engines));
  for (const { name, load } of engines) if (!staying.includes(name)) chooser.affinity.leave(load.column);
  engines = engines.filter(({ name }) => staying.includes(name));
  expectEqual('after', fields['after']!, rowsIn(chooser, before, engines));
  expectEqual('index_after', indexAfter, Object.fromEntries(engines.map(({ name }, index) => [name, index])));
  expectEqual(
    'pending_after',
    fields['pending_after']!,
    engines.map(({ load }) => load.active),
  );
}

type Rows = ReadonlyMap<bigint, ReadonlyMap<number, number>>;

function rowsOf(value: ExactValue | undefined, path: string): Rows {
  const rows = new Map<bigint, Map<number, number>>();
  for (const [hash, row] of Object.entries(objectOf(value, path))) {
    const at = `${path}.${hash}`;
    const entries = Object.entries(objectOf(row, at)).map(
      ([index, count]) => [Number(index), integerOf(count, at)] as const,
    );
    rows.set(bigintOf(hash, at), new Map(entries));
  }
  return rows;
}

function rowsIn(
  chooser: EngineChooser,
  known: Rows,
  engines: readonly { readonly load: EngineLoad }[],
): Readonly<Record<string, Readonly<Record<string, number>>>> {
  const rows = [...known.keys()].map((hash) => {
    const holders = chooser.affinity.holders(hash, 0);
    const entries = holders.map(({ column, recency }) => {
      return [String(engines.findIndex(({ load }) => load.column === column)), recency] as const;
    });
    return [String(hash), Object.fromEntries(entries)] as const;
  });
  return Object.fromEntries(rows.filter(([, row]) => Object.keys(row).length > 0));
}

function loadOf(chooser: EngineChooser, active: number, requestsMax: number): EngineLoad {
  const column = chooser.affinity.join();
  if (column === null) throw new Mismatch('engines', 'at most 256', 'more');
  return { column, active, queued: 0, slotsUsed: 0, freeFraction: Math.max(0, requestsMax - active) / requestsMax };
}

function policyOf(fields: ExactObject): RoutingPolicy {
  return stringOf(fields['policy'], 'policy') as RoutingPolicy;
}

function hashesOf(value: ExactValue | undefined, path: string): BigInt64Array {
  return BigInt64Array.from(listOf(value, path), (hash, index) => {
    const integer = int64Of(hash);
    if (integer === undefined) throw new Mismatch(`${path}[${index}]`, 'a hash', render(hash));
    return integer;
  });
}

function numberOf(value: ExactValue | undefined, path: string): number {
  if (value instanceof JsonFloat) return value.value;
  return integerOf(value, path);
}
