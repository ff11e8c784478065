/**
 * Goal: block hashes are those of spec 3 in every process, by either engine of SHA-256, on or off the event loop.
 * Method: the reference's cases with whole digests; `node:crypto` by hand as oracle; the engine that is not there made
 * absent through the addon's own answer.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { promisify } from 'node:util';
import {
  asyncTokensMin,
  computeBlockDigests,
  computeBlockHashes,
  computeBlockHashesAsync,
  parentHashes,
  type BlockHashOptions,
  type Tokens,
} from '../../lib/memory/block-hash.js';
import { addon } from '../../lib/native/addon.js';
import { codeOf } from '../support/pool-values.js';
import { vectorCases } from '../support/vector-cases.js';

/** Spec 3 by hand. */
function oracle(tokens: readonly bigint[], blockSize: number, salt: string | null = null): bigint[] {
  let parent: Buffer = Buffer.alloc(32);
  if (salt !== null) parent = createHash('sha256').update(`megatron-prefix-cache-salt-v1\0${salt}`).digest();
  const hashes: bigint[] = [];
  for (let from = 0; from + blockSize <= tokens.length; from += blockSize) {
    const block = BigInt64Array.from(tokens.slice(from, from + blockSize));
    parent = createHash('sha256').update(parent).update(new Uint8Array(block.buffer)).digest();
    hashes.push((parent.readBigUInt64LE(0) % (2n ** 63n - 1n)) + 1n);
  }
  return hashes;
}

const counted = (count: number): Int32Array => Int32Array.from({ length: count }, (_, i) => (i * 7919) % 130_000);

describe.each(['openssl', 'none'] as const)('with backend %s', (backend) => {
  beforeEach(() => {
    expect(addon().blockHashBackend()).toBe('openssl');
    jest.spyOn(addon(), 'blockHashBackend').mockReturnValue(backend);
    if (backend === 'none') {
      for (const name of ['blockHashes', 'blockHashesAsync'] as const) {
        jest.spyOn(addon(), name).mockImplementation(() => {
          throw new Error('native hashing was to be absent');
        });
      }
    }
  });
  afterEach(() => jest.restoreAllMocks());

  interface HashCase {
    readonly name: string;
    readonly block_size: number;
    readonly cache_salt: string | null;
    readonly tokens: readonly number[];
    readonly parent_hashes: readonly string[];
    readonly blocks: readonly { readonly digest_hex: string; readonly raw_u64: string; readonly hash: string }[];
  }

  test.each(vectorCases<HashCase>('block_hashes'))('reference: $name', (each) => {
    const options = { salt: each.cache_salt };
    const expected = BigInt64Array.from(each.blocks, ({ hash }) => BigInt(hash));
    for (const tokens of [each.tokens, BigInt64Array.from(each.tokens, BigInt)]) {
      expect(computeBlockHashes(tokens, each.block_size, options)).toEqual(expected);
      const digests = computeBlockDigests(tokens, each.block_size, options);
      expect(digests.map((digest) => Buffer.from(digest).toString('hex'))).toEqual(
        each.blocks.map((block) => block.digest_hex),
      );
      expect(digests.map((digest) => String(Buffer.from(digest).readBigUInt64LE(0)))).toEqual(
        each.blocks.map((b) => b.raw_u64),
      );
    }
    expect([...parentHashes(expected)].map(String)).toEqual(each.parent_hashes);
  });

  test.each([1, 3, 256, 511, 512, 513, 1500])('blocks of %i tokens, three kinds of list', (blockSize) => {
    const tokens = counted(4000);
    const expected = BigInt64Array.from(oracle(Array.from(tokens, BigInt), blockSize));
    expect(computeBlockHashes(tokens, blockSize)).toEqual(expected);
    expect(computeBlockHashes(BigInt64Array.from(tokens, BigInt), blockSize)).toEqual(expected);
    expect(computeBlockHashes([...tokens], blockSize)).toEqual(expected);
  });

  test('the ends of what a token can be', () => {
    const powers = [31, 32, 50, 51, 52].flatMap((bits) => [2 ** bits - 1, 2 ** bits, 2 ** bits + 1]);
    const edges = [0, -0, 1, 2 ** 53 - 1, ...powers].flatMap((token) => [token, -token]);
    for (const blockSize of [1, 8, 19, 38]) {
      expect([...computeBlockHashes(edges, blockSize)]).toEqual(oracle(edges.map(BigInt), blockSize));
    }
    const wide = [2n ** 63n - 1n, -(2n ** 63n), -1n, 2n ** 62n];
    expect([...computeBlockHashes(BigInt64Array.from(wide), 4)]).toEqual(oracle(wide, 4));
  });

  test.each([null, '', 'media-key-abc', 'π', '\0'])('salt %j', (salt) => {
    expect([...computeBlockHashes([1, 2, 3, 4], 2, { salt })]).toEqual(oracle([1n, 2n, 3n, 4n], 2, salt));
  });

  test('no salt and the empty salt differ', () => {
    expect(computeBlockHashes([1, 2], 2, {})).toEqual(computeBlockHashes([1, 2], 2, { salt: null }));
    expect(computeBlockHashes([1, 2], 2, {})).not.toEqual(computeBlockHashes([1, 2], 2, { salt: '' }));
  });

  test('a plain list of many parts is hashed as one', () => {
    const tokens = counted(40_000);
    for (const blockSize of [7, 256, 20_000]) {
      expect(computeBlockHashes([...tokens], blockSize)).toEqual(computeBlockHashes(tokens, blockSize));
    }
  });

  test('a view into a larger buffer is hashed as it stands', () => {
    const tokens = counted(600);
    expect(computeBlockHashes(tokens.subarray(3, 515), 256)).toEqual(computeBlockHashes(tokens.slice(3, 515), 256));
  });

  test.each([asyncTokensMin - 1, asyncTokensMin, asyncTokensMin * 3 + 17])(
    'asynchronously: %i tokens',
    async (count) => {
      const tokens = counted(count);
      const expected = computeBlockHashes(tokens, 256, { salt: 's' });
      const lists: Tokens[] = [tokens, [...tokens], BigInt64Array.from(tokens, BigInt)];
      const answers = lists.map((list) => computeBlockHashesAsync(list, 256, { salt: 's' }));
      tokens.fill(0); // what was given is the caller's again
      expect(await Promise.all(answers)).toEqual([expected, expected, expected]);
    },
  );

  test('what is no safe integer is found in every place of a vector', () => {
    for (const bad of [0.5, -0.5, 1e-300, 2 ** 51 + 0.5, 2 ** 53, -(2 ** 53), 1e300, NaN, Infinity, -Infinity]) {
      for (let at = 0; at < 19; at++) {
        const tokens = Array.from({ length: 19 }, (_, i) => (i === at ? bad : i));
        expect(() => computeBlockHashes(tokens, 19)).toThrow(`tokens[${at}]: expected a safe integer, got `);
      }
    }
  });

  const wrong: readonly (readonly [string, string, readonly unknown[]])[] = [
    ['a string', 'tokens: expected an Int32Array, a BigInt64Array or an array of numbers, got "1"', ['1', 4]],
    [
      'another array',
      'tokens: expected an Int32Array, a BigInt64Array or an array of numbers',
      [new Uint32Array(4), 4],
    ],
    ['null', 'tokens: expected an Int32Array, a BigInt64Array or an array of numbers, got null', [null, 4]],
    ['no block size', 'blockSize: expected an integer in [1, 1073741824], got undefined', [[1]]],
    ['block size 0', 'blockSize: expected an integer in [1, 1073741824], got 0', [[1], 0]],
    ['block size 1.5', 'blockSize: expected an integer in [1, 1073741824], got 1.5', [[1], 1.5]],
    ['a fraction', 'tokens[2]: expected a safe integer, got 0.5', [[1, 2, 0.5, 4], 2]],
    ['a large number', 'tokens[1]: expected a safe integer, got 9007199254740992', [[1, 2 ** 53], 2]],
    ['NaN', 'tokens[0]: expected a safe integer, got NaN', [[Number.NaN, 1], 2]],
    ['infinity', 'tokens[0]: expected a safe integer, got Infinity', [[Infinity, 1], 2]],
    ['text in a list', 'tokens[1]: expected a safe integer, got "2"', [[1, '2'], 2]],
    ['a bigint in a list', 'tokens[1]: expected a safe integer, got 2n', [[1, 2n], 2]],
    ['a hole', 'tokens[1]: expected a safe integer, got undefined', [Object.assign([1], { length: 2 }), 2]],
    ['a bad tail', 'tokens[4]: expected a safe integer, got 0.5', [[1, 2, 3, 4, 0.5], 4]],
    ['a bad tail of another kind', 'tokens[4]: expected a safe integer, got null', [[1, 2, 3, 4, null], 4]],
    ['a salt that is no string', 'options.salt: expected a string or null, got 5', [[1], 1, { salt: 5 }]],
    ['a lone surrogate', 'options.salt: expected text without lone surrogates', [[1], 1, { salt: '\ud800' }]],
  ];

  test.each(wrong)('refuses %s', async (_, message, [tokens, blockSize, options]) => {
    const args = [tokens as Tokens, blockSize as number, options as BlockHashOptions] as const;
    expect(codeOf(() => computeBlockHashes(...args))).toBe('ARGUMENT_INVALID');
    expect(() => computeBlockHashes(...args)).toThrow(message);
    await expect(computeBlockHashesAsync(...args)).rejects.toThrow(message);
    await expect(computeBlockHashesAsync(...args)).rejects.toMatchObject({ code: 'ARGUMENT_INVALID' });
  });

  test('a bad token far into a long list is named by its index, on and off the event loop', async () => {
    const tokens: number[] = [...counted(60_000)];
    tokens[50_001] = 1.5;
    const message = 'tokens[50001]: expected a safe integer, got 1.5';
    expect(() => computeBlockHashes(tokens, 256)).toThrow(message);
    await expect(computeBlockHashesAsync(tokens, 256)).rejects.toThrow(message);
  });

  test('a detached array is no empty prompt', async () => {
    const tokens = counted(8);
    structuredClone(tokens.buffer, { transfer: [tokens.buffer as ArrayBuffer] });
    const message = 'tokens: expected an array in memory, got one whose buffer was detached';
    expect(() => computeBlockHashes(tokens, 4)).toThrow(message);
    await expect(computeBlockHashesAsync(tokens, 4)).rejects.toThrow(message);
    expect(computeBlockHashes(new Int32Array(0), 4)).toEqual(new BigInt64Array(0));
  });
});

describe('off the event loop', () => {
  test('timers go on while long prompts are hashed, and no job is left', async () => {
    const before = addon().memoryCounters().hashJobs;
    let turns = 0;
    const timer = setInterval(() => (turns += 1), 1);
    const prompts = Array.from({ length: 8 }, (_, i) => counted(1_000_000 + i));
    const answers = prompts.map((tokens) => computeBlockHashesAsync(tokens, 256));
    expect(addon().memoryCounters().hashJobs).toBe(before + prompts.length);
    const hashes = await Promise.all(answers);
    clearInterval(timer);
    expect(hashes.map((each) => each.length)).toEqual(prompts.map((each) => Math.floor(each.length / 256)));
    expect(hashes[0]).toEqual(computeBlockHashes(prompts[0]!, 256));
    expect(turns).toBeGreaterThan(0);
    expect(addon().memoryCounters().hashJobs).toBe(before);
  });
});

test('golden: two processes agree with what is written here', async () => {
  const script = `
    const { computeBlockHashes } = require(process.argv[1]);
    const tokens = Int32Array.from({ length: 1024 }, (_, i) => (i * 7919) % 130000);
    console.log(JSON.stringify([...computeBlockHashes(tokens, 256)].map(String)));
  `;
  const module = join(__dirname, '..', '..', 'dist', 'lib', 'memory', 'block-hash.js');
  const run = async (): Promise<string[]> =>
    JSON.parse((await promisify(execFile)(process.execPath, ['-e', script, module])).stdout) as string[];
  const golden = ['4477486448720762867', '3664707016513737918', '2213928034948161204', '2673888286978194618'];
  expect(await Promise.all([run(), run()])).toEqual([golden, golden]);
  expect([...computeBlockHashes(counted(1024), 256)].map(String)).toEqual(golden);
});
