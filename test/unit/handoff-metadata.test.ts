/**
 * What prefill says about itself: the reference's fields to the number, the three shapes, and that descriptors made once
 * are never touched by a request.
 */
import { exportKvDescriptor, exportSsmDescriptors, buildKvMeta } from '../../lib/prefill/handoff-metadata.js';
import { referenceSlices } from '../../lib/prefill/reference-slices.js';
import {
  bytesOf,
  describeInstance,
  kvBuffers,
  rowMajor,
  sampleHandoff,
  sampleKvMeta,
  smallShape,
  ssmBuffers,
} from '../support/described-instance.js';

const place = { baseAddress: 0x7fff_ffff_ffff_0000n, deviceId: 2 };

function exported(kv = kvBuffers(smallShape, 0, 0)) {
  return exportKvDescriptor({
    kv,
    blockSize: 16,
    poolSize: 101,
    regions: [{ kind: 'cuda', byteLength: 1 << 20 }],
    transports: { host: 'grant' },
    place,
    extra: { agent_name: 'prefill-rank0-00' },
  });
}

describe('exportKvDescriptor', () => {
  it("says a row-major buffer in the reference's words and in axes", () => {
    expect(exported()).toEqual({
      base_addr: 0x7fff_ffff_ffff_0000n,
      outer_stride_bytes: 101 * 16 * 4 * 8 * 2,
      device_id: 2,
      num_outer: 8,
      bytes_per_slice: 16 * 4 * 8 * 2,
      blocks_axis: 2,
      num_blocks: 101,
      heads_per_partition: 4,
      head_dim: 8,
      tokens_per_block: 16,
      element_size: 2,
      global_rank: 0,
      tp_size: 1,
      tp_rank: 0,
      pp_size: 1,
      pp_rank: 0,
      num_layers_global: 4,
      num_kv_heads_global: 4,
      layer_start: 0,
      layer_end: 4,
      geometry: [
        {
          region: 0,
          offset_bytes: 0,
          element_size: 2,
          layer_start: 0,
          axes: [
            ['plane', 2, 413696],
            ['layer', 4, 103424],
            ['block', 101, 1024],
            ['token', 16, 64],
            ['head', 4, 16],
            ['dim', 8, 2],
          ],
        },
      ],
      regions: [{ kind: 'cuda', bytes: 1 << 20 }],
      transports: { host: 'grant' },
      agent_name: 'prefill-rank0-00',
    });
  });

  it('is frozen all the way down', () => {
    const descriptor = exported();
    const geometry = descriptor['geometry'] as { axes: unknown[][] }[];
    for (const part of [
      descriptor,
      geometry,
      geometry[0],
      geometry[0]!.axes,
      geometry[0]!.axes[0],
      descriptor['regions'],
    ]) {
      expect(Object.isFrozen(part)).toBe(true);
    }
  });

  it('leaves the slices out where the reference has no words, and says the axes all the same', () => {
    const kv = kvBuffers({ ...smallShape, isPerLayer: true }, 0, 0);
    const perLayer = exported(kv);
    expect(perLayer).not.toHaveProperty('base_addr');
    expect(perLayer['geometry']).toHaveLength(4);
    const { axes } = kvBuffers(smallShape, 0, 0).buffers[0]!;
    const swapped = axes.map((axis) => (axis.name === 'token' ? { ...axis, strideBytes: 4 * 64 } : axis));
    const buffers = [{ region: 0, offsetBytes: 0, elementBytes: 2, axes: swapped }];
    expect(exported({ ...kvBuffers(smallShape, 0, 0), buffers })).not.toHaveProperty('num_outer');
  });

  it('does not say one of two buffers as if it were all', () => {
    const whole = kvBuffers({ ...smallShape, layers: 2 }, 0, 0);
    const { buffers, layout } = whole;
    const halves = {
      layout: { ...layout, layerEnd: 4, numLayersGlobal: 4 },
      buffers: [buffers[0]!, buffers[0]!],
      layerStarts: [0, 2],
    };
    expect(exported(halves)).not.toHaveProperty('base_addr');
    expect(exported(halves)['geometry']).toMatchObject([{ layer_start: 0 }, { layer_start: 2 }]);
  });

  it('says no address where nobody reads by address', () => {
    expect(describeInstance(smallShape).rankDescriptors[0]).not.toHaveProperty('base_addr');
    expect(describeInstance({ ...smallShape, hasAddresses: true }).rankDescriptors[0]).toHaveProperty('base_addr');
  });

  it('keeps a layout with shared heads away from readers that would split them', () => {
    const descriptor = describeInstance({ ...smallShape, tpSize: 8 }).rankDescriptors[5]!;
    expect(descriptor).not.toHaveProperty('tp_size');
    expect(descriptor).toMatchObject({
      heads_per_partition: 1,
      replicated_layout: { tp_size: 8, tp_rank: 5, num_kv_heads_global: 4 },
    });
  });

  it('refuses heads that ranks can neither split nor share', () => {
    const kv = kvBuffers(smallShape, 0, 0);
    expect(() => exported({ ...kv, layout: { ...kv.layout, tpSize: 3 } })).toThrow(
      expect.objectContaining({
        code: 'ENGINE_CONTEXT_INVALID',
        message: 'kv.layout.numKvHeadsGlobal: expected a multiple or a divisor of tpSize 3, got 4',
      }),
    );
  });
});

describe('referenceSlices', () => {
  const names = ['plane', 'layer', 'block', 'dim'] as const;
  const buffer = (axes: ReturnType<typeof rowMajor>) => ({ region: 0, offsetBytes: 0, elementBytes: 2, axes });
  const good = rowMajor([
    ['plane', 2],
    ['layer', 3],
    ['block', 5],
    ['dim', 4],
  ]);

  it('ignores the stride of an axis with one index and the order in which axes are listed', () => {
    const axes = rowMajor([
      ['plane', 1],
      ['layer', 3],
      ['block', 5],
      ['dim', 4],
    ]);
    const odd = [...axes.map((axis) => (axis.name === 'plane' ? { ...axis, strideBytes: 7 } : axis))].reverse();
    expect(referenceSlices(buffer(odd), names, 'kv', place)).toEqual({
      base_addr: place.baseAddress,
      outer_stride_bytes: 40,
      device_id: 2,
      num_outer: 3,
      bytes_per_slice: 8,
      blocks_axis: 2,
    });
  });

  it.each([
    [good.filter(({ name }) => name !== 'block'), 'kv.axes.block: expected an axis of that name, got undefined'],
    [
      [...good, { name: 'head' as const, size: 1, strideBytes: 1 }],
      'kv.axes.head: expected axes plane, layer, block, dim only, got "head"',
    ],
    [
      good.map((axis) => (axis.name === 'layer' ? { ...axis, strideBytes: 41 } : axis)),
      'kv.axes.layer.strideBytes: expected 40, as in a row-major buffer, got 41',
    ],
    [
      good.map((axis) => (axis.name === 'dim' ? { ...axis, strideBytes: 4 } : axis)),
      'kv.axes.dim.strideBytes: expected 2, as in a row-major buffer, got 4',
    ],
  ])('names the axis that is in the way (case %#)', (axes, message) => {
    expect(() => referenceSlices(buffer(axes), names, 'kv', place)).toThrow(
      expect.objectContaining({ code: 'ENGINE_CONTEXT_INVALID', message }),
    );
  });
});

describe('exportSsmDescriptors', () => {
  it('says both states as the reference does', () => {
    const { conv, recurrent } = exportSsmDescriptors({
      ssm: ssmBuffers(smallShape, 0, 0),
      convPlace: place,
      recurrentPlace: place,
    });
    expect(conv).toMatchObject({
      num_outer: 2,
      blocks_axis: 1,
      num_blocks: 9,
      heads_per_partition: 48,
      head_dim: 3,
      tokens_per_block: 1,
      element_size: 2,
      bytes_per_slice: 48 * 3 * 2,
      outer_stride_bytes: 9 * 48 * 3 * 2,
      ssm_layout: {
        global_rank: 0,
        tp_size: 1,
        tp_rank: 0,
        layer_start: 0,
        num_layers: 2,
        dims: { nheads: 8, headdim: 4, d_state: 2, ngroups: 4, d_conv: 3 },
      },
    });
    expect(recurrent).toMatchObject({
      heads_per_partition: 8,
      head_dim: 8,
      element_size: 4,
      bytes_per_slice: 8 * 8 * 4,
    });
  });

  it('refuses widths that ranks cannot split', () => {
    const ssm = ssmBuffers(smallShape, 0, 0);
    expect(() =>
      exportSsmDescriptors({
        ssm: { ...ssm, layout: { ...ssm.layout, tpSize: 5 } },
        convPlace: null,
        recurrentPlace: null,
      }),
    ).toThrow(
      expect.objectContaining({ message: 'ssm.layout.dims: expected heads and groups that 5 ranks divide, got 9.6' }),
    );
  });
});

describe('buildKvMeta', () => {
  it('spreads a single rank flat', () => {
    const meta = sampleKvMeta(smallShape);
    expect(meta).toMatchObject({
      tp_size: 1,
      resume_tokens: [11, 12],
      handoff: {
        version: 1,
        instance: 'prefill-a',
        incarnation: 'boot-1',
        handoff_id: 7,
        epoch: 3,
        prompt_tokens: 40,
        block_generations: [5n, (1n << 64n) - 1n, 0n],
        slot_generation: null,
      },
    });
    expect(meta).not.toHaveProperty('resume_log_probs');
    expect(meta).not.toHaveProperty('ssm');
  });

  it('lists tensor ranks', () => {
    const meta = sampleKvMeta({ ...smallShape, tpSize: 2, isHybrid: true }, { resumeLogProbs: [-0.5] });
    expect(Object.keys(meta)).toEqual(['tp_metas', 'resume_tokens', 'resume_log_probs', 'ssm', 'handoff']);
    expect(meta['tp_metas']).toMatchObject([{ tp_rank: 0 }, { tp_rank: 1 }]);
    expect(meta['ssm']).toMatchObject({
      conv: [
        { block_ids: [4], ssm_layout: { tp_rank: 0 } },
        { block_ids: [4], ssm_layout: { tp_rank: 1 } },
      ],
      recurrent: [{ block_ids: [4] }, { block_ids: [4] }],
    });
    expect(meta['resume_log_probs']).toEqual([-0.5]);
  });

  it('nests stages, one map for a stage of one rank, with the same blocks for every stage (spec 14.1, item 25)', () => {
    const one = sampleKvMeta({ ...smallShape, ppSize: 2, isHybrid: true });
    expect(one['pp_metas']).toMatchObject([
      { tp_metas: { pp_rank: 0 }, block_ids: [5, 9, 2] },
      { tp_metas: { pp_rank: 1 }, block_ids: [5, 9, 2] },
    ]);
    expect(one['ssm']).toMatchObject({
      conv: { pp_metas: [{ tp_metas: [{ block_ids: [4] }] }, { tp_metas: [{ block_ids: [4] }] }] },
    });
    const two = sampleKvMeta({ ...smallShape, ppSize: 2, tpSize: 2 });
    expect(two['pp_metas']).toMatchObject([
      { tp_metas: [{ global_rank: 0 }, { global_rank: 1 }] },
      { tp_metas: [{ global_rank: 2 }, { global_rank: 3 }] },
    ]);
  });

  it('gives each request containers of its own and leaves static descriptors as they were (spec 14.1, item 41)', () => {
    const shape = { ...smallShape, tpSize: 2, ppSize: 2, isHybrid: true };
    const described = describeInstance(shape);
    const before = structuredClone(described);
    const build = (slot: number, blockIds: number[]) =>
      buildKvMeta({
        tpSize: 2,
        ppSize: 2,
        ...described,
        blockIds,
        resumeTokens: [1],
        resumeLogProbs: null,
        slot,
        handoff: sampleHandoff,
      }) as {
        pp_metas: { block_ids: number[] }[];
        ssm: { conv: { pp_metas: { tp_metas: { block_ids: number[] }[] }[] } };
      };
    const first = build(1, [1, 2]);
    const second = build(2, [3, 4]);
    expect(second.pp_metas[1]!.block_ids).toEqual([3, 4]);
    const leaf = (meta: typeof first) => meta.ssm.conv.pp_metas[1]!.tp_metas[1]!;
    expect([leaf(first).block_ids, leaf(second).block_ids]).toEqual([[1], [2]]);
    first.pp_metas[0]!.block_ids.push(99);
    expect(first.pp_metas[1]!.block_ids).toEqual([1, 2]);
    expect(second.pp_metas[0]!.block_ids).toEqual([3, 4]);
    expect(described).toEqual(before);
  });

  it('leaves out ranks without SSM layers', () => {
    const described = describeInstance({ ...smallShape, ppSize: 2, isHybrid: true });
    const meta = sampleKvMeta(
      { ...smallShape, ppSize: 2, isHybrid: true },
      { ssmRankDescriptors: [null, described.ssmRankDescriptors![1]!] },
    );
    expect(meta['ssm']).toMatchObject({ conv: { pp_metas: [{ tp_metas: [] }, { tp_metas: [{ block_ids: [4] }] }] } });
  });

  it.each([
    [{ tpSize: 2 }, 'rankDescriptors: expected 2 descriptors, one a rank, got an array of 1'],
    [{ ssmRankDescriptors: [] }, 'ssmRankDescriptors: expected 1 descriptors, one a rank, got an array of 0'],
    [{ ssmRankDescriptors: [null] }, 'slot: expected a slot for a model with SSM state, got null'],
  ])('refuses %j', (changes, message) => {
    expect(() => sampleKvMeta(smallShape, changes)).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID', message }),
    );
  });

  it('keeps extensions', () => {
    expect(sampleKvMeta(smallShape, { extensions: { router: { hint: 1 } } })).toMatchObject({ router: { hint: 1 } });
  });

  it('has no region smaller than its buffers', () => {
    const { axes } = kvBuffers(smallShape, 0, 0).buffers[0]!;
    expect(describeInstance(smallShape).rankDescriptors[0]!['regions']).toEqual([
      { kind: 'host', bytes: bytesOf(axes) },
    ]);
  });
});
