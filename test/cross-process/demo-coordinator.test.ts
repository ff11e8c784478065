/**
 * The demo behind the shipped coordinator: the same requests, table and comparison, with engines that the coordinator
 * chooses. Its own verdict is not trusted alone.
 */
import { existsSync } from 'node:fs';
import type { ModelReport, Row, Verdict } from '../../examples/demo/report.js';
import { childrenOf, endDemos, gone, smallDemo, startDemo } from '../support/demo-run.js';

// Six processes a run.
jest.setTimeout(240_000);
afterEach(endDemos);

describe('the scenario', () => {
  let report: Verdict & { models: [ModelReport] };
  let rows: Map<string, Row>;
  let status: number | null;
  let err: string;

  beforeAll(async () => {
    const run = startDemo('--json', '--coordinator', '--model', 'hybrid', ...smallDemo);
    ({ status } = await run.ended);
    err = run.err();
    report = JSON.parse(run.out()) as typeof report;
    rows = new Map(report.models[0].rows.map((row) => [row.id, row]));
  });

  test('ends with status 0, everything as expected and identical', () => {
    const wrong = [...rows.values()].flatMap((row) => [...row.surprises, ...row.differences]);
    expect([...wrong, ...report.models[0].surprises]).toEqual([]);
    expect(report).toMatchObject({ requests: 21, asExpected: 21, identical: true, ok: true });
    expect(status).toBe(0);
    const told = (id: string): unknown => {
      const { end, tokens, identical } = rows.get(id)!;
      return [end, tokens.length, identical];
    };
    for (const id of ['cold', 'long', 'shared', 'beside', 'crowd-1', 'crowd-12'])
      expect([id, told(id)]).toEqual([id, ['length', 6, true]]);
    expect(told('none')).toEqual(['length', 0, true]);
    expect(told('stop')).toEqual(['stop', 1, true]);
    expect(told('abort')).toEqual(['aborted', 0, null]);
  });

  test('the coordinator sends a prompt where its beginning is, and everything else where there is room', () => {
    const by = (id: string): string | null => rows.get(id)!.decodedBy;
    expect([by('shared'), by('stop')]).toEqual([by('cold'), by('cold')]);
    const cached = [...rows.values()].filter(({ cachedBlocks }) => cachedBlocks > 0).map(({ id }) => id);
    expect(cached).toEqual(['shared', 'stop']);
    const crowd = [...rows.values()].filter(({ id }) => id.startsWith('crowd'));
    for (const engine of ['decode 1', 'decode 2'])
      expect([engine, crowd.filter(({ decodedBy }) => decodedBy === engine).length]).toEqual([engine, 6]);
    // Three fit into each pool.
    expect([...rows.values()].filter(({ waited }) => waited)).toHaveLength(6);
  });

  test('router, coordinator and four engines are six processes, and none is left', async () => {
    const { router, coordinator, prefill, decode } = report.models[0].processIds;
    const ids = [router, coordinator!, ...prefill, ...decode];
    expect(new Set(ids).size).toBe(6);
    expect(err).toContain(`coordinator ${coordinator} at tcp://127.0.0.1:`);
    await gone(ids);
  });
});

describe('ends in the middle', () => {
  async function midway() {
    const flags = ['--model', 'attention', '--layers', '2', '--blocks', '128', '--tokens', '128'];
    const run = startDemo('--json', '--coordinator', ...flags);
    await run.sees(/cold +> /);
    const children = childrenOf(run.process.pid!);
    expect(children).toHaveLength(5);
    return { run, children };
  }

  test('Ctrl-C ends every process', async () => {
    const { run, children } = await midway();
    run.process.kill('SIGINT');
    expect(await run.ended).toEqual({ status: 130, signal: null });
    expect(children.filter((id) => existsSync(`/proc/${id}`))).toEqual([]);
    expect(run.out()).toBe('');
  });

  test('a router that is killed takes its workers and the coordinator with it', async () => {
    const { run, children } = await midway();
    run.process.kill('SIGKILL');
    await gone(children);
  });

  test('a coordinator that is killed is named, and the engines end', async () => {
    const { run, children } = await midway();
    process.kill(Number(/coordinator (\d+) at/.exec(run.err())![1]), 'SIGKILL');
    expect((await run.ended).status).toBe(1);
    expect(run.err()).toContain('demo: failed because the coordinator process ended uncalled with SIGKILL');
    await gone(children);
  });
});

test('engines of several ranks, a process each: the coordinator speaks with one of them, the log with the others', async () => {
  const shapes = ['--prefill', 'tp=2+tp=1', '--decode', 'tp=1+pp=2'];
  const run = startDemo('--json', '--coordinator', '--model', 'attention', ...shapes, ...smallDemo);
  const { status } = await run.ended;
  const report = JSON.parse(run.out()) as Verdict & { models: [ModelReport] };
  const [{ rows, surprises, processIds, memory }] = report.models;
  expect([...surprises, ...rows.flatMap((row) => [...row.surprises, ...row.differences])]).toEqual([]);
  expect(report).toMatchObject({ requests: 21, asExpected: 21, identical: true, ok: true });
  expect(status).toBe(0);
  expect([processIds.prefill.length, processIds.decode.length]).toEqual([3, 3]);
  expect(memory).toEqual({ prefill: '429 of 429 blocks on 3 ranks', decode: '141 of 141 blocks on 3 ranks' });
  expect(new Set(rows.flatMap(({ decodedBy }) => decodedBy ?? []))).toEqual(new Set(['decode 1', 'decode 2']));
});

test('two engines are killed in the middle: the rest goes on, and every block and pin is accounted for', async () => {
  const run = startDemo('--json', '--coordinator', '--chaos', '--model', 'attention', ...smallDemo);
  const { status } = await run.ended;
  const report = JSON.parse(run.out()) as Verdict & { models: [ModelReport] };
  const [{ rows, surprises, chaos, memory, processIds }] = report.models;
  expect([...surprises, ...rows.flatMap((row) => [...row.surprises, ...row.differences])]).toEqual([]);
  expect(status).toBe(0);
  expect(report).toMatchObject({ requests: 18, asExpected: 18, identical: true, ok: true });
  expect(chaos!.killed).toEqual([expect.stringMatching(/^decode [12]$/), expect.stringMatching(/^prefill [12]$/)]);
  // What was held had not moved, so what meets a victim fails; those that came before and after never do.
  const ended = new Map(rows.map(({ id, end }) => [id, end]));
  for (const id of ['cold', 'partial', 'long', 'after-1', 'after-2', 'after-3']) expect(ended.get(id)).toBe('length');
  const failed = rows.filter(({ end }) => end !== 'length');
  expect(failed.every(({ id, end }) => /^(?:held|running)-/.test(id) && end === 'ENGINE_FAILED')).toBe(true);
  expect(failed.length).toBeGreaterThanOrEqual(4);
  expect(chaos).toMatchObject({ finished: 18 - failed.length, failed: failed.length, blocksGone: 190 });
  expect(chaos!.pinsReleased + chaos!.pinsGone).toBe(chaos!.pinsMade);
  expect(memory).toEqual({ prefill: '143 of 143 blocks', decode: '47 of 47 blocks' });
  expect(run.err()).toMatch(
    /; pins: \d+ made, \d+ released \(\d+ of them when .*\), \d+ gone with the killed, 0 left\n/,
  );
  await gone([processIds.coordinator!, ...processIds.prefill, ...processIds.decode]);
});
