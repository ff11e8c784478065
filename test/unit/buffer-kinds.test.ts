/**
 * Goal: buffers of any kind survive the way to the peer: what a rank describes is what the other side plans with, and a
 * description that contradicts itself is refused by name. Method: descriptors exported, sent as JSON, parsed and compared.
 */
import { rowMajorBuffer, type BufferGeometry } from '../../lib/memory/axes-geometry.js';
import { makeKvLayout } from '../../lib/memory/kv-layout.js';
import { elementBytesOf, modelBytes } from '../../lib/memory/model-bytes.js';
import { defaultTicketLimits } from '../../lib/limits.js';
import type { WireObject } from '../../lib/json.js';
import { exportKvDescriptor } from '../../lib/prefill/handoff-metadata.js';
import { parseKvDescriptor } from '../../lib/transfer/rank-descriptor.js';

const layout = makeKvLayout({
  numLayersGlobal: 4,
  numKvHeadsGlobal: 4,
  headDim: 8,
  tpSize: 2,
  tpRank: 1,
  globalRank: 1,
});
const plane = (region: number, planeStart: number): BufferGeometry =>
  rowMajorBuffer({
    ...{ region, planeStart, elementBytes: 1, offsetBytes: 64, paddingBytes: { token: 8 } },
    axes: [
      ['layer', 4],
      ['block', 5],
      ['head', 2],
      ['token', 4],
      ['dim', 8],
    ],
  });
const scale = rowMajorBuffer({
  ...{ region: 2, elementBytes: 4, content: 'scale' },
  axes: [
    ['block', 5],
    ['plane', 2],
    ['layer', 4],
    ['token', 4],
    ['head', 2],
  ],
});
const buffers = [plane(0, 0), plane(1, 1), scale];
const kv = { layout, buffers, layerStarts: [0, 0, 0] };

function described(change: (geometry: Record<string, unknown>[]) => void = () => undefined): WireObject {
  const descriptor = exportKvDescriptor({
    ...{ kv, blockSize: 4, poolSize: 5, transports: {}, place: null },
    regions: [0, 1, 2].map(() => ({ kind: 'host' as const, byteLength: 1 << 16 })),
  });
  const copy = JSON.parse(JSON.stringify(descriptor)) as { geometry: Record<string, unknown>[] };
  change(copy.geometry);
  return copy as unknown as WireObject;
}

const parse = (descriptor: WireObject) => parseKvDescriptor(descriptor, 'kvMeta', defaultTicketLimits);

test('field report 76: K, V and scales come out as they went in', () => {
  const { endpoint, elementBytes } = parse(described());
  expect(endpoint).toEqual(kv);
  expect(elementBytes).toBe(1);
});

test.each<[string, (geometry: Record<string, unknown>[]) => void, string]>([
  [
    'a plane that is none',
    ([, v]) => (v!['plane_start'] = 2),
    'geometry[1].plane_start: expected an integer in [0, 1]',
  ],
  [
    'planes past the last',
    ([, , s]) => (s!['plane_start'] = 1),
    'geometry[2].plane_start: expected an integer in [0, 0]',
  ],
  [
    'data of another size',
    ([k]) => (k!['element_size'] = 2),
    'geometry[0].element_size: expected an integer in [1, 1]',
  ],
  ['huge scales', ([, , s]) => (s!['element_size'] = 17), 'geometry[2].element_size: expected an integer in [1, 16]'],
  ['a content without a name', ([, , s]) => (s!['content'] = ''), 'geometry[2].content: expected'],
  [
    'scales of other heads',
    ([, , s]) => ((s!['axes'] as unknown[][])[4]![1] = 3),
    'geometry[2].axes[4][1]: expected 2, got 3',
  ],
])('%s', (_name, change, words) => {
  expect(() => parse(described(change))).toThrow(
    expect.objectContaining({ code: 'TICKET_INVALID', message: expect.stringContaining(words) }),
  );
});

test('bytes of a block are those of all ranks, whoever asks', () => {
  const empty = { ...(described() as Record<string, unknown>), geometry: [], element_size: 1 } as unknown as WireObject;
  // 2 planes, 4 layers, 4 heads, 4 tokens: 8 bytes of data and 4 of scales each.
  const whole = 2 * 4 * 4 * 4 * (8 + 4);
  for (const all of [[described()], [empty, described()]]) {
    expect(modelBytes({ kv, ssm: null }, all, 0)).toEqual({ blockBytes: whole, slotBytes: 0 });
    expect(elementBytesOf(all)).toBe(1);
  }
  expect(modelBytes({ kv, ssm: null }, [empty], 0).blockBytes).toBe(0);
  expect(elementBytesOf([{ ...(described() as object), element_size: 2 }])).toBe(2);
});

test('a latent without planes and heads can be said in the reference’s words, and comes back as it was', () => {
  const latent = makeKvLayout({ numLayersGlobal: 4, numKvHeadsGlobal: 1, headDim: 8, tpSize: 1 });
  const buffer = rowMajorBuffer({
    elementBytes: 2,
    axes: [
      ['layer', 4],
      ['block', 5],
      ['token', 4],
      ['dim', 8],
    ],
  });
  const { geometry, regions, ...words } = exportKvDescriptor({
    ...{ kv: { layout: latent, buffers: [buffer], layerStarts: [0] }, blockSize: 4, poolSize: 5, transports: {} },
    ...{ regions: [{ kind: 'host', byteLength: 4096 }], place: { baseAddress: 4096n, deviceId: 0 } },
  });
  expect([geometry, regions]).toEqual([expect.any(Array), expect.any(Array)]);
  expect(words).toMatchObject({ num_outer: 4, bytes_per_slice: 64, outer_stride_bytes: 320, base_addr: 4096n });
  const [read] = parse(words).endpoint.buffers;
  expect(read!.axes.filter(({ size }) => size > 1)).toEqual(buffer.axes);
});
