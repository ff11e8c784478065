/** Section `ssm_slot_pool`: traces with the whole state after each operation. */
import { SsmSlotPool } from '../memory/ssm-slot-pool.js';
import type { ExactObject, ExactValue } from './exact-json.js';
import { expectEqual, Mismatch, render } from './mismatch.js';
import { expectResult, fieldsOf, integerOf, integersOf, listOf, objectOf, stringOf, type Section } from './section.js';

const errorTypes = {
  RuntimeError: ['SLOT_POOL_OVERFLOW', 'SLOT_NOT_BOUND'],
  ValueError: ['SLOT_OUT_OF_RANGE', 'ARGUMENT_INVALID'],
} as const;

export const ssmSlotPoolSection: Section = {
  name: 'ssm_slot_pool',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['max_requests', 'trace'], ['name']);
      const trace = listOf(fields['trace'], 'trace');
      const pool = new SsmSlotPool({
        maxRequests: integerOf(fields['max_requests'], 'max_requests'),
        dummySlot: startsWithDummy(trace),
      });
      try {
        for (const [index, step] of trace.entries()) runStep(pool, step, `trace[${index}]`);
      } finally {
        pool.close();
      }
    },
  },
};

/** Whether there is a dummy slot shows in the first state only. */
function startsWithDummy(trace: readonly ExactValue[]): boolean {
  const init = objectOf(fieldsOf(trace[0], 'trace[0]', ['init'])['init'], 'trace[0].init');
  return (init['dummy'] ?? null) !== null;
}

function runStep(pool: SsmSlotPool, value: ExactValue, path: string): void {
  const step = fieldsOf(value, path, [], ['init', 'op', 'result', 'state', 'error']);
  if (Object.hasOwn(step, 'init')) {
    fieldsOf(step, path, ['init']);
    expectEqual(`${path}.init`, step['init'] as ExactValue, pool.snapshot());
    return;
  }
  fieldsOf(step, path, ['op', 'result', 'state'], ['error']);
  expectResult(step, path, errorTypes, () => operate(pool, step, path));
  expectEqual(`${path}.state`, step['state'] as ExactValue, pool.snapshot());
}

function operate(pool: SsmSlotPool, step: ExactObject, path: string): unknown {
  const [name, ...args] = listOf(step['op'], `${path}.op`);
  const operation = operations[stringOf(name, `${path}.op[0]`)];
  if (operation === undefined) throw new Mismatch(`${path}.op[0]`, Object.keys(operations).join(', '), render(name));
  if (args.length !== operation.arguments) {
    throw new Mismatch(`${path}.op`, `${operation.arguments} arguments`, `${args.length}`);
  }
  return operation.run(pool, args, (index) => `${path}.op[${index + 1}]`) ?? null;
}

interface Operation {
  readonly arguments: number;
  readonly run: (pool: SsmSlotPool, args: readonly ExactValue[], at: (index: number) => string) => unknown;
}

const operations: Readonly<Record<string, Operation>> = {
  allocate: { arguments: 0, run: (pool) => orNull(pool.allocate()) },
  batch: { arguments: 1, run: (pool, [count], at) => pool.batchAllocate(integerOf(count, at(0))) },
  bind: { arguments: 2, run: (pool, [row, slot], at) => pool.bind(integerOf(row, at(0)), integerOf(slot, at(1))) },
  bind_dummy: { arguments: 0, run: (pool) => pool.bindDummy() },
  detach: { arguments: 1, run: (pool, [row], at) => pool.detach(integerOf(row, at(0))) },
  free: { arguments: 1, run: (pool, [slot], at) => pool.free(integerOf(slot, at(0))) },
  free_requests: {
    arguments: 1,
    run: (pool, [rows], at) => pool.freeRequests(Int32Array.from(integersOf(rows, at(0)))),
  },
  reset: { arguments: 0, run: (pool) => pool.reset() },
};

function orNull(slot: number): number | null {
  return slot === -1 ? null : slot;
}
