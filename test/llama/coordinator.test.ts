/** The llama.cpp demo behind the coordinator that ships with the package: the same answers, and nothing left behind. */
import { spawn, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { linesOf, reportOf, type Report } from '../../examples/llama/report.js';
import type { Scenario } from '../../examples/llama/scenario.js';
import { assetsOf } from '../support/llama-pair.js';

const compiled = join(__dirname, '..', '..', 'dist', 'examples', 'llama', 'demo.js');

interface Run {
  readonly child: ChildProcess;
  readonly text: { out: string; err: string };
  /** Resolves with the exit status. */
  readonly ended: Promise<number | null>;
  /** Resolves when progress says so. */
  says(what: RegExp): Promise<void>;
}

/** In a process group of its own, as a terminal would start it; progress goes to standard error. */
function start(...flags: string[]): Run {
  const given = ['--coordinator', '--json', ...flags];
  const child = spawn(process.execPath, [compiled, ...given], { stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  const text = { out: '', err: '' };
  child.stdout.on('data', (data: Buffer) => (text.out += data.toString()));
  child.stderr.on('data', (data: Buffer) => (text.err += data.toString()));
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  const says = (what: RegExp): Promise<void> =>
    new Promise((resolve, reject) => {
      const look = (): void => (what.test(text.err) ? resolve() : undefined);
      child.stderr.on('data', look);
      child.once('close', () => reject(new Error(`it ended before it said ${what}: ${text.err}`)));
      look();
    });
  return { child, text, ended, says };
}

/** Questions whose answers take long enough to be in the middle of one. */
const long = ['sea', 'forest', 'mountains'].flatMap((what) => ['--prompt', `Tell me all about the ${what}.`]);

/** Of the router, the coordinator, prefill and decode. */
function processesOf({ text }: Run): number[] {
  const line = /^processes: router (\d+), coordinator (\d+) at tcp:\S+, prefill (\d+), decode (\d+)$/m.exec(text.err);
  expect(line).not.toBeNull();
  return line!.slice(1).map(Number);
}

function expectGone(processes: readonly number[]): void {
  for (const each of processes) expect(() => process.kill(each, 0)).toThrow('ESRCH');
}

beforeAll(async () => {
  await assetsOf();
});

test('everything is identical, a prefix does not move twice, and decode evaluates no prompt token', async () => {
  const prompts = ['Why is snow white?', 'What do owls eat?', 'How old can a tree be?'];
  const run = start('--tokens', '6', ...prompts.flatMap((text) => ['--prompt', text]));
  const status = await run.ended;
  expect(run.text.err).not.toMatch(/^unexpected/m);
  expect(run.text.err).toMatch(/^evaluated on decode: 15 tokens, 0 of them in a prompt$/m);
  expect(run.text.err).toMatch(/^demo:llama: 3 requests, all as expected, .*, identical: yes$/m);
  const report = JSON.parse(run.text.out) as Report;
  expect(report).toMatchObject({ identical: true, ok: true, evaluated: { tokens: 15, promptTokens: 0 } });
  expect(report.rows.map(({ tokens }) => tokens.length)).toEqual([6, 6, 6]);
  const [first, ...others] = report.rows;
  expect(first!.cachedBlocks).toBe(0);
  for (const { cachedBlocks } of others) expect(cachedBlocks).toBeGreaterThan(0);
  expect(status).toBe(0);
  expectGone(processesOf(run));
});

test('Ctrl-C in the middle of an answer leaves no process', async () => {
  const run = start('--tokens', '512', ...long);
  await run.says(/ moved \d+ blocks/);
  process.kill(-run.child.pid!, 'SIGINT');
  expect(await run.ended).toBe(130);
  expectGone(processesOf(run));
});

test('a coordinator that dies ends the demo with status 1, and no process stays', async () => {
  const run = start('--tokens', '512', ...long);
  await run.says(/ moved \d+ blocks/);
  process.kill(processesOf(run)[1]!, 'SIGKILL');
  expect(await run.ended).toBe(1);
  expect(run.text.err).toContain('failed because the coordinator process ended uncalled with SIGKILL');
  expectGone(processesOf(run));
});

test('a prompt token that decode evaluated is not as expected', () => {
  const end = { kind: 'stopped' as const, leftovers: [], blocksFree: 3, blocksUsable: 3, counters: [] };
  const scenario: Scenario = { stages: [], lanes: 1, maxSequenceLength: 256, decodeBlocks: 4, prefillBlocks: 4 };
  const outcome = { seen: new Map(), ends: { prefill: end, decode: end }, replayed: new Map() };
  expect(reportOf(scenario, { ...outcome, evaluated: { tokens: 9, promptTokens: 0 } }).ok).toBe(true);
  const report = reportOf(scenario, { ...outcome, evaluated: { tokens: 9, promptTokens: 2 } });
  expect(report.ok).toBe(false);
  expect(linesOf(report, false)).toContain('unexpected: decode evaluated 2 prompt tokens');
});
