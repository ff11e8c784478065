/**
 * The model allocator of the test kit and the native one are two readings of one text: under the same calls they must
 * give the same ids, refuse the same calls and hold the same state, after every call.
 *
 * The calls are drawn so that prompts share prefixes, parents outlive or lose their holders, hashes collide on purpose,
 * and shortages are common.
 */
import { BlockPool } from '../../lib/memory/block-pool.js';
import { ModelBlockPool } from '../../lib/testing/model-block-pool.js';
import { SeededRandom } from '../../lib/testing/seeded-random.js';

type Pool = Pick<
  ModelBlockPool,
  'allocate' | 'release' | 'retain' | 'touch' | 'register' | 'evict' | 'setClock' | 'reset'
>;

/** What a call gave, in comparable form. */
function outcome(call: () => unknown): string {
  try {
    const result = call();
    return result instanceof Int32Array ? [...result].join() : String(result);
  } catch (error) {
    return (error as { code: string }).code;
  }
}

function stateOf(pool: ModelBlockPool): unknown {
  const { freeStack, refs, hashes, parents, children, timestamps } = pool.state();
  const lru = pool.policy === 'lru';
  return {
    freeStack,
    refs: pool.prefixCaching ? refs : [],
    hashes: hashes.map(String),
    ...(lru ? { parents, children, timestamps } : {}),
    evictable: pool.evictableCount,
  };
}

function nativeStateOf(pool: BlockPool, policy: string): unknown {
  const snapshot = pool.snapshot();
  const lru = policy === 'lru';
  return {
    freeStack: [...snapshot.free_stack],
    refs: [...(snapshot.ref ?? [])],
    hashes: [...(snapshot.hash ?? [])].map(String),
    ...(lru
      ? { parents: [...snapshot.parent!], children: [...snapshot.children!], timestamps: [...snapshot.ts!].map(Number) }
      : {}),
    evictable: pool.evictableCount,
  };
}

test.each(['lru', 'ref_zero'] as const)('under %s both pools agree about everything, whatever is called', (policy) => {
  let refusals = 0;
  let evictions = 0;
  for (let seed = 1; seed <= 80; seed++) {
    const random = new SeededRandom(seed);
    const poolSize = random.int(3, 16);
    const model = new ModelBlockPool({ poolSize, policy });
    const native = new BlockPool({ poolSize, evictionPolicy: policy });
    let clock = 0;
    /** Held references, a list a holder. */
    const holders: number[][] = [];
    const anyBlock = (): number => random.int(0, poolSize - 2);
    const hash = (): bigint => BigInt(random.int(1, 12));

    const draw = (): ((pool: Pool) => unknown) => {
      const choice = random.int(0, 9);
      if (choice <= 2) {
        const count = random.int(0, 4);
        return (pool) => pool.allocate(count);
      }
      if (choice <= 4 && holders.length > 0) {
        const [gone] = holders.splice(random.int(0, holders.length - 1), 1);
        const list = Int32Array.from(random.shuffle(gone!));
        return (pool) => pool.release(list);
      }
      if (choice <= 6 && holders.length > 0) {
        const list = Int32Array.from(random.pick(holders));
        const hashes = BigInt64Array.from(list, hash);
        const parents = BigInt64Array.from(list, () => (random.chance(0.3) ? 0n : hash()));
        return (pool) => pool.register(list, hashes, parents);
      }
      if (choice === 7) {
        const list = Int32Array.from({ length: random.int(1, 3) }, anyBlock);
        // A block in the bag has no content to hold: the model refuses it, so only held or cached ones are retained.
        if ([...list].some((id) => model.isFree(id))) return (pool) => pool.touch(list.subarray(0, 0));
        holders.push([...list]);
        return (pool) => pool.retain(list);
      }
      if (choice === 8) {
        const count = random.int(1, 3);
        return (pool) => pool.evict(count);
      }
      return random.chance(0.02) ? (pool) => pool.reset() : (pool) => pool.setClock(++clock);
    };

    for (let step = 0; step < 120; step++) {
      const call = draw();
      const before = model.evictableCount;
      const clockBefore = clock;
      const expected = outcome(() => call(model));
      clock = clockBefore;
      const got = outcome(() => call(native as unknown as Pool));
      expect(`seed ${seed} step ${step}: ${got}`).toBe(`seed ${seed} step ${step}: ${expected}`);
      expect(nativeStateOf(native, policy)).toEqual(stateOf(model));
      if (/^[A-Z_]+$/.test(expected)) refusals++;
      if (model.evictableCount < before) evictions++;
      if (/^\d+(,\d+)*$/.test(expected) && model.refs[Number(expected.split(',')[0])] === 1) {
        holders.push(expected.split(',').map(Number));
      }
      if (model.freeCount === poolSize - 1) holders.length = 0;
      // A cycle of parents stays for good; the pools agreed about it, and there is nothing more to learn here.
      if (expected === 'BLOCK_GRAPH_CYCLE') break;
    }
    native.close();
  }
  expect(refusals).toBeGreaterThan(100);
  if (policy === 'lru') expect(evictions).toBeGreaterThan(100);
});
