/**
 * How fast block hashes are: a prompt of 128k tokens against OpenSSL's own SHA-256 over the same chain of messages, which
 * lie ready in memory, on one thread. Measured in turns, so that both see the same machine.
 */
import { availableParallelism, cpus } from 'node:os';
import { cryptoBlockHashes } from '../../lib/memory/block-hash-crypto.js';
import { computeBlockHashes, computeBlockHashesAsync, type Tokens } from '../../lib/memory/block-hash.js';
import { addon } from '../../lib/native/addon.js';
import type { BenchRow } from '../support/bench-row.js';
import { median } from '../support/median.js';

const tokenCount = 131_072;
const digestBytes = 32;
const rounds = 41;

/** The messages of a prompt: room for a digest, then the tokens as 64-bit integers. */
function messagesOf(tokens: Int32Array, blockSize: number): Uint8Array {
  const messageBytes = digestBytes + blockSize * 8;
  const messages = new Uint8Array(Math.floor(tokens.length / blockSize) * messageBytes);
  const view = new DataView(messages.buffer);
  for (let i = 0; i < tokens.length; i++) {
    const block = Math.floor(i / blockSize);
    view.setBigInt64(block * messageBytes + digestBytes + (i % blockSize) * 8, BigInt(tokens[i]!), true);
  }
  return messages;
}

function millisecondsOf(call: () => void): number {
  const start = performance.now();
  call();
  return performance.now() - start;
}

/** Median times of several calls, taken in turns. */
function inTurns(calls: readonly (() => void)[]): number[] {
  const times = calls.map(() => [] as number[]);
  for (let round = -5; round < rounds; round++) {
    calls.forEach((call, which) => {
      const time = millisecondsOf(call);
      if (round >= 0) times[which]!.push(time);
    });
  }
  return times.map(median);
}

/** Hashes come out of the prepared messages as they do of the tokens; else the comparison would mean nothing. */
function checkMessages(messages: Uint8Array, tokens: Int32Array, blockSize: number): void {
  const messageBytes = digestBytes + blockSize * 8;
  addon().blockHashMessages(messages, messageBytes);
  const parentOfSecond = Buffer.from(messages.subarray(messageBytes, messageBytes + 8)).readBigUInt64LE(0);
  const [first] = computeBlockHashes(tokens, blockSize);
  if ((parentOfSecond % 0x7fffffffffffffffn) + 1n !== first)
    throw new Error('the messages are not those of the tokens');
}

function against(tokens: Tokens, what: string, ints: Int32Array, blockSize: number): BenchRow {
  const messages = messagesOf(ints, blockSize);
  checkMessages(messages, ints, blockSize);
  const [ours, openssl] = inTurns([
    () => void computeBlockHashes(tokens, blockSize),
    () => addon().blockHashMessages(messages, digestBytes + blockSize * 8),
  ]) as [number, number];
  const ratio = openssl / ours;
  return {
    name: `hash ${tokenCount} tokens of ${what}, blocks of ${blockSize}`,
    value: ours,
    unit: 'ms',
    against: `OpenSSL alone: ${openssl.toFixed(3)} ms`,
    ratio,
    target: blockSize === 256 ? '≥ 0.90' : null,
    ok: blockSize !== 256 || ratio >= 0.9,
  };
}

function listAgainstTyped(ints: Int32Array): BenchRow {
  const list = Array.from(ints);
  const [ofList, ofTyped] = inTurns([
    () => void computeBlockHashes(list, 256),
    () => void computeBlockHashes(ints, 256),
  ]) as [number, number];
  return {
    name: `hash ${tokenCount} tokens of a plain list, blocks of 256`,
    value: ofList,
    unit: 'ms',
    against: `Int32Array: ${ofTyped.toFixed(3)} ms`,
    ratio: ofList / ofTyped,
    target: '≤ 2',
    ok: ofList / ofTyped <= 2,
  };
}

async function severalAtOnce(ints: Int32Array): Promise<BenchRow> {
  const prompts = Array.from({ length: 8 }, () => ints.slice());
  const one = median(
    Array.from({ length: 9 }, () => millisecondsOf(() => prompts.forEach((p) => computeBlockHashes(p, 256)))),
  );
  const times: number[] = [];
  for (let round = 0; round < 9; round++) {
    const start = performance.now();
    await Promise.all(prompts.map((prompt) => computeBlockHashesAsync(prompt, 256)));
    times.push(performance.now() - start);
  }
  const together = median(times);
  return {
    name: `hash 8 prompts of ${tokenCount} tokens at once`,
    value: together,
    unit: 'ms',
    against: `one after another: ${one.toFixed(2)} ms`,
    ratio: one / together,
    target: null,
    ok: true,
  };
}

function cryptoFallback(ints: Int32Array): BenchRow {
  const hashes = new BigInt64Array(tokenCount / 256);
  const [fallback, native] = inTurns([
    () => void cryptoBlockHashes(ints, 256, new Uint8Array(32), hashes),
    () => void computeBlockHashes(ints, 256),
  ]) as [number, number];
  return {
    name: `hash ${tokenCount} tokens by node:crypto, blocks of 256`,
    value: fallback,
    unit: 'ms',
    against: `native: ${native.toFixed(3)} ms`,
    ratio: fallback / native,
    target: null,
    ok: true,
  };
}

export async function run(): Promise<BenchRow[]> {
  const ints = Int32Array.from({ length: tokenCount }, (_, i) => (i * 7919) % 130_000);
  return [
    against(ints, 'an Int32Array', ints, 256),
    against(BigInt64Array.from(ints, BigInt), 'a BigInt64Array', ints, 256),
    against(ints, 'an Int32Array', ints, 16),
    listAgainstTyped(ints),
    await severalAtOnce(ints),
    cryptoFallback(ints),
  ];
}

async function main(): Promise<void> {
  console.log(
    `${cpus()[0]?.model ?? 'unknown processor'}, ${availableParallelism()} processors, node ${process.version}`,
  );
  console.table(await run());
}

if (require.main === module) void main();
