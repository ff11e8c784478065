/**
 * The toy engine behind plain HTTP and JSON, on loopback: `node custom-engine-server.js prefill|decode [MODEL]`. Prints its
 * port as one JSON line and ends when its standard input does, so that it never outlives whoever started it.
 */
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { decodeTicket, encodeTicket, isHandoffError, type HandoffRef } from 'state-handoff';
import { ToyEngine } from './custom-engine.js';

type Json = Record<string, unknown>;

async function bodyOf(request: IncomingMessage, bytesMax = 1 << 20): Promise<Json> {
  let text = '';
  for await (const chunk of request as AsyncIterable<Buffer>) {
    text += chunk.toString();
    if (text.length > bytesMax) throw new Error(`the body is longer than ${bytesMax} bytes`);
  }
  return text === '' ? {} : (JSON.parse(text) as Json);
}

/** The routes of one engine. What a route returns is the answer; what it throws is an error with a reason. */
function routes(engine: ToyEngine, readDone: HandoffRef[]): Record<string, (body: Json) => unknown> {
  return {
    '/card': () => engine.handoff.describeInstance(),
    '/load': () => engine.handoff.load(),
    '/prefill': ({ requestId, prompt }) => ({
      ticket: encodeTicket(engine.prefill(requestId as string, prompt as number[])),
    }),
    '/decode': async ({ requestId, prompt, count, ticket }) => {
      const { kvMeta, blockIds } = decodeTicket(ticket as string);
      const params = { num_tokens_to_generate: count as number };
      const done = engine.handoff.addRequestWithKvHandoff(
        requestId as string,
        prompt as number[],
        params,
        kvMeta,
        blockIds,
      );
      return { tokens: (await done).generatedTokens };
    },
    // What decode does not read any more, for the router to release.
    '/read-done': () => ({ refs: readDone.splice(0) }),
    '/release': ({ ref }) => engine.handoff.releaseHandoffBlocks(ref as HandoffRef),
  };
}

async function main(role: string, model: string): Promise<void> {
  if (role !== 'prefill' && role !== 'decode') throw new Error(`role: expected prefill or decode, got ${role}`);
  const engine = new ToyEngine(model);
  const readDone: HandoffRef[] = [];
  engine.handoff.on('kvReadDone', ({ source }) => void (source === null ? 0 : readDone.push(source)));
  await engine.handoff.setupKvTransfer(role);
  setInterval(() => (role === 'decode' ? engine.step() : engine.handoff.pollPendingKvPushes()), 1);
  const table = routes(engine, readDone);
  const server = createServer((request, response) => {
    const answer = async (): Promise<unknown> => {
      const route = table[request.url ?? ''];
      if (route === undefined)
        throw new Error(`path: expected one of ${Object.keys(table).join(', ')}, got ${request.url}`);
      return route(await bodyOf(request));
    };
    answer().then(
      (value) => response.end(JSON.stringify(value)),
      (error: Error) => {
        response.statusCode = 400;
        response.end(
          JSON.stringify({ code: isHandoffError(error) ? error.code : 'BAD_REQUEST', reason: error.message }),
        );
      },
    );
  });
  server.listen(0, '127.0.0.1', () => {
    process.stdout.write(`${JSON.stringify({ port: (server.address() as AddressInfo).port })}\n`);
  });
  process.stdin.resume().on('end', () => process.exit(0));
}

void main(process.argv[2] ?? '', process.argv[3] ?? 'toy-1');
