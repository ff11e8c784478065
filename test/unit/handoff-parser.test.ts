/** What decode makes of a valid ticket, in every shape; what it refuses is in `handoff-lies.test.ts`. */
import { parseKvMeta } from '../../lib/decode/handoff-parser.js';
import { defaultTicketLimits } from '../../lib/limits.js';
import { parseInstanceMeta } from '../../lib/transfer/peer-description.js';
import {
  changedKvMeta,
  describeInstance,
  hybridShape,
  kvBuffers,
  rowMajor,
  sampleBlocks,
  sampleKvMeta,
  smallShape,
  ssmBuffers,
  type Meta,
  type Shape,
} from '../support/described-instance.js';

describe('parseKvMeta', () => {
  const shapes: [string, Shape][] = [
    ['one rank', smallShape],
    ['tensor ranks', { ...smallShape, tpSize: 2 }],
    ['stages', { ...smallShape, ppSize: 2 }],
    ['stages of tensor ranks, hybrid', { ...smallShape, tpSize: 2, ppSize: 2, isHybrid: true }],
    ['a buffer a layer', { ...smallShape, isPerLayer: true, ppSize: 2 }],
    ['shared heads', { ...smallShape, tpSize: 8 }],
  ];

  it.each(shapes)('gives back what prefill exported: %s', (_name, shape) => {
    for (const hasAddresses of [false, true]) {
      const parsed = parseKvMeta(structuredClone(sampleKvMeta({ ...shape, hasAddresses })), sampleBlocks);
      expect(parsed.ranks).toHaveLength(shape.tpSize * shape.ppSize);
      parsed.ranks.forEach((rank, index) => {
        const [ppRank, tpRank] = [Math.floor(index / shape.tpSize), index % shape.tpSize];
        expect(rank.kv).toEqual(kvBuffers(shape, ppRank, tpRank));
        const { physicalSlots, ...ssm } = ssmBuffers(shape, ppRank, tpRank);
        expect(rank.ssm).toEqual(shape.isHybrid ? ssm : null);
        expect(rank).toMatchObject({
          globalRank: index,
          key: `["prefill-a","boot-1"]/${index}`,
          numBlocks: 101,
          tokensPerBlock: 16,
          elementBytes: 2,
          numSlots: shape.isHybrid ? physicalSlots : null,
          transports: { host: { path: `@peer-${index}`, token: 'secret' } },
          agentName: null,
        });
        expect(rank.regions).toHaveLength(shape.isHybrid ? 3 : 1);
        expect(rank.slices.kv === null).toBe(!hasAddresses || shape.isPerLayer);
      });
      expect(parsed.shares).toEqual(
        parsed.ranks.map(() => ({ blockIds: Int32Array.from(sampleBlocks), slot: shape.isHybrid ? 4 : null })),
      );
      expect(parsed).toMatchObject({
        handoff: { instance: 'prefill-a', incarnation: 'boot-1', handoffId: 7, epoch: 3 },
        promptTokens: 40,
        blockCount: 3,
        slot: shape.isHybrid ? 4 : null,
        blockGenerations: BigUint64Array.of(5n, (1n << 64n) - 1n, 0n),
        slotGeneration: shape.isHybrid ? 77n : null,
        resumeTokens: [11, 12],
        resumeLogProbs: null,
      });
    }
  });

  it("makes named axes of the reference's slices", () => {
    const reference = (descriptor: Meta) => {
      for (const key of ['geometry', 'regions', 'transports']) delete descriptor[key];
    };
    const meta = changedKvMeta({ ...hybridShape, hasAddresses: true, tpSize: 2 }, (it) => {
      it['tp_metas'].forEach(reference);
      for (const kind of ['conv', 'recurrent']) it['ssm'][kind].forEach(reference);
      delete it['handoff'];
      it['tp_metas'][0]['agent_name'] = 'prefill-rank0-f00';
      it['tp_metas'][0]['agent_metadata_b64'] = 'AAAA';
    });
    const parsed = parseKvMeta(meta, sampleBlocks);
    const shape = { ...hybridShape, tpSize: 2 };
    for (const [rank, described] of parsed.ranks.entries()) {
      const kv = kvBuffers(shape, 0, rank);
      expect(described.kv.buffers).toEqual(kv.buffers);
      expect(described.ssm!.conv).toEqual(ssmBuffers(shape, 0, rank).conv);
      expect(described.ssm!.recurrent).toEqual(ssmBuffers(shape, 0, rank).recurrent);
      expect(described.regions.map(({ kind, baseAddress }) => [kind, baseAddress])).toEqual(
        [0, 1, 2].map((part) => ['cuda', 0x7f00_0000_0000n + BigInt(rank * 3 + part) * (1n << 32n)]),
      );
      expect(described.regions[0]!.byteLength).toBe(2 * 4 * 101 * 16 * 2 * 8 * 2);
    }
    expect(parsed.handoff).toBeNull();
    expect(parsed.promptTokens).toBeNull();
    expect(parsed.blockGenerations).toBeNull();
    expect(parsed.ranks[0]).toMatchObject({
      agentName: 'prefill-rank0-f00',
      agentMetadataBase64: 'AAAA',
      key: 'agent prefill-rank0-f00/0',
    });
  });

  it('takes a stage without SSM layers for a rank that holds none', () => {
    const shape = { ...hybridShape, ppSize: 2 };
    const described = describeInstance(shape);
    const meta = sampleKvMeta(shape, { ssmRankDescriptors: [null, described.ssmRankDescriptors![1]!] });
    const { ranks } = parseKvMeta(meta, sampleBlocks);
    expect(ranks[0]!.ssm!.layout.numLayers).toBe(0);
    expect(ranks[1]!.ssm!.layout.numLayers).toBe(2);
  });

  it('takes a stage without attention layers, whatever its element size would have been', () => {
    const meta = changedKvMeta({ ...smallShape, ppSize: 2 }, (it) => {
      Object.assign(it['pp_metas'][0].tp_metas, { layer_end: 0, geometry: [], element_size: 1 });
      Object.assign(it['pp_metas'][1].tp_metas, { layer_start: 2 });
    });
    const { ranks } = parseKvMeta(meta, sampleBlocks);
    expect(ranks[0]!.kv.buffers).toEqual([]);
    expect(ranks[1]!.kv.buffers).toHaveLength(1);
  });

  it('reads 64-bit values that came as small numbers', () => {
    const meta = changedKvMeta(hybridShape, (it) => {
      it['handoff'].block_generations = [0, 2n, 3];
      it['handoff'].slot_generation = 4;
    });
    expect(parseKvMeta(meta, sampleBlocks)).toMatchObject({
      blockGenerations: BigUint64Array.of(0n, 2n, 3n),
      slotGeneration: 4n,
    });
  });

  it('takes a source without generations', () => {
    const meta = changedKvMeta(hybridShape, (it) => {
      it['handoff'].block_generations = null;
      delete it['handoff'].slot_generation;
    });
    expect(parseKvMeta(meta, sampleBlocks)).toMatchObject({ blockGenerations: null, slotGeneration: null });
  });

  it('takes the first and the last token id', () => {
    const meta = changedKvMeta(smallShape, (it) => (it['resume_tokens'] = [0, 2147483647]));
    expect(parseKvMeta(meta, sampleBlocks).resumeTokens).toEqual([0, 2147483647]);
  });

  it('takes as many transports as there may be, of names of any length', () => {
    const names = Array.from({ length: 16 }, (_, index) => String.fromCharCode(97 + index));
    const meta = changedKvMeta(
      smallShape,
      (it) => (it['transports'] = Object.fromEntries(names.map((name) => [name, 0]))),
    );
    expect(Object.keys(parseKvMeta(meta, sampleBlocks).ranks[0]!.transports)).toEqual(names);
  });

  it('takes names as long as they may be', () => {
    const longest = 'x'.repeat(256);
    const meta = changedKvMeta(smallShape, (it) => {
      it['transports'] = { [longest]: 1 };
      it['handoff'].instance = longest;
    });
    const parsed = parseKvMeta(meta, sampleBlocks);
    expect(parsed.ranks[0]!.transports).toEqual({ [longest]: 1 });
    expect(parsed.handoff!.instance).toBe(longest);
  });

  it('is not led by inherited keys', () => {
    const meta = Object.assign(Object.create({ tp_metas: [] }) as Meta, sampleKvMeta(smallShape));
    expect(parseKvMeta(meta, sampleBlocks).ranks).toHaveLength(1);
  });

  it.each<[string, (buffer: Meta) => void, string]>([
    ['tokens', without('token'), 'kvMeta.geometry[0].axes: expected an axis named token of 16, got an array of 5'],
    ['heads', without('head'), 'kvMeta.geometry[0].axes: expected an axis named head of 4, got an array of 5'],
    ['dims', without('dim'), 'kvMeta.geometry[0].axes: expected an axis named dim of 8, got an array of 5'],
    ['blocks', without('block'), 'kvMeta.geometry[0].axes: expected an axis named block, got an array of 5'],
    ['layers', without('layer'), "kvMeta.geometry: expected layers up to 4, the layout's end, got 1"],
    [
      'its first layer',
      (buffer) => {
        buffer['layer_start'] = 1;
        buffer['axes'][1][1] = 3;
      },
      'kvMeta.geometry: expected a buffer that holds layer 0, and each layer once, got an array of 1',
    ],
    [
      'its keys',
      (buffer) => Object.assign(buffer, { plane_start: 1, axes: buffer['axes'].slice(1) }),
      "kvMeta.geometry: expected layers up to 4, the layout's end, got 0",
    ],
  ])('refuses attention data without %s', (_name, change, message) => {
    const meta = changedKvMeta(smallShape, (it) => change(it['geometry'][0]));
    expect(() => parseKvMeta(meta, sampleBlocks)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID', message }));
  });

  it('takes data without axes of one index', () => {
    const shape = { ...smallShape, heads: 1, headDim: 1, blockSize: 1 };
    const meta = changedKvMeta(shape, (it) => {
      for (const name of ['token', 'head', 'dim']) without(name)(it['geometry'][0]);
      it['handoff'].prompt_tokens = 3;
    });
    expect(parseKvMeta(meta, sampleBlocks).ranks[0]!.kv.buffers[0]!.axes.map(({ name }) => name)).toEqual([
      'plane',
      'layer',
      'block',
    ]);
  });

  it('refuses a layer in two buffers', () => {
    const meta = changedKvMeta(smallShape, (it) => it['geometry'].push(it['geometry'][0]));
    expect(() => parseKvMeta(meta, sampleBlocks)).toThrow(
      expect.objectContaining({
        code: 'TICKET_INVALID',
        message: 'kvMeta.geometry: expected a buffer that holds layer 4, and each layer once, got an array of 2',
      }),
    );
  });

  it('refuses lists with an entry left out by that entry', () => {
    for (const key of ['regions', 'geometry'] as const) {
      const meta = changedKvMeta(smallShape, (it) => delete it[key][0]);
      expect(() => parseKvMeta(meta, sampleBlocks)).toThrow(
        expect.objectContaining({
          code: 'TICKET_INVALID',
          message: `kvMeta.${key}[0]: expected a map, got undefined`,
        }),
      );
    }
  });

  it('bounds what it reads', () => {
    const limits = { ...defaultTicketLimits, blocksMax: 2 };
    expect(() => parseKvMeta(sampleKvMeta(smallShape), sampleBlocks, { limits })).toThrow(
      'expected a list of at most 2 block ids',
    );
  });

  it.each([[null], [[]], ['x'], [7n]])('refuses %p as metadata', (meta) => {
    expect(() => parseKvMeta(meta, sampleBlocks)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
  });

  it('does not derive axes from slices that do not fit', () => {
    for (const key of ['num_outer', 'outer_stride_bytes', 'bytes_per_slice'] as const) {
      const meta = changedKvMeta({ ...smallShape, hasAddresses: true }, (it) => {
        delete it['geometry'];
        it[key] += 1;
      });
      expect(() => parseKvMeta(meta, sampleBlocks)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
    }
    const past = changedKvMeta({ ...smallShape, hasAddresses: true }, (it) => {
      delete it['geometry'];
      it['base_addr'] = (1n << 64n) - 827391n;
    });
    expect(() => parseKvMeta(past, sampleBlocks)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
    past['base_addr'] -= 1n;
    expect(parseKvMeta(past, sampleBlocks).ranks[0]!.regions[0]!.byteLength).toBe(827392);
  });

  it('takes buffers of one plane from slices', () => {
    const meta = changedKvMeta({ ...smallShape, hasAddresses: true }, (it) => {
      delete it['geometry'];
      it['num_outer'] = 4;
    });
    expect(parseKvMeta(meta, sampleBlocks).ranks[0]!.kv.buffers[0]!.axes).toEqual(
      rowMajor([
        ['plane', 1],
        ['layer', 4],
        ['block', 101],
        ['token', 16],
        ['head', 4],
        ['dim', 8],
      ]),
    );
  });
});

/** A buffer of a descriptor without one of its axes. */
function without(name: string): (buffer: Meta) => void {
  return (buffer) => {
    buffer['axes'] = (buffer['axes'] as [string, number, number][]).filter(([known]) => known !== name);
  };
}

describe('parseInstanceMeta', () => {
  it('says what to pass when a whole ticket comes', () => {
    const ticket = { requestId: 1, blockIds: sampleBlocks, kvMeta: sampleKvMeta(smallShape), handoff: null };
    expect(() => parseKvMeta(ticket, sampleBlocks)).toThrow(
      expect.objectContaining({
        code: 'TICKET_INVALID',
        message: 'kvMeta: expected a ticket\'s `kvMeta` field, got "a whole ticket"',
      }),
    );
  });

  it('reads registered ranks, each with its own SSM state', () => {
    const shape = { ...hybridShape, tpSize: 2 };
    const { rankDescriptors, ssmRankDescriptors } = describeInstance(shape);
    const entries = rankDescriptors.map((descriptor, index) => ({
      ...descriptor,
      request_capacity: 8,
      ssm: ssmRankDescriptors![index],
    }));
    const ranks = parseInstanceMeta(structuredClone(entries), 'decode-b');
    expect(ranks.map(({ key }) => key)).toEqual(['decode-b/0', 'decode-b/1']);
    expect(ranks[1]!.ssm!.conv).toEqual(ssmBuffers(shape, 0, 1).conv);
    expect(() => parseInstanceMeta([entries[0], { ...entries[1], ssm: null }], 'decode-b')).toThrow(
      expect.objectContaining({
        code: 'SSM_METADATA_INVALID',
        message: 'instanceMeta[1].ssm: expected SSM state on every rank or on none, got null',
      }),
    );
    expect(() =>
      parseInstanceMeta([entries[0], { ...entries[1], ssm: { conv: ssmRankDescriptors![1]!.conv } }], 'decode-b'),
    ).toThrow(
      expect.objectContaining({
        code: 'SSM_METADATA_INVALID',
        message: 'instanceMeta[1].ssm.recurrent: expected a map, got undefined',
      }),
    );
    expect(parseInstanceMeta(rankDescriptors, 'decode-b').map(({ ssm }) => ssm)).toEqual([null, null]);
  });
});
