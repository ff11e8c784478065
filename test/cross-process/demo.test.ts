/**
 * The demo as a user runs it: one command, other processes, an exit status. Small pools and models, everything else as
 * by default. Its own verdict is not trusted alone: figures are checked against what the flags imply.
 */
import { fork } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { encode, rankShape, smallModel } from '../../examples/engine/index.js';
import { stateSizes } from '../../examples/demo/engine-setting.js';
import {
  decodeAnswers,
  decodeCommands,
  parseMessage,
  prefillAnswers,
  type EngineSetting,
} from '../../examples/demo/messages.js';
import { parseOptions } from '../../examples/demo/options.js';
import type { ModelReport, Row, Verdict } from '../../examples/demo/report.js';
import { WorkerProcess } from '../../examples/demo/worker-process.js';
import { scenarioOf } from '../../examples/demo/scenario.js';
import {
  childrenOf,
  compiledDemo,
  endDemos,
  gone,
  running,
  smallDemo,
  startDemo,
  type DemoRun,
} from '../support/demo-run.js';

afterEach(endDemos);

describe('the scenario', () => {
  let report: Verdict & { models: ModelReport[] };
  let status: number | null;

  beforeAll(async () => {
    const run = startDemo('--json', ...smallDemo);
    ({ status } = await run.ended);
    report = JSON.parse(run.out()) as typeof report;
  });

  test('ends with status 0, everything as expected and identical', () => {
    const wrong = report.models.flatMap(({ rows, surprises }) => [
      ...surprises,
      ...rows.flatMap((row) => [...row.surprises, ...row.differences]),
    ]);
    expect(wrong).toEqual([]);
    expect(report).toMatchObject({ requests: 30, asExpected: 30, identical: true, ok: true });
    expect(status).toBe(0);
  });

  test.each([0, 1])('model %i: each request ends as its flags imply', (index) => {
    const { rows } = report.models[index]!;
    const by = new Map<string, Row>(rows.map((row) => [row.id, row]));
    const told = (id: string): unknown => {
      const { end, tokens, identical } = by.get(id)!;
      return [end, tokens.length, identical];
    };
    for (const id of ['cold', 'partial', 'long', 'shared', 'beside', 'crowd-1', 'crowd-6']) {
      expect([id, told(id)]).toEqual([id, ['length', 6, true]]);
    }
    expect(told('none')).toEqual(['length', 0, true]);
    expect(told('one')).toEqual(['length', 1, true]);
    expect(told('stop')).toEqual(['stop', 1, true]);
    expect(told('abort')).toEqual(['aborted', 0, null]);
    expect(by.get('stop')!.tokens[0]).toBe(by.get('cold')!.tokens[0]);
    expect(by.get('stop')!.promptTokens).toBe(by.get('cold')!.promptTokens);
  });

  test.each([0, 1])('model %i: only what decode has not moves', (index) => {
    const { rows, model } = report.models[index]!;
    const attentionLayers = model === 'hybrid' ? 1 : 2;
    const blockBytes = attentionLayers * 2 * 8 * 4 * 16 * 4;
    const slotBytes = model === 'hybrid' ? ((128 + 2 * 2 * 16) * 4 + 128 * 16) * 4 : 0;
    for (const row of rows.filter(({ id }) => id !== 'abort')) {
      expect([row.id, row.movedBlocks]).toEqual([row.id, Math.ceil(row.promptTokens / 8) - row.cachedBlocks]);
      expect([row.id, row.movedBytes]).toEqual([row.id, row.movedBlocks * blockBytes + slotBytes]);
      expect(row.transferMs).toBeGreaterThanOrEqual(0);
    }
    const cached = rows.filter(({ cachedBlocks }) => cachedBlocks > 0).map(({ id }) => id);
    expect(cached).toEqual(['shared', 'stop']);
    expect(rows.find(({ id }) => id === 'abort')).toMatchObject({ movedBytes: 0, movedBlocks: 0 });
    expect(rows.find(({ id }) => id === 'partial')!.promptTokens % 8).not.toBe(0);
  });

  test('the crowd waits in line, and only the crowd', () => {
    for (const { rows } of report.models) {
      const waited = rows.filter((row) => row.waited).map(({ id }) => id);
      expect(waited).toEqual(['crowd-4', 'crowd-5', 'crowd-6']);
    }
  });

  test('the hybrid model carries proposals over, and every end moved one counter', () => {
    const [attention, hybrid] = report.models as [ModelReport, ModelReport];
    expect(attention.rows.every(({ proposed }) => proposed === 0)).toBe(true);
    expect(hybrid.rows.filter(({ tokens }) => tokens.length > 2).every(({ proposed }) => proposed > 0)).toBe(true);
    for (const { counters } of report.models) {
      expect(counters).toMatchObject({ imports_completed_total: 14, imports_aborted_total: 1 });
    }
  });

  test('router, prefill and decode are three processes, and none is left', async () => {
    for (const { processIds } of report.models) {
      const ids = [processIds.router, ...processIds.prefill, ...processIds.decode];
      expect(new Set(ids).size).toBe(3);
      await gone(ids);
    }
  });
});

test('one flipped bit of transferred state is found, and the status says so', async () => {
  const run = startDemo('--json', '--model', 'attention', '--corrupt', ...smallDemo);
  const { status } = await run.ended;
  const report = JSON.parse(run.out()) as Verdict & { models: ModelReport[] };
  expect(status).toBe(1);
  expect(report).toMatchObject({ identical: false, ok: false });
  const rows = new Map(report.models[0]!.rows.map((row) => [row.id, row]));
  // Those that use the wrong byte, and nobody else.
  const different = [...rows.values()].filter(({ identical }) => identical === false).map(({ id }) => id);
  expect(different).toEqual(['cold', 'shared']);
  expect(rows.get('cold')!.differences[0]).toMatch(/^(?:logits of )?token 1: expected/);
});

test("prompts of one's own: a file and a text, read to the byte", async () => {
  const folder = mkdtempSync(join(tmpdir(), 'state-handoff-demo-'));
  try {
    const file = join(folder, 'own.txt');
    writeFileSync(file, 'Grüße aus dem Süden');
    const run = startDemo(
      '--json',
      '--model=moe',
      '--prompt',
      'hello',
      '--prompt-file',
      file,
      '--layers',
      '2',
      '--tokens',
      '3',
    );
    expect((await run.ended).status).toBe(0);
    const [{ rows }] = (JSON.parse(run.out()) as { models: [ModelReport] }).models;
    const lengths = ['hello', 'Grüße aus dem Süden'].map((text) => 1 + encode(text).length);
    expect(rows.map(({ promptTokens }) => promptTokens)).toEqual(lengths);
    expect(rows.map(({ tokens, identical }) => [tokens.length, identical])).toEqual([
      [3, true],
      [3, true],
    ]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

describe('ends in the middle', () => {
  /** A run that is computing, with all its processes. */
  async function midway(): Promise<{ run: DemoRun; children: number[] }> {
    const run = startDemo('--json', '--model', 'attention', '--layers', '2', '--blocks', '128', '--tokens', '128');
    await run.sees(/cold +> /);
    const children = childrenOf(run.process.pid!);
    expect(children).toHaveLength(2);
    return { run, children };
  }

  test.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)('%s ends every process', async (signal, expected) => {
    const { run, children } = await midway();
    run.process.kill(signal);
    expect(await run.ended).toEqual({ status: expected, signal: null });
    // The router waits for them, so that they are gone before it is.
    expect(children.filter((id) => existsSync(`/proc/${id}`))).toEqual([]);
    expect(run.err()).toContain(`${signal}: ending all processes`);
    expect(run.out()).toBe('');
  });

  test.each(['stdout', 'stderr'] as const)(
    '%s that nobody reads any more ends every process, quietly',
    async (name) => {
      const json = name === 'stderr' ? ['--json'] : [];
      const run = startDemo(...json, '--model', 'attention', '--layers', '2', '--blocks', '128', '--tokens', '128');
      await run.sees(/cold +> /, name === 'stderr' ? 'err' : 'out');
      const children = childrenOf(run.process.pid!);
      expect(children).toHaveLength(2);
      run.process[name]!.destroy();
      expect(await run.ended).toEqual({ status: 141, signal: null });
      expect(children.filter((id) => existsSync(`/proc/${id}`))).toEqual([]);
      expect([run.out(), run.err()].join('')).not.toMatch(/EPIPE|Error|failed/);
    },
  );

  test('Ctrl-C reaches the workers too, which leave it to the router', async () => {
    const { run, children } = await midway();
    for (const id of children) process.kill(id, 'SIGINT');
    // They go on: the stage comes to its end.
    await run.sees(/what decode has already/);
    run.process.kill('SIGINT');
    expect(await run.ended).toEqual({ status: 130, signal: null });
    expect(run.err()).not.toMatch(/uncalled|cannot go on/);
  });

  test('a router that is killed takes its workers with it', async () => {
    const { run, children } = await midway();
    run.process.kill('SIGKILL');
    await gone(children);
  });

  test('a worker without a router does not finish its work first', async () => {
    const worker = fork(join(compiledDemo, 'prefill-worker.js'), { stdio: 'ignore' });
    running.add(worker);
    const ended = new Promise((resolve) => worker.once('exit', resolve));
    const heard = (kind: string): Promise<void> =>
      new Promise((resolve) => {
        worker.on('message', (message: { kind: string }) => {
          if (message.kind === kind) resolve();
        });
      });
    const ready = heard('ready');
    const model = { kind: 'attention' as const, layers: 1, proposals: 0, seed: 1, ssmGroups: 2 };
    const sizes = { blockSize: 16, blocks: 8192, chunk: 16, maxRequests: 1 };
    const ranks = { ...rankShape({}), stages: null, rank: 0, world: 'alone', secret: '' };
    const names = { transport: 'host', ticketSecret: 'a secret of at least thirty-two bytes', identity: '' };
    const engine: EngineSetting = { ...model, ...sizes, ...names, ranks, coordinator: null, corrupt: false };
    worker.send({ kind: 'start', engine });
    await ready;
    const busy = heard('busy');
    // Minutes of work.
    const prompt = Array.from({ length: 100_000 }, (_, index) => index % 256);
    const sampling = { num_tokens_to_generate: 1, termination_id: -1 };
    worker.send({ kind: 'prompt', id: 'endless', prompt, sampling });
    await busy;
    worker.disconnect();
    expect(await ended).toBe(0);
    running.delete(worker);
  });

  test.each([0, 1])('a worker that is killed is named, and the others end (worker %i)', async (index) => {
    const { run, children } = await midway();
    process.kill(children[index]!, 'SIGKILL');
    expect((await run.ended).status).toBe(1);
    expect(run.err()).toMatch(/demo: failed because the (?:prefill|decode) process ended uncalled with SIGKILL/);
    await gone(children);
  });
});

describe('flags', () => {
  test.each([
    [['--layers', 'many'], '--layers: expected an integer in [1, 16], got "many"'],
    [['--layers', '17'], '--layers: expected an integer in [1, 16], got "17"'],
    [['--layers', '1'], '--layers: expected at least 2 for attention and hybrid, got 1'],
    [['--tokens', '1.5'], '--tokens: expected an integer in [2, 256], got "1.5"'],
    [['--seed', '-1'], '--seed: expected an integer in [0, 4294967295], got "-1"'],
    [['--seed=4294967296'], '--seed: expected an integer in [0, 4294967295], got "4294967296"'],
    [['--model', 'gpt'], '--model: expected one of attention, hybrid, moe, got "gpt"'],
    [['--transport', 'carrier-pigeon'], `--transport: expected one of host, nixl, auto, got "carrier-pigeon"`],
    [['--model'], '--model: expected a value, got "nothing"'],
    [['--model', '--json'], '--model: expected a value, got "--json"'],
    [['--json=yes'], '--json: expected no value, got "yes"'],
    [['--seed', '1', '--seed', '2'], '--seed: expected at most one value, got "2"'],
    [['--chaos'], '--chaos: expected --coordinator beside it, got "nothing"'],
    [['--chaos', '--coordinator', '--decode', 'tp=1'], '--decode: expected at least two engines for --chaos, got 1'],
    [['--prompt', ''], '--prompt: expected a text that is not empty, got ""'],
    [['--prompt-file', 'no-such-file'], '--prompt-file: expected a file that can be read (ENOENT), got "no-such-file"'],
  ])('%j is refused', (flags, message) => {
    expect(() => parseOptions(flags)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID', message }));
  });

  test('an unknown flag is answered with those that exist, without the hidden one', () => {
    const known =
      '--layers, --proposals, --blocks, --block-size, --tokens, --seed, --model, --transport, --prefill, --decode, ' +
      '--prefill-stages, --decode-stages, --inference-shards, --svg, --prompt';
    const message = `flag: expected one of ${known}, --prompt-file, --json, --help, --coordinator, --chaos, got "prompt.txt"`;
    expect(() => parseOptions(['--model', 'moe', 'prompt.txt'])).toThrow(expect.objectContaining({ message }));
  });

  test('a pool that is too small for the scenario is refused with the size that is enough', () => {
    const texts = new Map(['lighthouse', 'clockmaker', 'river', 'orchard', 'postcard'].map((name) => [name, name]));
    const sized = (blocks: number) => () => scenarioOf('attention', parseOptions(['--blocks', `${blocks}`]), texts);
    expect(sized(30)).toThrow('--blocks: expected at least 31 with --block-size 16 and --tokens 24, got 30');
    expect(sized(31)().stages).toHaveLength(4);
  });

  test('the program ends with status 2 and points to its help', async () => {
    const run = startDemo('--speed', 'ludicrous');
    expect((await run.ended).status).toBe(2);
    expect(run.err()).toMatch(/^demo: flag: expected one of .*, got "--speed"\nSee npm run demo -- --help\n$/);
    const help = startDemo('--help');
    expect((await help.ended).status).toBe(0);
    for (const flag of ['--model', '--layers', '--blocks', '--block-size', '--seed', '--transport', '--prompt-file']) {
      expect(help.out()).toContain(flag);
    }
    expect(help.out()).not.toContain('--corrupt');
  });
});

describe('messages', () => {
  const landed = { kind: 'landed', id: 'cold', bytes: 1, milliseconds: 0.5, transport: 'host' };

  test.each([
    [null, 'decode.kind: expected one of ready'],
    [{ kind: 'toString' }, 'decode.kind: expected one of ready'],
    [{ ...landed, bytes: -1 }, 'decode.landed.bytes: expected an integer in [0, 9007199254740991], got -1'],
    [{ ...landed, bytes: '1' }, 'decode.landed.bytes: expected an integer'],
    [{ ...landed, milliseconds: null }, 'decode.landed.milliseconds: expected a number, got null'],
    [{ ...landed, id: 'x'.repeat(65) }, 'decode.landed.id: expected text of at most 64 characters'],
    [{ ...landed, more: 1 }, 'decode.landed.more: expected no such field'],
    [{ kind: 'token', id: 'cold', index: 0 }, 'decode.token.token: expected an integer'],
    [{ kind: 'readDone', id: 'cold', handoff: [] }, 'decode.readDone.handoff: expected a map'],
  ])('%j is refused', (message, expected) => {
    expect(() => parseMessage(decodeAnswers, message, 'decode')).toThrow(expected);
  });

  test('what fits is taken as it is', () => {
    expect(parseMessage(decodeAnswers, landed, 'decode')).toEqual(landed);
    const abort = { kind: 'abort', id: 'cold' };
    expect(parseMessage(decodeCommands, abort, 'decode')).toEqual(abort);
  });

  test.each(['prefill', 'decode', 'reference'])('a %s worker that is told nonsense says so and ends', async (name) => {
    const worker = fork(join(compiledDemo, `${name}-worker.js`), { stdio: 'ignore' });
    running.add(worker);
    const answers: unknown[] = [];
    worker.on('message', (answer) => answers.push(answer));
    worker.send({ kind: 'start', engine: { kind: 'attention' } });
    const status = await new Promise((resolve) => worker.once('exit', resolve));
    running.delete(worker);
    expect(status).toBe(1);
    const message = expect.stringMatching(new RegExp(`^${name}\\.start\\.engine\\.layers: expected `)) as unknown;
    expect(answers).toEqual([{ kind: 'failure', message, isConsequence: false }]);
  });
});

test('a worker that cannot go on is told of once, by what it said and not by its end', async () => {
  const told: [string, boolean | undefined][] = [];
  const fail = (error: Error, isConsequence?: boolean): void => void told.push([error.message, isConsequence]);
  const worker = new WorkerProcess('a worker', prefillAnswers, () => undefined, fail, compiledDemo, 'prefill');
  worker.send({ kind: 'nonsense' } as never);
  const isThere = (): boolean => existsSync(`/proc/${worker.processId}`);
  while (told.length === 0 || isThere()) await new Promise((resolve) => setTimeout(resolve, 20));
  await worker.end();
  expect(told).toEqual([
    [expect.stringMatching(/^the a worker process cannot go on: prefill\.kind: expected /), false],
  ]);
});

test("sizes of state follow the model's own figures", () => {
  expect(stateSizes(smallModel('attention'), 4, rankShape({}))).toEqual({
    blockBytes: 2 * 2 * 4 * 2 * 8 * 4,
    slotBytes: 0,
  });
  expect(stateSizes(smallModel('hybrid'), 4, rankShape({}))).toEqual({
    blockBytes: 2 * 2 * 4 * 2 * 8 * 4,
    slotBytes: 2 * ((32 + 2 * 2 * 8) * 4 + 32 * 8) * 4,
  });
});
