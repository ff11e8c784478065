/**
 * The embedding examples, as users run them: compiled, in processes of their own.
 */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { once } from 'node:events';
import { ToyEngine } from '../../examples/custom-engine.js';

const root = join(__dirname, '..', '..');
const compiled = (name: string): string => join(root, 'dist', 'examples', `${name}.js`);

interface Ready {
  readonly port: number;
  readonly workers: readonly number[];
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

async function eventually(what: string, isSo: () => boolean): Promise<void> {
  for (let i = 0; i < 500; i += 1) {
    if (isSo()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`never so: ${what}`);
}

async function withRouter(body: (ready: Ready, router: ChildProcess) => Promise<void>): Promise<void> {
  const router = spawn(process.execPath, [compiled('custom-router-demo')], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [line] = (await once(router.stdout, 'data')) as [Buffer];
  const ready = JSON.parse(line.toString()) as Ready;
  try {
    await body(ready, router);
  } finally {
    router.kill('SIGKILL');
    await eventually('the engines ended with their router', () => !ready.workers.some(isAlive));
  }
}

async function complete(
  port: number,
  prompt: string,
  count?: number | null,
): Promise<{ status: number; answer: Record<string, unknown> }> {
  const response = await fetch(`http://127.0.0.1:${port}/v1/completions`, {
    method: 'POST',
    body: JSON.stringify({ prompt, max_tokens: count }),
  });
  return { status: response.status, answer: (await response.json()) as Record<string, unknown> };
}

test('the custom engine has under 100 lines, and the router under 60', () => {
  const lines = (name: string): number =>
    readFileSync(join(root, 'examples', name), 'utf8')
      .trimEnd()
      .split('\n').length;
  expect(lines('custom-engine.ts')).toBeLessThan(100);
  expect(lines('custom-router.ts')).toBeLessThan(60);
});

test('the custom engine hands over in one process and agrees with an engine that did it alone', () => {
  const { status, stdout } = spawnSync(process.execPath, [compiled('custom-engine-demo')], {
    encoding: 'utf8',
    timeout: 60_000,
  });
  expect(stdout).toContain('identical: yes, pins left: 0');
  expect(status).toBe(0);
});

test('the router drives two engine processes, serves several requests at once, and releases every source', async () => {
  await withRouter(async ({ port }) => {
    const prompts = ['hello router', 'hello there', 'a', 'exactly8'];
    const answers = await Promise.all(prompts.map((prompt) => complete(port, prompt, 8)));
    for (const { status, answer } of answers) {
      expect(status).toBe(200);
      expect(answer['tokens']).toHaveLength(8);
    }
    // The same prompt again: the decode side may have it cached; the answer is the same.
    const again = await complete(port, 'hello router', 8);
    expect(again.answer).toEqual(answers[0]?.answer);
  });
});

test('a request without a limit ends at the longest sequence, and the engines live', async () => {
  await withRouter(async ({ port }) => {
    for (const count of [undefined, null]) {
      const { status, answer } = await complete(port, 'no limit', count);
      expect(status).toBe(200);
      expect(answer['tokens']).toHaveLength(64 - 'no limit'.length);
    }
    expect(await complete(port, 'too few', -1)).toMatchObject({ status: 502 });
    expect((await complete(port, 'after', 0)).answer['tokens']).toHaveLength(0);
    expect((await complete(port, 'after', 1)).answer['tokens']).toHaveLength(1);
  });
});

test('a prompt that cannot be pinned, or is none, leaves no block behind', async () => {
  const engine = new ToyEngine();
  await engine.handoff.setupKvTransfer('prefill');
  const usable = engine.blocks.poolSize - 1;
  engine.prefill('twice', [1, 2, 3, 4, 5]);
  expect(() => engine.prefill('twice', [1, 2, 3, 4, 5])).toThrow(
    expect.objectContaining({ code: 'DUPLICATE_REQUEST' }),
  );
  expect(() => engine.prefill('none', [])).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID' }));
  expect(engine.blocks.freeCount).toBe(usable - 2);
  expect(engine.handoff.releaseHandoffBlocks('twice')).toBe(true);
  expect(engine.blocks.freeCount).toBe(usable);
  await engine.handoff.close();
});

test('engines of different models are refused before anything moves, and both sides are named', () => {
  const { status, stderr } = spawnSync(process.execPath, [compiled('custom-router-demo'), 'x'], {
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...process.env, TOY_DECODE_MODEL: 'toy-2' },
  });
  expect(status).toBe(1);
  expect(stderr).toContain('model: prefill has toy-1, decode has toy-2');
});

test('a killed prefill engine gives the client a clear error, and the router lives', async () => {
  await withRouter(async ({ port, workers }) => {
    expect(await complete(port, 'before', 2)).toMatchObject({ status: 200 });
    process.kill(workers[0] as number, 'SIGKILL');
    await eventually('prefill is dead', () => !isAlive(workers[0] as number));
    const { status, answer } = await complete(port, 'after', 2);
    expect(status).toBe(502);
    expect(answer['reason']).toMatch(/failed|fetch/);
  });
});
