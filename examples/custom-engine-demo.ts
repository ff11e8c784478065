/** Two toy engines in one process: one prefills, the other decodes. Others compute everything alone, for comparison. */
import { decodeTicket, encodeTicket, type Finished } from 'state-handoff';
import { ToyEngine } from './custom-engine.js';

const prompt = Array.from('hand me over', (letter) => letter.charCodeAt(0));

async function handOver(prefill: ToyEngine, decode: ToyEngine, count: number): Promise<Finished> {
  await prefill.handoff.setupKvTransfer('prefill');
  await decode.handoff.setupKvTransfer('decode');
  decode.handoff.on('kvReadDone', ({ source }) => {
    if (source !== null) prefill.handoff.releaseHandoffBlocks(source);
  });
  const text = encodeTicket(prefill.prefill('r1', prompt)); // all that travels beside the memory itself
  const { kvMeta, blockIds } = decodeTicket(text);
  const params = { num_tokens_to_generate: count };
  const done = decode.handoff.addRequestWithKvHandoff('r1', prompt, params, kvMeta, blockIds);
  const steps = setInterval(() => decode.step(), 0);
  return done.finally(() => clearInterval(steps));
}

/** What one engine generates that computed prompt and answer itself. */
function generateAlone(count: number): number[] {
  const engine = new ToyEngine();
  const table = [...engine.blocks.allocate(8)!];
  const tokens = [...prompt];
  for (let at = 0; tokens.length < prompt.length + count; at += 1) {
    const next = engine.forward(table, at, tokens[at]!);
    if (at === tokens.length - 1) tokens.push(next);
  }
  return tokens.slice(prompt.length);
}

async function main(): Promise<void> {
  const [first, second] = [new ToyEngine(), new ToyEngine()];
  const handed = await handOver(first, second, 10);
  const alone = generateAlone(10);
  const same = handed.generatedTokens.join() === alone.join();
  process.stdout.write(`after a handoff: ${handed.generatedTokens.join(' ')}\n`);
  process.stdout.write(`alone:           ${alone.join(' ')}\n`);
  process.stdout.write(`identical: ${same ? 'yes' : 'no'}, pins left: ${first.handoff.inspect().pins.length}\n`);
  process.exitCode = same ? 0 : 1;
  for (const engine of [first, second]) await engine.handoff.close();
}

void main();
