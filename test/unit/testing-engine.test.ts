/**
 * The test engine: it must find every kind of wrong byte, be deterministic over ranks, and honour its own fences.
 *
 * A handoff by hand (no SDK) moves state between engines of different layouts, so that what the simulation relies on is
 * known to be right before it judges anything.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { PrefilledRequest } from '../../lib/engine-context.js';
import { modelBlockHashes } from '../../lib/testing/model-block-hash.js';
import { SeededRandom } from '../../lib/testing/seeded-random.js';
import { SimulatedClock } from '../../lib/testing/simulated-clock.js';
import { tokenAt, type EngineEnd } from '../../lib/testing/test-batch.js';
import { TestEngine, type PrefillRun, type TestEngineOptions } from '../../lib/testing/test-engine.js';
import {
  kvAxesDefault,
  promptMarks,
  rankPositions,
  smallShape,
  TestMemory,
  wholeModel,
  type TestModelShape,
} from '../../lib/testing/test-memory.js';

const hybrid: TestModelShape = {
  ...smallShape,
  ssm: { layers: 2, dims: { nheads: 4, headdim: 2, dState: 2, ngroups: 2, dConv: 3 } },
};
const prompt = Int32Array.from({ length: 10 }, (_, i) => 100 + i);

function engine(options: Partial<TestEngineOptions> = {}): TestEngine & { readonly clock: SimulatedClock } {
  const clock = options.clock ?? new SimulatedClock();
  return Object.assign(new TestEngine({ role: 'decode', clock, ...options }), { clock });
}

/** What the SDK would give a decode engine, with the state copied in by hand. */
function handOver(
  decode: TestEngine,
  text: Int32Array,
  params: PrefilledRequest['samplingParams'] = {},
  attemptId = 1,
): PrefilledRequest {
  const { blockSize } = decode;
  const promptBlocks = Math.ceil(text.length / blockSize);
  const continuation = Math.ceil((text.length + 1) / blockSize) - promptBlocks;
  const fresh = decode.blocks.allocate(promptBlocks + continuation)!;
  const marks = promptMarks(text, blockSize);
  const slot = decode.slots?.allocate() ?? null;
  fresh.subarray(0, promptBlocks).forEach((block, index) => decode.memory.fillBlock(block, marks[index]!));
  if (slot !== null) decode.memory.fillSlot(slot, marks.at(-1)!);
  return {
    attemptId,
    requestId: `r${attemptId}`,
    prompt: text,
    samplingParams: params,
    resumeTokens: [tokenAt(text, null, blockSize, 0)],
    resumeLogProbs: null,
    blocks: fresh.slice(0, promptBlocks),
    continuationBlocks: fresh.slice(promptBlocks),
    slot,
    cachedPrefixBlocks: 0,
    blockHashes: modelBlockHashes(text, blockSize),
    landed: null,
  };
}

function admit(decode: TestEngine, request: PrefilledRequest): void {
  decode.isScheduling = true;
  decode.admitPrefilledDecode(request);
  decode.isScheduling = false;
}

function run(decode: TestEngine, steps = 100): EngineEnd[] {
  const ends: EngineEnd[] = [];
  decode.onEnd = (end) => ends.push(end);
  for (let i = 0; i < steps; i++) decode.step();
  return ends;
}

describe('modelBlockHashes', () => {
  const { cases } = JSON.parse(readFileSync(join(__dirname, '..', 'vectors', 'block_hashes.json'), 'utf8')) as {
    cases: {
      name: string;
      block_size: number;
      cache_salt: string | null;
      tokens: number[];
      blocks: { hash: string }[];
    }[];
  };
  test.each(cases.map((each) => [each.name, each] as const))('%s', (_name, each) => {
    expect([...modelBlockHashes(each.tokens, each.block_size, each.cache_salt)].map(String)).toEqual(
      each.blocks.map(({ hash }) => hash),
    );
  });
});

describe('TestMemory', () => {
  test.each([1, 2, 4] as const)(
    'finds any single wrong byte of a block or slot (%i bytes an element)',
    (elementBytes) => {
      const memory = new TestMemory({ ...hybrid, elementBytes }, wholeModel, 5, 3);
      memory.fillBlock(2, 77);
      memory.fillSlot(1, 78);
      expect(memory.blockFault(2, 77)).toBeNull();
      expect(memory.slotFault(1, 78)).toBeNull();
      let blockBytes = 0;
      let slotBytes = 0;
      for (const [region, { buffer }] of memory.regions.entries()) {
        const bytes = new Uint8Array(buffer);
        for (let at = 0; at < bytes.length; at++) {
          const before = bytes[at]!;
          bytes[at] = before ^ 0x10;
          const isSlot = memory.isSlotRegion(region);
          const mine = memory.idAt(region, at) === (isSlot ? 1 : 2);
          if (mine && isSlot) slotBytes++;
          if (mine && !isSlot) blockBytes++;
          expect(memory.blockFault(2, 77) !== null).toBe(!isSlot && mine);
          expect(memory.slotFault(1, 78) !== null).toBe(isSlot && mine);
          bytes[at] = before;
        }
      }
      expect(blockBytes).toBe(2 * 2 * 4 * 4 * elementBytes);
      expect(slotBytes).toBe(2 * (16 * 3 + 4 * 4) * elementBytes);
    },
  );

  test('a whole instance holds every element once, and ranks of any layout agree about each', () => {
    for (const [tpSize, ppSize] of [
      [1, 1],
      [2, 1],
      [1, 2],
      [2, 2],
    ] as const) {
      const values = new Map<number, number>();
      for (const position of rankPositions(tpSize, ppSize)) {
        const memory = new TestMemory(hybrid, position, 3, 2);
        memory.fillBlock(1, 5);
        memory.fillSlot(1, 6);
        for (const { buffer } of memory.regions) {
          for (const value of new Uint32Array(buffer)) if (value !== 0) values.set(value, (values.get(value) ?? 0) + 1);
        }
      }
      expect(values.size).toBe(2 * 2 * 4 * 4 + 2 * (16 * 3 + 4 * 4));
      expect([...values.values()].every((count) => count === 1)).toBe(true);
    }
  });

  test('fewer heads than ranks: each head is held by the ranks that share it', () => {
    const shape = { ...smallShape, kvHeads: 2 };
    const layouts = rankPositions(4, 1).map((position) => new TestMemory(shape, position, 3, 1));
    layouts.forEach((memory) => memory.fillBlock(0, 9));
    const bytes = layouts.map(({ regions }) => Buffer.from(regions[0]!.buffer).toString('hex'));
    expect(bytes[0]).toBe(bytes[1]);
    expect(bytes[2]).toBe(bytes[3]);
    expect(bytes[0]).not.toBe(bytes[2]);
  });

  test('any order of axes holds the same elements at other places', () => {
    const random = new SeededRandom(1);
    const plain = new TestMemory(smallShape, wholeModel, 4, 1);
    plain.fillBlock(3, 1);
    for (let i = 0; i < 10; i++) {
      const axes = random.shuffle(kvAxesDefault);
      const memory = new TestMemory(smallShape, wholeModel, 4, 1, axes);
      memory.fillBlock(3, 1);
      expect(memory.blockFault(3, 1)).toBeNull();
      const sorted = (each: TestMemory): number[] =>
        [...new Uint32Array(each.regions[0]!.buffer)].sort((a, b) => a - b);
      expect(sorted(memory)).toEqual(sorted(plain));
      expect(memory.kv.buffers[0]!.axes.map(({ name }) => name)).toEqual(axes);
      const bytes = new Uint32Array(memory.regions[0]!.buffer);
      bytes.forEach((value, at) => expect(memory.idAt(0, 4 * at) === 3).toBe(value !== 0));
    }
  });

  test('names a split that cannot be', () => {
    const at = (tpSize: number, ppSize: number): unknown =>
      new TestMemory(hybrid, { ...wholeModel, tpSize, ppSize }, 3, 1);
    expect(() => at(3, 1)).toThrow('position.tpSize: expected a divisor or a multiple of 4 heads, got 3');
    expect(() => at(4, 1)).toThrow('position.tpSize: expected a divisor of 2 SSM groups, got 4');
    expect(() => at(1, 3)).toThrow('position.ppSize: expected at most 2 stages, got 3');
    expect(() => new TestMemory(smallShape, wholeModel, 3, 1, ['plane'])).toThrow('kvAxes: expected the axes');
  });

  test('marks of a prompt depend on every token before, and on the salt', () => {
    const marks = promptMarks(prompt, 4);
    expect(marks).toHaveLength(3);
    for (let i = 0; i < prompt.length; i++) {
      const changed = prompt.slice();
      changed[i]!++;
      const other = promptMarks(changed, 4);
      marks.forEach((mark, block) => expect(other[block] === mark).toBe(block < Math.floor(i / 4)));
    }
    expect(promptMarks(prompt, 4, 's')[0]).not.toBe(marks[0]);
  });
});

describe('prefill', () => {
  test('fills the prompt, names its complete blocks and reuses them', () => {
    const prefill = engine({ role: 'prefill', shape: hybrid });
    const first = prefill.prefill('a', prompt)!;
    const marks = promptMarks(prompt, 4);
    expect(first.blocks).toHaveLength(3);
    first.blocks.forEach((block, index) => expect(prefill.memory.blockFault(block, marks[index]!)).toBeNull());
    expect(prefill.memory.slotFault(first.slot!, marks[2]!)).toBeNull();
    expect(prefill.promptTokensComputed).toBe(10);
    const second = prefill.prefill('b', prompt)!;
    expect([...second.blocks.subarray(0, 2)]).toEqual([...first.blocks.subarray(0, 2)]);
    expect(second.blocks[2]).not.toBe(first.blocks[2]);
    expect(prefill.promptTokensComputed).toBe(12);
    expect([...prefill.holdings()].map(({ owner }) => owner)).toEqual(['prefill a', 'prefill b']);
    prefill.endPrefill(first, false);
    prefill.endPrefill(second, false);
    expect(prefill.blocks.freeCount + prefill.blocks.evictableCount).toBe(31);
    expect(prefill.slots!.freeCount).toBe(4);
    expect(() => prefill.endPrefill(first, false)).toThrow('run: expected a prompt that this engine holds');
  });

  test('that does not fit changes nothing', () => {
    const prefill = engine({ role: 'prefill', shape: hybrid, poolSize: 6, maxRequests: 2 });
    const held = prefill.prefill('a', prompt)!;
    const before = [prefill.blocks.digest(), prefill.slots!.digest()];
    expect(
      prefill.prefill(
        'b',
        Int32Array.from({ length: 12 }, (_, i) => i),
      ),
    ).toBeNull();
    expect([prefill.blocks.digest(), prefill.slots!.digest()]).toEqual(before);
    prefill.endPrefill(held, true);
    prefill.slots!.allocate();
    expect(prefill.prefill('c', prompt)).toBeNull(); // its slot is pinned, the other taken
    expect(() => prefill.prefill('d', new Int32Array(0))).toThrow('prompt: expected 1 to 64 tokens, got 0');
  });

  test('that is ready later has not written before', () => {
    const prefill = engine({ role: 'prefill', shape: hybrid, readyAfterMs: () => 5 });
    const first = prefill.prefill('a', prompt)!;
    const marks = promptMarks(prompt, 4);
    const faults = (): boolean[] =>
      [...first.blocks].map((block, index) => prefill.memory.blockFault(block, marks[index]!) !== null);
    expect(first.ready!.isComplete()).toBe(false);
    expect(faults()).toEqual([true, true, true]);
    prefill.clock.advance(4);
    // A prompt that shares the prefix is not ready before the prefix is.
    const sharing = prefill.prefill('b', prompt.slice(0, 8))!;
    expect(sharing.ready!.isComplete()).toBe(false);
    expect(faults()).toEqual([true, true, true]);
    prefill.clock.advance(1);
    expect(first.ready!.isComplete()).toBe(true);
    expect(faults()).toEqual([false, false, false]);
  });

  test('of memory whose last owner is still being written ends up as its own', () => {
    let delayMs = 5;
    const prefill = engine({ role: 'prefill', poolSize: 4, readyAfterMs: () => delayMs });
    const first = prefill.prefill('a', prompt)!;
    prefill.endPrefill(first, false);
    delayMs = 0;
    const other = Int32Array.from(prompt, (token) => token + 500);
    const second = prefill.prefill('b', other)!;
    expect([...second.blocks].sort()).toEqual([...first.blocks].sort());
    prefill.clock.advance(5);
    expect(second.ready!.isComplete()).toBe(true);
    const marks = promptMarks(other, 4);
    second.blocks.forEach((block, index) => expect(prefill.memory.blockFault(block, marks[index]!)).toBeNull());
  });
});

describe('decode', () => {
  test('runs a request to its limit, grows on its way and gives everything back', () => {
    const decode = engine({ shape: hybrid });
    const free = decode.blocks.freeCount;
    const request = handOver(decode, prompt, { num_tokens_to_generate: 9 });
    admit(decode, request);
    expect(decode.growthReserve()).toBe(Math.ceil(19 / 4) - 3);
    const ends = run(decode, 8);
    expect(ends).toEqual([
      {
        attemptId: 1,
        generatedTokens: Array.from({ length: 9 }, (_, i) => tokenAt(prompt, null, 4, i)),
        generatedLogProbs: null,
        finishReason: 'length',
        aborted: false,
      },
    ]);
    expect([decode.blocks.freeCount, decode.slots!.freeCount, decode.growthReserve()]).toEqual([free, 4, 0]);
    expect(decode.promptTokensComputed).toBe(0);
  });

  test('stops at the termination token, at the sequence limit and on an abort', () => {
    const decode = engine();
    admit(decode, handOver(decode, prompt, { termination_id: tokenAt(prompt, null, 4, 3) }, 1));
    admit(decode, handOver(decode, prompt.slice(0, 9), {}, 2));
    admit(decode, handOver(decode, prompt.slice(0, 8), { num_tokens_total: 30 }, 3));
    decode.abortRequest(3);
    const ends = run(decode);
    expect(
      ends.map(({ attemptId, generatedTokens, finishReason, aborted }) => [
        attemptId,
        generatedTokens.length,
        finishReason,
        aborted,
      ]),
    ).toEqual([
      [3, 1, 'stop', true],
      [1, 4, 'stop', false],
      [2, 55, 'length', false],
    ]);
    expect(decode.blocks.freeCount).toBe(31);
  });

  test('says whether the first token ends a request', () => {
    const decode = engine();
    const ask = (params: PrefilledRequest['samplingParams']): string =>
      decode.isComplete({ ...handOver(decode, prompt.slice(0, 1), params) }, 7);
    expect(ask({})).toBe('no');
    expect(ask({ num_tokens_to_generate: 1 })).toBe('length');
    expect(ask({ num_tokens_total: 2 })).toBe('length');
    expect(ask({ num_tokens_total: 3 })).toBe('no');
    expect(ask({ termination_id: 7 })).toBe('stop');
    expect(ask({ termination_id: 8 })).toBe('no');
  });

  test('finds state that is wrong as a request starts', () => {
    const decode = engine({ shape: hybrid });
    const request = handOver(decode, prompt);
    new Uint8Array(decode.regions[0]!.buffer)[0]! ^= 0; // untouched memory is no fault
    decode.memory.fillBlock(request.blocks[1]!, 1);
    admit(decode, request);
    expect(() => decode.step()).toThrow(/attempt 1 as it starts: block \d+ \(prompt block 1\) is wrong: element/);
    const other = engine({ shape: hybrid });
    const second = handOver(other, prompt);
    other.memory.fillSlot(second.slot!, 1);
    admit(other, second);
    expect(() => other.step()).toThrow('attempt 1 as it starts: slot 3 is wrong');
  });

  test('finds what was written over a running request', () => {
    const decode = engine();
    admit(decode, handOver(decode, prompt, { num_tokens_to_generate: 10 }));
    for (let i = 0; i < 4; i++) decode.step();
    const [running] = decode.batch.running.values();
    decode.memory.fillBlock(running!.blocks[3]!, 1);
    expect(() => run(decode)).toThrow(/attempt 1 as it ends: block \d+ \(its own\) was overwritten/);
  });

  test('reports an admission it did not allow', () => {
    const messages: string[] = [];
    const decode = engine({ maxRequests: 1, onViolation: (message) => messages.push(message) });
    const request = handOver(decode, prompt);
    decode.admitPrefilledDecode(request);
    expect(decode.canAdmitPrefilledDecode(request)).toBe(false);
    decode.isScheduling = true;
    decode.admitPrefilledDecode({ ...request, blocks: request.blocks.slice(1), slot: 0 });
    decode.abortRequest(9);
    const prefill = engine({ role: 'prefill', onViolation: (message) => messages.push(message) });
    prefill.isScheduling = true;
    prefill.admitPrefilledDecode(request);
    expect(messages).toEqual([
      'attempt 1 was admitted outside the scheduling point; set isScheduling around scheduleWaitingRequests',
      'attempt 1 was admitted into a full batch',
      'attempt 1 was admitted twice',
      'attempt 1 came with 2 blocks for 3',
      'attempt 1 came with a slot too many or too few',
      'attempt 9 was aborted, but is not running',
      'attempt 1 was given to a prefill engine',
    ]);
  });

  test('finds that admission left it no block to grow into', () => {
    const decode = engine({ poolSize: 6 });
    admit(decode, handOver(decode, prompt, { num_tokens_to_generate: 30 }));
    expect(() => run(decode)).toThrow('attempt 1 found no block to grow into: admission left no reserve');
  });

  test('steps alike whenever the landing fence fires, and looks only after that', () => {
    const decode = engine();
    const request = handOver(decode, prompt, { num_tokens_to_generate: 30 });
    const marks = promptMarks(prompt, 4);
    decode.memory.fillBlock(request.blocks[0]!, 1);
    admit(decode, { ...request, landed: { isComplete: () => decode.clock.now() >= 5 } });
    for (let i = 0; i < 5; i++) decode.step();
    expect(decode.batch.running.get(1)!.generated).toHaveLength(6);
    decode.clock.advance(5);
    expect(() => decode.step()).toThrow('attempt 1 as it starts');
    decode.memory.fillBlock(request.blocks[0]!, marks[0]!);
    expect(run(decode)).toHaveLength(1);
    const short = handOver(decode, prompt, { num_tokens_to_generate: 3 }, 2);
    decode.memory.fillBlock(short.blocks[0]!, 1);
    admit(decode, { ...short, landed: { isComplete: () => false } });
    expect(run(decode)).toHaveLength(1);
  });

  test('earlier work touches memory until the fence it gave has fired, and no longer', () => {
    let delayMs = 5;
    const decode = engine({ shape: hybrid, quiescentAfterMs: () => delayMs });
    const blocks = decode.blocks.allocate(2)!;
    const slot = decode.slots!.allocate();
    const fence = decode.targetQuiescent(blocks, slot)!;
    expect([fence.isComplete(), decode.isBusy('block', blocks[0]!), decode.isBusy('slot', slot)]).toEqual([
      false,
      true,
      true,
    ]);
    decode.memory.fillBlock(blocks[0]!, 3);
    decode.memory.fillSlot(slot, 3);
    delayMs = 0;
    decode.clock.advance(4);
    const again = decode.targetQuiescent(blocks, null)!; // the earlier work still counts
    expect(again.isComplete()).toBe(false);
    decode.clock.advance(1);
    expect([fence.isComplete(), again.isComplete(), decode.isBusy('block', blocks[0]!)]).toEqual([true, true, false]);
    expect(decode.memory.blockFault(blocks[0]!, 3)).not.toBeNull();
    expect(decode.memory.slotFault(slot, 3)).not.toBeNull();
    decode.memory.fillBlock(blocks[0]!, 3);
    decode.clock.advance(100);
    expect(decode.memory.blockFault(blocks[0]!, 3)).toBeNull();
    expect(decode.targetQuiescent(blocks, slot)).toBeNull();
  });

  test('a fence is not over when an older one on the same memory is', () => {
    let delayMs = 5;
    const decode = engine({ quiescentAfterMs: () => delayMs });
    const blocks = decode.blocks.allocate(1)!;
    decode.targetQuiescent(blocks, null);
    delayMs = 10;
    const later = decode.targetQuiescent(blocks, null)!;
    decode.clock.advance(5);
    expect([decode.isBusy('block', blocks[0]!), later.isComplete()]).toEqual([true, false]);
    decode.clock.advance(5);
    expect([decode.isBusy('block', blocks[0]!), later.isComplete()]).toEqual([false, true]);
  });

  test('earlier work does not touch named blocks', () => {
    const decode = engine({ quiescentAfterMs: () => 5 });
    const blocks = decode.blocks.allocate(2)!;
    decode.blocks.register(blocks.subarray(0, 1), BigInt64Array.of(5n), BigInt64Array.of(0n));
    decode.memory.fillBlock(blocks[0]!, 3);
    decode.targetQuiescent(blocks, null);
    decode.clock.advance(5);
    expect(decode.memory.blockFault(blocks[0]!, 3)).toBeNull();
  });

  test('hogs leave what running requests may still need', () => {
    const decode = engine({ poolSize: 12 });
    admit(decode, handOver(decode, prompt, { num_tokens_to_generate: 10 }));
    expect(decode.hog(100)).toBe(11 - 3 - 2);
    expect(decode.hog(100)).toBe(0);
    expect(run(decode)).toHaveLength(1);
    decode.unhog();
    expect(decode.blocks.freeCount).toBe(11);
    expect(decode.hogged).toEqual([]);
  });
});

test('ranks that make the same calls stay equal', () => {
  for (let seed = 1; seed <= 20; seed++) {
    const random = new SeededRandom(seed);
    const ranks = rankPositions(2, 2).map((position) => engine({ shape: hybrid, position, poolSize: 40 }));
    const prefills = ranks.map((_, index) =>
      engine({ role: 'prefill', shape: hybrid, position: rankPositions(2, 2)[index]!, poolSize: 20 }),
    );
    const held: PrefillRun[][] = [];
    for (let step = 0; step < 60; step++) {
      const text = prompt.slice(0, random.int(1, 10));
      const attempt = step + 1;
      if (random.chance(0.5) && ranks[0]!.batch.running.size < 4 && ranks[0]!.blocks.freeCount > 12) {
        const limit = random.int(2, 12);
        for (const rank of ranks) admit(rank, handOver(rank, text, { num_tokens_to_generate: limit }, attempt));
      }
      if (random.chance(0.5)) {
        const runs = prefills.map((rank) => rank.prefill(attempt, text));
        expect(new Set(runs.map((each) => each?.blocks.join() ?? null)).size).toBe(1);
        if (runs[0] !== null) held.push(runs as PrefillRun[]);
      } else if (held.length > 0) {
        const [runs] = held.splice(random.int(0, held.length - 1), 1);
        prefills.forEach((rank, index) => rank.endPrefill(runs![index]!, false));
      }
      for (const rank of ranks) rank.step();
      for (const group of [ranks, prefills]) {
        expect(new Set(group.map((rank) => `${rank.blocks.digest()} ${rank.slots!.digest()}`)).size).toBe(1);
      }
    }
  }
});
