/**
 * Spec 14.9, who watches the cache: a block pool's observers while handoffs come and go.
 *
 * In scope here is what the allocator tells (blocks with a new owner, names that ended, a reset) and that a listener's
 * failure harms nobody. The reference's KV event stream (stored after the forward pass, suspend modes, publication) is
 * built by the engine on top of these and has no counterpart in this library.
 */
import { BlockPool } from '../../lib/memory/block-pool.js';
import { faults, ScriptedNetwork } from '../../lib/testing/index.js';
import type { LifecycleEngine } from '../support/lifecycle-engine.js';
import { hashesOf, Instance, promptOf, settle } from '../support/lifecycle-fixture.js';

type Said = ['allocated' | 'removed', number[], bigint[]] | ['cleared'];

function watch(pool: BlockPool, said: Said[]): void {
  pool.observe({
    allocated: (ids) => void said.push(['allocated', [...ids], []]),
    removed: (ids, hashes) => void said.push(['removed', [...ids], [...hashes]]),
    cleared: () => void said.push(['cleared']),
  });
}

/** A decode instance over a native pool of `usable` blocks. */
async function nativeDecode(network: ScriptedNetwork, usable: number, errors: unknown[]) {
  const pool = new BlockPool({ poolSize: usable + 1, onObserverError: (error) => void errors.push(error) });
  const decode = await Instance.create(network, 'decode', {
    poolSize: usable + 1,
    prepare: (engine: LifecycleEngine) => void Object.defineProperty(engine, 'blocks', { value: pool }),
  });
  return { pool, decode };
}

const oneToken = { num_tokens_to_generate: 1 };

test('14.9 a block is named once, after its bytes are here, and observers hear when its name ends', async () => {
  const network = new ScriptedNetwork();
  const prefill = await Instance.create(network, 'prefill');
  const { pool, decode } = await nativeDecode(network, 2, []);
  const said: Said[] = [];
  watch(pool, said);
  const [first, second] = [promptOf(7, 1), promptOf(7, 2)];
  const [hash] = hashesOf(first);
  decode.add(1, first, prefill.handOver(1, first), oneToken);
  expect(said).toEqual([['allocated', [0, 1], []]]);
  expect(pool.lookup(hash!)).toBe(-1);
  network.advance(1);
  decode.poll();
  expect(pool.lookup(hash!)).toBe(0);
  decode.schedule();
  expect(pool.evictableCount).toBe(1);
  said.length = 0;
  // The next import needs its block: the name ends before the block gets its new owner.
  decode.add(2, second, prefill.handOver(2, second), oneToken);
  expect(said).toEqual([
    ['removed', [0], [hash]],
    ['allocated', expect.any(Array), []],
  ]);
  network.advance(1);
  decode.poll();
  decode.schedule();
  expect(pool.audit()).toBeNull();
  await settle();
});

test('14.9 what failed is never named, so no name of it ever ends', async () => {
  const network = new ScriptedNetwork();
  const prefill = await Instance.create(network, 'prefill');
  const { pool, decode } = await nativeDecode(network, 2, []);
  const said: Said[] = [];
  watch(pool, said);
  network.planNext(faults.partialWrite('now'));
  const prompt = promptOf(7);
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt), oneToken);
  network.advance(5);
  decode.poll();
  await settle();
  expect(outcome.error).toMatchObject({ code: 'TRANSFER_FAILED' });
  expect(said).toEqual([['allocated', [0, 1], []]]);
  expect(pool.freeCount).toBe(2);
});

test('14.9 a failing listener interrupts neither the deregistration, nor the import, nor the others', async () => {
  const network = new ScriptedNetwork();
  const prefill = await Instance.create(network, 'prefill');
  const errors: unknown[] = [];
  const { pool, decode } = await nativeDecode(network, 2, errors);
  const fail = (): never => {
    throw new Error('a listener');
  };
  pool.observe({ allocated: fail, removed: fail, cleared: fail });
  const committed: unknown[] = [];
  pool.observe({
    removed: (ids, hashes) =>
      // The state is complete before anybody hears of it.
      void committed.push([[...hashes].map((hash) => pool.lookup(hash)), ids.length, pool.audit()]),
  });
  const said: Said[] = [];
  watch(pool, said);
  const outcomes = [];
  for (const seed of [1, 2]) {
    const prompt = promptOf(7, seed);
    outcomes.push(decode.add(seed, prompt, prefill.handOver(seed, prompt), oneToken));
    network.advance(1);
    decode.poll();
    decode.schedule();
  }
  await settle();
  expect(outcomes.map(({ error }) => error)).toEqual([null, null]);
  expect(committed).toEqual([[[-1], 1, null]]);
  expect(said.map(([name]) => name)).toEqual(['allocated', 'removed', 'allocated']);
  expect(errors).toHaveLength(3);
  expect(decode.seen('warning')).toEqual([]);
});

test('14.9 a reset says `cleared` last and alone, and names do not outlive it', async () => {
  const network = new ScriptedNetwork();
  const prefill = await Instance.create(network, 'prefill');
  const { pool, decode } = await nativeDecode(network, 4, []);
  const prompt = promptOf(8);
  decode.add(1, prompt, prefill.handOver(1, prompt), oneToken);
  network.advance(1);
  decode.poll();
  decode.schedule();
  const said: Said[] = [];
  watch(pool, said);
  await decode.handoff.resetPendingKvImports(); // ends imports; the cache stays, and nothing is said
  expect(said).toEqual([]);
  expect(pool.matchPrefix(hashesOf(prompt))).toHaveLength(2);
  pool.reset();
  expect(said).toEqual([['cleared']]);
  expect(pool.matchPrefix(hashesOf(prompt))).toHaveLength(0);
  expect(pool.freeCount).toBe(4);
  // The same prompt is imported whole again.
  decode.add(2, prompt, prefill.handOver(2, prompt), oneToken);
  expect(decode.handoff.inspect().imports).toMatchObject([{ cachedPrefixBlocks: 0 }]);
});
