/** Section `kv_block_allocator`: traces with the whole state after each operation. */
import { BlockPool, type BlockPoolSnapshot, type EvictionPolicy } from '../memory/block-pool.js';
import type { ExactObject, ExactValue } from './exact-json.js';
import { expectEqual, Mismatch, render } from './mismatch.js';
import { bigintOf, expectResult, fieldsOf, integerOf, integersOf, listOf, stringOf, type Section } from './section.js';

const errorTypes = {
  AssertionError: ['BLOCK_OVER_RELEASED', 'BLOCK_HASH_CONFLICT', 'BLOCK_GRAPH_CYCLE', 'PREFIX_CACHING_REQUIRED'],
  ValueError: ['ARGUMENT_INVALID'],
} as const;

/** One notice: ids and, ascending, the hashes that ended. */
type Notice = readonly [Int32Array, BigInt64Array];

export const kvBlockAllocatorSection: Section = {
  name: 'kv_block_allocator',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['pool', 'policy', 'trace'], ['name']);
      const pool = new BlockPool({
        poolSize: integerOf(fields['pool'], 'pool'),
        evictionPolicy: policyOf(fields['policy']),
      });
      const notices: Notice[] = [];
      pool.observe({ removed: (ids, hashes) => notices.push([ids, hashes]) });
      try {
        for (const [index, step] of listOf(fields['trace'], 'trace').entries()) {
          runStep(pool, step, `trace[${index}]`, notices);
        }
      } finally {
        pool.close();
      }
    },
  },
};

function policyOf(value: ExactValue | undefined): EvictionPolicy {
  if (value === null) return 'none';
  if (value === 'ref_zero' || value === 'lru') return value;
  throw new Mismatch('policy', 'null, "ref_zero" or "lru"', render(value));
}

function runStep(pool: BlockPool, value: ExactValue, path: string, notices: Notice[]): void {
  const step = fieldsOf(value, path, [], ['init', 'op', 'result', 'state', 'observer', 'error']);
  if (Object.hasOwn(step, 'init')) {
    fieldsOf(step, path, ['init']);
    expectEqual(`${path}.init`, step['init'] as ExactValue, stateOf(pool));
    return;
  }
  fieldsOf(step, path, ['op', 'result', 'state'], ['observer', 'error']);
  notices.length = 0;
  expectResult(step, path, errorTypes, () => operate(pool, step, path));
  expectEqual(`${path}.state`, step['state'] as ExactValue, stateOf(pool));
  expectEqual(`${path}.observer`, step['observer'] ?? [], notices);
}

function operate(pool: BlockPool, step: ExactObject, path: string): unknown {
  const [name, ...args] = listOf(step['op'], `${path}.op`);
  const at = (index: number) => `${path}.op[${index + 1}]`;
  const operation = operations[stringOf(name, `${path}.op[0]`)];
  if (operation === undefined) throw new Mismatch(`${path}.op[0]`, Object.keys(operations).join(', '), render(name));
  const [least, most] = operation.arguments;
  if (args.length < least || args.length > most) {
    throw new Mismatch(`${path}.op`, `${least === most ? least : `${least} to ${most}`} arguments`, `${args.length}`);
  }
  return operation.run(pool, args, at) ?? null;
}

interface Operation {
  readonly arguments: readonly [number, number];
  readonly run: (pool: BlockPool, args: readonly ExactValue[], at: (index: number) => string) => unknown;
}

const operations: Readonly<Record<string, Operation>> = {
  alloc: { arguments: [1, 1], run: (pool, [count], at) => pool.allocate(integerOf(count, at(0))) },
  release: { arguments: [1, 1], run: (pool, [ids], at) => pool.release(idsOf(ids, at(0))) },
  retain: { arguments: [1, 1], run: (pool, [ids], at) => pool.retain(idsOf(ids, at(0))) },
  touch: { arguments: [1, 1], run: (pool, [ids], at) => pool.touch(idsOf(ids, at(0))) },
  evict: { arguments: [1, 1], run: (pool, [count], at) => pool.evict(integerOf(count, at(0))) },
  clock: { arguments: [1, 1], run: (pool, [time], at) => pool.setClock(integerOf(time, at(0))) },
  reset: { arguments: [0, 0], run: (pool) => pool.reset() },
  avail: {
    arguments: [1, 2],
    run: (pool, [count, matched], at) =>
      pool.isMemoryAvailable(integerOf(count, at(0)), matched === undefined ? 0 : integerOf(matched, at(1))),
  },
  register: {
    arguments: [2, 3],
    run: (pool, [ids, hashes, parents], at) => {
      const blocks = idsOf(ids, at(0));
      const none = new BigInt64Array(blocks.length);
      pool.register(blocks, hashesOf(hashes, at(1)), parents === undefined ? none : hashesOf(parents, at(2)));
    },
  },
};

function idsOf(value: ExactValue | undefined, path: string): Int32Array {
  return Int32Array.from(integersOf(value, path));
}

function hashesOf(value: ExactValue | undefined, path: string): BigInt64Array {
  return BigInt64Array.from(listOf(value, path).map((hash, index) => bigintOf(hash, `${path}[${index}]`)));
}

function stateOf(pool: BlockPool): unknown {
  const state: BlockPoolSnapshot = pool.snapshot();
  return state.map === undefined
    ? state
    : { ...state, map: Object.fromEntries([...state.map].map(([hash, id]) => [String(hash), id])) };
}
