/**
 * Token identity between instances of the reference engine whose ranks are processes with pools in GPU memory: what a
 * decode instance generates after a handoff is what one engine generates without one, token for token and logit bit for
 * logit bit; over each transport, from several prefills over different ones, and with processes killed.
 */
import { randomBytes } from 'node:crypto';
import type { Child } from './child-process.js';
import { startChild } from './child-process.js';
import { hostOfItsOwn } from './nccl-host.js';

export interface GpuHandoffSetting {
  readonly env?: Readonly<Record<string, string>>;
  /** Prefill's first rank is on `source`, decode's on `target`; second ranks the other way round. */
  readonly gpus: { readonly source: number; readonly target: number };
  /** Whether NCCL can be used; if not, only what needs no NCCL runs. */
  readonly nccl: boolean;
  /** The same for NIXL. */
  readonly nixl: boolean;
  /** Every shape with every model, or a few of them. */
  readonly isWhole: boolean;
}

type Role = 'prefill' | 'decode';
type Kind = 'attention' | 'hybrid' | 'moe';

interface Setting {
  readonly kind: Kind;
  readonly proposals?: number;
  readonly blockSize?: number;
}

interface Instance {
  readonly ranks: readonly Child[];
  readonly leader: Child;
}

interface Outcome {
  readonly tokens: readonly number[];
  readonly logits: readonly string[];
}

interface Ticket {
  readonly text: string;
  readonly ref: object;
}

const count = 10;
// The second shares a prefix that decode then has cached; the third fills its last block.
const texts = [
  'The quick brown fox jumps over the lazy dog.',
  'The quick brown fox jumps over the fence, and on.',
  'Sixteen of them.',
] as const;

const layouts: Readonly<Record<Role, object>> = {
  prefill: { kvAxes: ['layer', 'plane', 'block', 'head', 'token', 'dim'] },
  decode: {
    kvAxes: ['block', 'layer', 'plane', 'token', 'head', 'dim'],
    convAxes: ['slot', 'layer', 'channel', 'dim'],
    recurrentAxes: ['slot', 'layer', 'head', 'dim'],
  },
};

export function gpuHandoffSuite({ env = {}, gpus, nccl, nixl, isWhole }: GpuHandoffSetting): void {
  async function instance(
    role: Role,
    tp: number,
    backend: string | readonly string[],
    setting: Setting,
    otherTp = tp,
  ): Promise<Instance> {
    const world = `gpu-${process.pid}-${randomBytes(6).toString('hex')}`;
    const secret = randomBytes(16).toString('hex');
    const devices = role === 'prefill' ? [gpus.source, gpus.target] : [gpus.target, gpus.source];
    const sharesGpu = gpus.source === gpus.target || tp !== otherTp;
    const ranks = Array.from({ length: tp }, () =>
      startChild('gpu-rank', [], { ...env, ...(sharesGpu ? hostOfItsOwn() : {}) }),
    );
    await Promise.all(
      ranks.map((rank, index) =>
        rank.ask('open', {
          ...{ role, backend, device: devices[index], instance: world, layout: layouts[role], ...setting },
          ranks: { shape: { tp }, rank: index, world, secret },
        }),
      ),
    );
    return { ranks, leader: ranks[0]! };
  }

  /** Up to the moment at which decode has reserved; with a push, it has been asked for. */
  async function begin(prefill: Instance, decode: Instance, requestId: number, text: string): Promise<Ticket> {
    const request = { requestId, text, count };
    const ticket = await prefill.leader.ask<Ticket>('prefill', request);
    await decode.leader.ask('take', { ...request, ticket: ticket.text });
    return ticket;
  }

  async function push(prefill: Instance, decode: Instance, requestId: number, { ref }: Ticket): Promise<number | null> {
    const notice = await decode.leader.ask<{ cachedPrefixBlocks: number } | null>('ready', { requestId });
    if (notice === null) return null;
    const target = await decode.leader.ask('identity');
    await prefill.leader.ask('push', { ref, target, ...notice });
    return notice.cachedPrefixBlocks;
  }

  /** Returns how many blocks of the prompt were cached as the source of a push was told; null without a push. */
  async function handOver(
    prefill: Instance,
    decode: Instance,
    requestId: number,
    text: string,
  ): Promise<number | null> {
    const ticket = await begin(prefill, decode, requestId, text);
    const cached = await push(prefill, decode, requestId, ticket);
    const continued = await decode.leader.ask<Outcome>('ended', { requestId });
    const alone = await prefill.leader.ask<Outcome>('alone', { text, count });
    expect(alone.tokens.length).toBeGreaterThan(0);
    // Prefill drew the first token; its logits stayed there.
    expect(continued).toEqual({ tokens: alone.tokens, logits: alone.logits.slice(1) });
    await prefill.leader.ask('release', { ref: ticket.ref });
    return cached;
  }

  async function end(...instances: readonly Instance[]): Promise<void> {
    for (const rank of instances.flatMap(({ ranks }) => ranks)) expect(await rank.ask('failures')).toEqual([]);
    await Promise.all(instances.flatMap(({ ranks }) => ranks.map((rank) => rank.kill())));
  }

  const settled = (...instances: readonly Instance[]): Promise<unknown> =>
    Promise.all(instances.flatMap(({ ranks }) => ranks.map((rank) => rank.ask('untilSettled'))));

  const models: readonly Setting[] = [
    { kind: 'hybrid', proposals: 2, blockSize: 8 },
    ...(isWhole ? [{ kind: 'attention' } as const, { kind: 'moe', blockSize: 8 } as const] : []),
  ];
  const shapes: readonly (readonly [number, number])[] = [
    [1, 1],
    [2, 1],
    ...(isWhole ? [[1, 2] as const, [2, 2] as const] : []),
  ];
  const backends = ['cuda-ipc', ...(nccl ? ['nccl'] : []), ...(nixl ? ['nixl'] : [])].filter(
    (name) => isWhole || name !== 'cuda-ipc',
  );
  const cases = backends.flatMap((backend) =>
    shapes.flatMap(([source, target]) =>
      models.map((model) => ({ ...{ backend, source, target, kind: model.kind }, model })),
    ),
  );
  if (nccl) cases.push({ backend: 'nccl, unpacked', source: 2, target: 1, kind: 'hybrid', model: models[0]! });

  if (cases.length > 0) {
    test.each(cases)(
      '$backend, $kind, TP $source to TP $target: nothing that is computed differs',
      async ({ backend, source, target, model }) => {
        const [prefill, decode] = await Promise.all([
          instance('prefill', source, backend, model, target),
          instance('decode', target, backend, model, source),
        ]);
        const cached: (number | null)[] = [];
        for (const [index, text] of texts.entries()) cached.push(await handOver(prefill, decode, index + 1, text));
        // 'The quick brown fox jumps over the ' is 35 bytes.
        const prefix = Math.floor(35 / (model.blockSize ?? 4));
        expect(cached).toEqual(backend.startsWith('nccl') ? [0, prefix, 0] : [null, null, null]);
        await settled(prefill, decode);
        await end(prefill, decode);
      },
    );
  }

  const others = [...(nccl ? ['nccl'] : []), ...(nixl ? ['nixl'] : [])];
  if (others.length === 0) return;

  test.each(others)('one decode takes from two prefills over cuda-ipc and %s, by turns', async (backend) => {
    const model: Setting = { kind: 'hybrid' };
    const [mapped, other, decode] = await Promise.all([
      instance('prefill', 1, 'cuda-ipc', model),
      instance('prefill', 1, backend, model),
      instance('decode', 1, ['cuda-ipc', backend], model),
    ]);
    const cached: (number | null)[] = [];
    for (const [index, text] of [...texts, 'And that was the last of them.'].entries()) {
      cached.push(await handOver(index % 2 === 0 ? mapped : other, decode, index + 1, text));
    }
    expect(cached).toEqual(backend === 'nccl' ? [null, 8, null, 0] : [null, null, null, null]);
    await settled(mapped, other, decode);
    await end(mapped, other, decode);
  });

  test.each(others)(
    'a prefill that is killed before its state is read costs that request over %s, and the next is served',
    async (backend) => {
      const model: Setting = { kind: 'attention' };
      const [prefill, next, decode] = await Promise.all([
        instance('prefill', 1, backend, model),
        instance('prefill', 1, backend, model),
        instance('decode', 1, backend, model),
      ]);
      await handOver(prefill, decode, 1, texts[0]);
      const request = { requestId: 2, text: texts[1], count };
      const ticket = await prefill.leader.ask<Ticket>('prefill', request);
      const take = (): Promise<unknown> => decode.leader.ask('take', { ...request, ticket: ticket.text });
      if (backend === 'nccl') {
        await take();
        await decode.leader.ask('ready', { requestId: 2 });
      }
      await prefill.leader.kill();
      if (backend !== 'nccl') await take();
      expect(await decode.leader.ask('ended', { requestId: 2 })).toMatchObject({ error: 'PEER_LOST' });
      expect(await decode.leader.ask('failures')).toEqual(['PEER_LOST']);
      await settled(decode);
      await handOver(next, decode, 3, texts[1]);
      await settled(next, decode);
      await end(next, decode);
    },
  );

  test.each(others.flatMap((backend) => [0, 1].map((before) => ({ backend, before }))))(
    'a decode that is killed under way over $backend, after $before handoffs, leaves the prefill, which serves the next',
    async ({ backend, before }) => {
      const model: Setting = { kind: 'attention' };
      const [prefill, decode, next] = await Promise.all([
        instance('prefill', 1, backend, model),
        instance('decode', 1, backend, model),
        instance('decode', 1, backend, model),
      ]);
      if (before > 0) await handOver(prefill, decode, 1, texts[0]);
      const ticket = await begin(prefill, decode, 2, texts[1]);
      if (backend === 'nccl') await push(prefill, decode, 2, ticket);
      await decode.leader.kill();
      await prefill.leader.ask('release', { ref: ticket.ref });
      // With a push, the communicator that ends is the proof; nobody attests anything.
      await settled(prefill);
      // Of a push that was cut off; none, where it had come through.
      expect([[], ['PEER_LOST']]).toContainEqual(await prefill.leader.ask('failures'));
      await handOver(prefill, next, 3, texts[1]);
      await settled(prefill, next);
      await end(prefill, next);
    },
  );
}
