/**
 * What happens when the host engine's own methods throw, or callers hand over what is none of what it should be: nothing is
 * lost, nobody else suffers, and no request is both refused and alive.
 */
import { HandoffError } from '../../lib/errors.js';
import { createWorld, hashesOf, poolState, promptOf, settle, type World } from '../support/lifecycle-fixture.js';

async function runOut({ network, decode }: World, steps = 12): Promise<unknown[]> {
  const thrown: unknown[] = [];
  for (let i = 0; i < steps; i += 1) {
    network.advance(1);
    await decode.step().catch((error: unknown) => thrown.push(error));
  }
  return thrown;
}

function failuresOf({ decode }: World): HandoffError[] {
  const failures: HandoffError[] = [];
  decode.handoff.on('engineFailed', (error) => failures.push(error));
  return failures;
}

/** Adds with options of one's own, and remembers how it ended. */
function addRaw(world: World, id: number, options: object | null): { settled: number; error: HandoffError | null } {
  const prompt = promptOf(8, id);
  const { kvMeta, blockIds } = world.prefill.handOver(id, prompt);
  const outcome = { settled: 0, error: null as HandoffError | null };
  world.decode.handoff
    .addRequestWithKvHandoff(id, prompt, { num_tokens_to_generate: 2 }, kvMeta, blockIds, options as never)
    .then(
      () => (outcome.settled += 1),
      (error: HandoffError) => {
        outcome.settled += 1;
        outcome.error = error;
      },
    );
  return outcome;
}

describe('options that are none are refused before anything starts', () => {
  test.each([
    ['hashes of zero', { blockHashes: BigInt64Array.of(0n, 1n) }],
    ['hashes below zero', { blockHashes: BigInt64Array.of(1n, -1n) }],
    ['a hash twice', { blockHashes: BigInt64Array.of(5n, 5n) }],
    ['too few hashes', { blockHashes: BigInt64Array.of(5n) }],
    ['hashes of another type', { blockHashes: [1n, 2n] }],
    ['a signal without listeners', { signal: { aborted: false } }],
    ['a number as signal', { signal: 5 }],
  ])('%s', async (_name, options) => {
    const world = await createWorld();
    const before = poolState(world.decode.engine.blocks);
    const refused = addRaw(world, 1, options);
    const innocent = addRaw(world, 2, null);
    expect(await runOut(world)).toEqual([]);
    expect(refused).toMatchObject({ settled: 1, error: { code: 'ARGUMENT_INVALID' } });
    expect(innocent).toEqual({ settled: 1, error: null });
    expect(poolState(world.decode.engine.blocks).refs).toEqual(before.refs);
    expect(world.decode.handoff.inspect()).toMatchObject({ imports: [], quarantine: [], hashOwners: [] });
    expect(world.decode.seen('kvReadDone')).toHaveLength(2);
  });
});

test('an allocator that refuses a name once costs a cache hit, and neither the request nor its neighbour', async () => {
  const world = await createWorld();
  const failures = failuresOf(world);
  const { blocks } = world.decode.engine;
  const register = blocks.register.bind(blocks);
  let calls = 0;
  blocks.register = (...args) => {
    calls += 1;
    if (calls === 1) throw new HandoffError('BLOCK_HASH_CONFLICT', 'refused once');
    register(...args);
  };
  const [first, second] = [addRaw(world, 1, null), addRaw(world, 2, null)];
  await runOut(world);
  expect(first).toEqual({ settled: 1, error: null });
  expect(second).toEqual({ settled: 1, error: null });
  expect(blocks.lookup(hashesOf(promptOf(8, 1))[0]!)).toBe(-1);
  expect(blocks.lookup(hashesOf(promptOf(8, 2))[0]!)).toBeGreaterThanOrEqual(0);
  expect(failures).toMatchObject([{ code: 'BLOCK_HASH_CONFLICT' }]);
  expect(world.decode.handoff.inspect().hashOwners).toEqual([]);
});

describe('a method that throws once while a request is taken', () => {
  test.each(['growthReserve', 'matchPrefix', 'isMemoryAvailable', 'allocate', 'setClock'] as const)(
    '%s: the request lives or is refused, never both',
    async (method) => {
      const world = await createWorld();
      const failures = failuresOf(world);
      const { engine } = world.decode;
      const owner = (method === 'growthReserve' ? engine : engine.blocks) as unknown as Record<
        string,
        (...args: unknown[]) => unknown
      >;
      const original = owner[method]!.bind(owner);
      let calls = 0;
      const outcome = (() => {
        owner[method] = (...args) => {
          calls += 1;
          if (calls === 1) throw new Error('the device fell over');
          return original(...args);
        };
        return addRaw(world, 1, null);
      })();
      await settle();
      expect(outcome.settled).toBe(0);
      expect(failures).toMatchObject([
        { code: 'ENGINE_CALL_FAILED', message: expect.stringContaining('the device fell over') },
      ]);
      await runOut(world);
      expect(outcome).toEqual({ settled: 1, error: null });
      expect(world.decode.seen('requestError')).toEqual([]);
      expect(world.decode.handoff.metrics().counters).toMatchObject({ imports_completed_total: 1 });
      expect(world.decode.seen('kvReadDone')).toHaveLength(1);
      expect(world.decode.handoff.inspect()).toMatchObject({ imports: [], hashOwners: [] });
    },
  );

  test('an allocator that answers with something else gives nothing away', async () => {
    const world = await createWorld();
    const failures = failuresOf(world);
    const { blocks } = world.decode.engine;
    const before = poolState(blocks);
    const allocate = blocks.allocate.bind(blocks);
    let calls = 0;
    blocks.allocate = (count) => {
      calls += 1;
      return calls === 1 ? null : allocate(count);
    };
    const outcome = addRaw(world, 1, null);
    expect(failures).toMatchObject([{ code: 'INVARIANT' }]);
    await runOut(world);
    expect(outcome).toEqual({ settled: 1, error: null });
    expect(poolState(blocks).refs).toEqual(before.refs);
  });
});

test('a fence that throws when it is asked pins nothing', async () => {
  const { prefill } = await createWorld();
  const before = poolState(prefill.engine.blocks);
  const ready = {
    isComplete: (): boolean => {
      throw new Error('no such event');
    },
  };
  const run = prefill.engine.prefill(1, Int32Array.from(promptOf(9)))!;
  const finished = { ...run, promptTokens: 9, doKvHandoff: true, returnLogProbs: false };
  const prepared = prefill.handoff.prepareHandoffMetadataBatch([finished]);
  expect(() => prefill.handoff.captureHandoffMeta(1, prepared, { ready })).toThrow(
    expect.objectContaining({ code: 'ENGINE_CALL_FAILED' }),
  );
  prefill.engine.endPrefill(run, false);
  expect(prefill.handoff.inspect().pins).toEqual([]);
  expect(poolState(prefill.engine.blocks).refs).toEqual(before.refs);
});
