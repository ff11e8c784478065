/**
 * The custom router with two engine processes of its own: prints its port, and serves until it is killed; the engines end
 * with it. With a prompt as argument it asks itself once and ends.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { ask, createRouter } from './custom-router.js';

async function startEngine(role: 'prefill' | 'decode', model: string): Promise<{ url: string; worker: ChildProcess }> {
  const script = join(__dirname, 'custom-engine-server.js');
  const worker = spawn(process.execPath, [script, role, model], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = (await once(worker.stdout, 'data')) as [Buffer];
  return { worker, url: `http://127.0.0.1:${(JSON.parse(line.toString()) as { port: number }).port}` };
}

async function main(text: string | undefined): Promise<void> {
  const model = process.env['TOY_MODEL'] ?? 'toy-1';
  const engines = await Promise.all([
    startEngine('prefill', model),
    startEngine('decode', process.env['TOY_DECODE_MODEL'] ?? model),
  ]);
  const [prefill, decode] = engines;
  const router = await createRouter(prefill.url, decode.url);
  await once(router.listen(0, '127.0.0.1'), 'listening');
  const { port } = router.address() as AddressInfo;
  process.stdout.write(`${JSON.stringify({ port, workers: engines.map(({ worker }) => worker.pid) })}\n`);
  if (text === undefined) return;
  const answer = await ask(`http://127.0.0.1:${port}`, '/v1/completions', { prompt: text, max_tokens: 8 });
  process.stdout.write(`${JSON.stringify(answer)}\n${JSON.stringify(await ask(prefill.url, '/load'))}\n`);
  router.close();
  for (const { worker } of engines) worker.stdin?.end();
}

main(process.argv[2]).catch((error: Error) => {
  process.stderr.write(`${error.message}\n`);
  process.exit(1);
});
