/** What is remembered of a peer: the same description once, a changed one never, and within bounds. */
import { parseKvMeta } from '../../lib/decode/handoff-parser.js';
import { PeerDescriptorCache } from '../../lib/transfer/peer-descriptor-cache.js';
import {
  changedKvMeta,
  hybridShape,
  sampleBlocks,
  sampleKvMeta,
  smallShape,
  type Meta,
} from '../support/described-instance.js';

describe('PeerDescriptorCache', () => {
  const parse = (cache: PeerDescriptorCache, meta: unknown, ids = sampleBlocks) => parseKvMeta(meta, ids, { cache });

  it('gives the same ranks for the same description and checks it once', () => {
    const cache = new PeerDescriptorCache();
    const shape = { ...hybridShape, tpSize: 2, ppSize: 2 };
    const first = parse(cache, structuredClone(sampleKvMeta(shape)));
    const second = parse(
      cache,
      structuredClone(sampleKvMeta(shape, { blockIds: [1, 2, 3], resumeTokens: [7], slot: 0 })),
      [1, 2, 3],
    );
    expect(second.ranks).toBe(first.ranks);
    expect(second).toMatchObject({ slot: 0, resumeTokens: [7] });
    expect([cache.checked, cache.size]).toEqual([1, 1]);
  });

  it('gives a changed description ranks and keys of its own', () => {
    const cache = new PeerDescriptorCache();
    const first = parse(cache, sampleKvMeta(smallShape));
    const changes: ((meta: Meta) => void)[] = [
      (it) => (it['transports'].host.token = 'other'),
      (it) => (it['transports'].host.more = null),
      (it) => delete it['transports'].host.token,
      (it) => (it['regions'][0].bytes += 1),
      (it) => (it['unknown'] = 1),
      (it) => it['regions'].push({ kind: 'host', bytes: 1 }),
    ];
    for (const change of changes) {
      const { ranks } = parse(cache, changedKvMeta(smallShape, change));
      expect(ranks).not.toBe(first.ranks);
      expect(ranks[0]!.key).not.toBe(first.ranks[0]!.key);
    }
    expect(cache.checked).toBe(1 + changes.length);
  });

  it('tells incarnations apart, so that a replayed ticket is not taken for a living peer (field report 113)', () => {
    const cache = new PeerDescriptorCache();
    const first = parse(cache, sampleKvMeta(smallShape));
    const second = parse(
      cache,
      changedKvMeta(smallShape, (it) => (it['handoff'].incarnation = 'boot-2')),
    );
    expect(second.ranks).not.toBe(first.ranks);
    expect(cache.size).toBe(2);
  });

  it('tells peers apart whose names read alike when put together', () => {
    const cache = new PeerDescriptorCache();
    const of = (instance: string, incarnation: string) =>
      parse(
        cache,
        changedKvMeta(smallShape, (it) => Object.assign(it['handoff'] as Meta, { instance, incarnation })),
      ).ranks;
    expect(of('a/b', 'c')[0]!.key).not.toBe(of('a', 'b/c')[0]!.key);
    expect(of('a","b', 'c')).not.toBe(of('a', 'b","c'));
  });

  it('tells a description with SSM state from the same without', () => {
    const cache = new PeerDescriptorCache();
    const [hybrid, plain] = [hybridShape, { ...hybridShape, isHybrid: false }].map((shape) => sampleKvMeta(shape));
    for (const [first, second] of [
      [hybrid, plain],
      [plain, hybrid],
    ]) {
      expect(parse(cache, first).ranks[0]!.ssm === null).toBe(first === plain);
      expect(parse(cache, second).ranks[0]!.ssm === null).toBe(second === plain);
    }
  });

  it('keeps a copy: what the caller does to its objects later changes nothing', () => {
    const cache = new PeerDescriptorCache();
    const meta = changedKvMeta(smallShape, () => undefined);
    const { ranks } = parse(cache, meta);
    meta['num_blocks'] = 1;
    expect(() => parse(cache, meta)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
    expect(parse(cache, sampleKvMeta(smallShape)).ranks).toBe(ranks);
  });

  it('forgets the peer that was seen longest ago, and old descriptions of one peer', () => {
    const cache = new PeerDescriptorCache(2);
    const of = (incarnation: string, token = 'x') =>
      parse(
        cache,
        changedKvMeta(smallShape, (it) => {
          it['handoff'].incarnation = incarnation;
          it['transports'].host.token = token;
        }),
      ).ranks;
    const a = of('a');
    of('b');
    expect(of('a')).toBe(a);
    of('c');
    expect(cache.size).toBe(2);
    expect(of('a')).toBe(a);
    const checked = cache.checked;
    of('b');
    expect(cache.checked).toBe(checked + 1);
    const one = of('d', '1');
    for (const token of ['2', '3', '4']) of('d', token);
    expect(of('d', '1')).toBe(one);
    of('d', '5');
    expect(of('d', '1')).not.toBe(one);
  });

  it('does not remember more than its share', () => {
    const cache = new PeerDescriptorCache(2, 200);
    const large = changedKvMeta(smallShape, (it) => (it['transports'].host.blob = 'x'.repeat(2000)));
    expect(parse(cache, large).ranks).not.toBe(parse(cache, large).ranks);
    expect(cache.size).toBe(0);
    let deep: unknown = 1;
    for (let depth = 0; depth < 1000; depth++) deep = { deep };
    const nested = changedKvMeta(smallShape, (it) => (it['transports'].host.deep = deep));
    expect(new PeerDescriptorCache().size).toBe(0);
    const roomy = new PeerDescriptorCache();
    parse(roomy, nested);
    expect(roomy.size).toBe(0);
  });
});
