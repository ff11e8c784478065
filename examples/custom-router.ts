/**
 * A router over plain HTTP and JSON: checks that two engines fit together and serves
 * `POST /v1/completions {"prompt": "…", "max_tokens": N}` on loopback.
 */
import { createServer, type IncomingMessage, type Server } from 'node:http';
import { checkCompatible, parseInstanceCard } from 'state-handoff';

export type Json = Record<string, unknown>;

/** One call of an engine (or of this router). @throws what the other side answered, with its code */
export async function ask(url: string, path: string, body: unknown = {}): Promise<Json> {
  const response = await fetch(url + path, { method: 'POST', body: JSON.stringify(body) });
  const answer = (await response.json()) as Json;
  if (!response.ok) throw new Error(`${path} failed because ${String(answer['reason'])} (${String(answer['code'])})`);
  return answer;
}

async function bodyOf(request: IncomingMessage): Promise<Json> {
  const chunks: Buffer[] = [];
  for await (const chunk of request as AsyncIterable<Buffer>) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString()) as Json;
}

/** A router that is not listening yet. @throws when the engines do not fit, naming each field and both sides */
export async function createRouter(prefill: string, decode: string): Promise<Server> {
  const cards = await Promise.all([prefill, decode].map(async (url) => parseInstanceCard(await ask(url, '/card'))));
  const differences = checkCompatible(cards[0]!, cards[1]!).map(
    ({ field, ours, theirs }) => `${field}: prefill has ${String(ours)}, decode has ${String(theirs)}`,
  );
  if (differences.length > 0) throw new Error(differences.join('\n'));

  let served = 0;
  /** One request through both hops. Whatever happens, what decode no longer reads is released at the source. */
  async function complete({ prompt: text, max_tokens: count }: Json): Promise<Json> {
    const [requestId, prompt] = [`r${(served += 1)}`, [...Buffer.from(String(text))]];
    const { ticket } = await ask(prefill, '/prefill', { requestId, prompt });
    try {
      return await ask(decode, '/decode', { requestId, prompt, count, ticket });
    } finally {
      const { refs } = await ask(decode, '/read-done');
      for (const ref of refs as unknown[]) await ask(prefill, '/release', { ref });
    }
  }
  return createServer((request, response) => {
    bodyOf(request)
      .then(complete)
      .then((answer) => response.end(JSON.stringify(answer)))
      .catch((error: Error) => response.writeHead(502).end(JSON.stringify({ reason: error.message })));
  });
}
