/**
 * Token identity with GPU pools over cuda-ipc, through real processes: what a decode engine generates after a handoff is
 * what one engine generates without one, token for token and logit bit for logit bit.
 */
import { startChild, type Child } from './child-process.js';
import type { GpuSetting } from './gpu-ends.js';

interface Outcome {
  readonly tokens: readonly number[];
  readonly logits: readonly string[];
}

interface Case {
  readonly name: string;
  readonly kind: string;
  readonly proposals?: number;
  readonly blockSize: number;
  readonly prefill: Record<string, unknown>;
  readonly decode: Record<string, unknown>;
}

const headMajor = { kvAxes: ['layer', 'plane', 'block', 'head', 'token', 'dim'] };
const blockFirst = { kvAxes: ['block', 'layer', 'plane', 'token', 'head', 'dim'] };
const slotFirst = {
  convAxes: ['slot', 'layer', 'channel', 'dim'],
  recurrentAxes: ['slot', 'layer', 'head', 'dim'],
};

const cases: readonly Case[] = [
  { name: 'attention, one layout', kind: 'attention', blockSize: 4, prefill: {}, decode: {} },
  {
    name: 'attention, head-major to block-first',
    kind: 'attention',
    blockSize: 8,
    prefill: headMajor,
    decode: blockFirst,
  },
  { name: 'experts, a buffer a layer', kind: 'moe', blockSize: 4, prefill: { bufferPerLayer: true }, decode: {} },
  { name: 'hybrid', kind: 'hybrid', blockSize: 4, prefill: {}, decode: {} },
  {
    ...{ name: 'hybrid with proposals, slots first, a buffer a layer', kind: 'hybrid', proposals: 2, blockSize: 8 },
    prefill: { ...headMajor, ...slotFirst },
    decode: { bufferPerLayer: true },
  },
];

const count = 12;
// The second shares a prefix that decode then has cached; the third fills its last block.
const texts = [
  'The quick brown fox jumps over the lazy dog.',
  'The quick brown fox jumps over the fence, and on.',
  'Sixteen of them.',
];

export function cudaEngineSuite({ env = {}, gpus }: Pick<GpuSetting, 'env' | 'gpus'>, backend = 'cuda-ipc'): void {
  const start = (): Child => startChild('cuda-engine', [], env as Record<string, string>);

  test.each(cases)(
    '$name: nothing that is computed differs',
    async ({ kind, proposals = 0, blockSize, ...layouts }) => {
      const setting = { kind, proposals, blockSize, backend };
      const [prefill, decode] = [start(), start()];
      await Promise.all([
        prefill.ask('open', { ...setting, role: 'prefill', device: gpus.source, layout: layouts.prefill }),
        decode.ask('open', { ...setting, role: 'decode', device: gpus.target, layout: layouts.decode }),
      ]);
      for (const [index, text] of texts.entries()) {
        const request = { requestId: index + 1, text, count };
        const ticket = await prefill.ask<string>('prefill', request);
        const continued = await decode.ask<Outcome>('decode', { ...request, ticket });
        const alone = await prefill.ask<Outcome>('alone', { text, count });
        expect(alone.tokens.length).toBeGreaterThan(0);
        // Prefill drew the first token; its logits stayed there.
        expect(continued).toEqual({ tokens: alone.tokens, logits: alone.logits.slice(1) });
        await prefill.ask('release', { requestId: index + 1 });
      }
      await Promise.all([prefill.kill(), decode.kill()]);
    },
  );

  test('a source block that is rewritten before it is read fails the request and is never admitted', async () => {
    const setting = { kind: 'attention', blockSize: 4, backend };
    const [prefill, decode] = [start(), start()];
    await prefill.ask('open', { ...setting, role: 'prefill', device: gpus.source });
    await decode.ask('open', { ...setting, role: 'decode', device: gpus.target });
    const request = { requestId: 1, text: texts[0], count };
    const ticket = await prefill.ask<string>('prefill', request);
    await prefill.ask('release', { requestId: 1 });
    // Other prompts take the blocks over, all of them.
    for (let other = 2; other < 12; other += 1) {
      const text = `${other} others take these blocks over, all of them`;
      await prefill.ask('prefill', { requestId: other, text, count });
      await prefill.ask('release', { requestId: other });
    }
    expect(await decode.ask('decode', { ...request, ticket })).toMatchObject({ error: 'HANDOFF_EXPIRED' });
    await Promise.all([prefill.kill(), decode.kill()]);
  });
}
