/** The llama.cpp demo as a user runs it: one command, other processes, an exit status. */
import { spawn } from 'node:child_process';
import { chmodSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import type { Report } from '../../examples/llama/report.js';
import { assetsOf } from '../support/llama-pair.js';

const compiled = join(__dirname, '..', '..', 'dist', 'examples', 'llama', 'demo.js');

function run(...flags: string[]): Promise<{ status: number | null; out: string; err: string }> {
  const child = spawn(process.execPath, [compiled, ...flags], { stdio: ['ignore', 'pipe', 'pipe'] });
  let [out, err] = ['', ''];
  child.stdout.on('data', (data: Buffer) => (out += data.toString()));
  child.stderr.on('data', (data: Buffer) => (err += data.toString()));
  return new Promise((resolve) => child.once('close', (status) => resolve({ status, out, err })));
}

beforeAll(async () => {
  await assetsOf();
});

test('answers its questions, shows the table, and everything is identical', async () => {
  const { status, out } = await run('--tokens', '20');
  expect(out).toMatch(/^model: SmolLM2-135M-Instruct\.Q4_1\.gguf sha256:b179c9523d0e/m);
  expect(out).toMatch(/^The sky is blue during the day because/m);
  expect(out).toMatch(/^leaves {4,}waits: decode has no room$/m);
  expect(out).toMatch(/^gone .* aborted +-$/m);
  expect(out).toMatch(
    /^demo:llama: 8 requests, all as expected, \d+\.\d s of prefill saved on decode, identical: yes$/m,
  );
  expect(status).toBe(0);
});

test('with as few tokens as it takes, everything is as expected, too', async () => {
  const { status, out } = await run('--tokens', '2');
  expect(out).not.toMatch(/^unexpected/m);
  expect(out).toMatch(/^gone .* aborted +-$/m);
  expect(out).toMatch(/^demo:llama: 8 requests, all as expected, .*, identical: yes$/m);
  expect(status).toBe(0);
});

test.each([
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const)('%s while it fetches leaves no process and nothing half fetched', async (signal, expected) => {
  const folder = mkdtempSync(join(tmpdir(), 'state-handoff-demo-'));
  try {
    const client = join(folder, 'npm');
    writeFileSync(client, `#!/bin/sh\necho half > half.tgz\necho $$ > ${join(folder, 'client')}\nexec sleep 600\n`);
    chmodSync(client, 0o755);
    const cache = join(folder, 'cache');
    const child = spawn(process.execPath, [compiled], {
      stdio: 'ignore',
      env: { ...process.env, PATH: `${folder}${delimiter}${process.env['PATH']}`, STATE_HANDOFF_CACHE: cache },
    });
    const ended = new Promise((resolve) => child.once('close', resolve));
    const processId = (): number =>
      existsSync(join(folder, 'client')) ? Number(readFileSync(join(folder, 'client'), 'utf8')) : 0;
    while (processId() === 0) await new Promise((resolve) => setTimeout(resolve, 20));
    child.kill(signal);
    expect(await ended).toBe(expected);
    expect(readdirSync(cache)).toEqual([]);
    expect(() => process.kill(processId(), 0)).toThrow('ESRCH');
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test('batched, it shows how many tokens agree and does not call that identical', async () => {
  const prompts = ['Why is snow white?', 'What do owls eat?', 'How old can a tree be?'];
  const { status, out } = await run(
    '--batched',
    '--json',
    '--tokens',
    '8',
    ...prompts.flatMap((text) => ['--prompt', text]),
  );
  const report = JSON.parse(out) as Report;
  expect(report.rows.map(({ identical }) => identical)).toEqual([null, null, null]);
  for (const { agreeing, tokens } of report.rows) expect(agreeing!.drawn).toBe(tokens.length - 1);
  expect(report).toMatchObject({ identical: null, ok: true });
  expect(status).toBe(0);
});

test('a flipped bit makes it end with status 1 and say where', async () => {
  const { status, out } = await run('--corrupt', '--tokens', '6', '--prompt', 'Why is snow white?');
  expect(out).toMatch(/^unexpected: prompt-1: the logits of token 1 differ$/m);
  expect(out).toMatch(/, identical: no$/m);
  expect(status).toBe(1);
});

test.each([
  [['--tokens', '1'], '--tokens: expected an integer in [2, 512], got "1"'],
  [['--block-size', 'x'], '--block-size: expected an integer in [16, 64], got "x"'],
  [['--prompt', ' '], '--prompt: expected a text that is not empty, got ""'],
  [['--nonsense'], 'flags: expected those of --help, got'],
  [['--model', '/nowhere.gguf'], '--model: expected a GGUF file, got /nowhere.gguf, which does not exist'],
])('%j ends with status 2', async (flags, message) => {
  const { status, err, out } = await run(...flags);
  expect(err).toContain(message);
  expect(out).toBe('');
  expect(status).toBe(2);
});
