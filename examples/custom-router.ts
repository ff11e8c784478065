/**
 * A small router over plain HTTP and JSON: starts a prefill and a decode engine, checks that they fit, and
 * serves `POST /v1/completions {"prompt": "…", "max_tokens": N}` on loopback. With a prompt as argument it asks itself once.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { checkCompatible, parseInstanceCard } from 'state-handoff';

type Ask = (path: string, body?: unknown) => Promise<Record<string, unknown>>;
type Worker = { ask: Ask; process: ChildProcess };

async function post(port: number, path: string, body: unknown): Promise<Record<string, unknown>> {
  const response = await fetch(`http://127.0.0.1:${port}${path}`, { method: 'POST', body: JSON.stringify(body) });
  const answer = (await response.json()) as Record<string, unknown>;
  if (!response.ok) throw new Error(`${path} failed because ${String(answer['reason'])} (${String(answer['code'])})`);
  return answer;
}

async function start(role: 'prefill' | 'decode', model: string): Promise<Worker> {
  const script = join(__dirname, 'custom-engine-server.js');
  const worker = spawn(process.execPath, [script, role, model], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = (await once(worker.stdout, 'data')) as [Buffer];
  const { port } = JSON.parse(line.toString()) as { port: number };
  return { process: worker, ask: (path, body = {}) => post(port, path, body) };
}

/** One request through both hops. Whatever happens, what decode no longer reads is released at the source. */
async function complete(
  prefill: Worker,
  decode: Worker,
  requestId: string,
  text: string,
  count: number,
): Promise<string[]> {
  const prompt = [...Buffer.from(text)];
  const { ticket } = await prefill.ask('/prefill', { requestId, prompt });
  try {
    const { tokens } = await decode.ask('/decode', { requestId, prompt, count, ticket });
    return (tokens as number[]).map(String);
  } finally {
    const refs = (await decode.ask('/read-done')) as unknown as unknown[];
    for (const ref of refs) await prefill.ask('/release', { ref });
  }
}

async function main(): Promise<void> {
  const [model, otherModel] = [process.env['TOY_MODEL'] ?? 'toy-1', process.env['TOY_DECODE_MODEL']];
  const [prefill, decode] = await Promise.all([start('prefill', model), start('decode', otherModel ?? model)]);
  const cards = await Promise.all([prefill, decode].map(async ({ ask }) => parseInstanceCard(await ask('/card'))));
  const differences = checkCompatible(cards[0]!, cards[1]!);
  if (differences.length > 0) {
    for (const { field, ours, theirs } of differences)
      console.error(`${field}: prefill has ${String(ours)}, decode has ${String(theirs)}`);
    process.exit(1);
  }
  let served = 0;
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const { prompt, max_tokens: count } = JSON.parse(Buffer.concat(chunks).toString()) as {
        prompt: string;
        max_tokens: number;
      };
      complete(prefill, decode, `r${(served += 1)}`, prompt, count).then(
        (tokens) => response.end(JSON.stringify({ tokens })),
        (error: Error) => response.writeHead(502).end(JSON.stringify({ error: error.message })),
      );
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  console.log(JSON.stringify({ port, workers: [prefill.process.pid, decode.process.pid] }));
  const text = process.argv[2];
  if (text === undefined) return;
  console.log(JSON.stringify(await post(port, '/v1/completions', { prompt: text, max_tokens: 8 })));
  console.log(JSON.stringify(await prefill.ask('/load')));
  server.close();
  for (const { process: worker } of [prefill, decode]) worker.stdin?.end();
}

void main();
