/**
 * What decode believes of a ticket. A valid one comes out whole in every shape; then each single lie is refused by name.
 */
import { checkExpectation } from '../../lib/decode/handoff-expectation.js';
import { parseKvMeta } from '../../lib/decode/handoff-parser.js';
import { defaultTicketLimits } from '../../lib/limits.js';
import { parseInstanceMeta } from '../../lib/transfer/peer-description.js';
import { PeerDescriptorCache } from '../../lib/transfer/peer-descriptor-cache.js';
import {
  describeInstance,
  kvBuffers,
  rowMajor,
  sampleKvMeta,
  smallShape,
  ssmBuffers,
  type Shape,
} from '../support/described-instance.js';

type Meta = Record<string, any>;
const blocks = [5, 9, 2];
const hybrid: Shape = { ...smallShape, isHybrid: true };

/** As if it had come over the wire: no two parts share an object. */
function copy(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(copy);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, copy(inner)]));
}

/** A deep, mutable copy of a valid meta, changed. */
function changed(shape: Shape, change: (meta: Meta) => void): Meta {
  const meta = copy(sampleKvMeta(shape)) as Meta;
  change(meta);
  return meta;
}

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
      const parsed = parseKvMeta(structuredClone(sampleKvMeta({ ...shape, hasAddresses })), blocks);
      expect(parsed.ranks).toHaveLength(shape.tpSize * shape.ppSize);
      parsed.ranks.forEach((rank, index) => {
        const [ppRank, tpRank] = [Math.floor(index / shape.tpSize), index % shape.tpSize];
        expect(rank.kv).toEqual(kvBuffers(shape, ppRank, tpRank));
        const { physicalSlots, ...ssm } = ssmBuffers(shape, ppRank, tpRank);
        expect(rank.ssm).toEqual(shape.isHybrid ? ssm : null);
        expect(rank).toMatchObject({
          globalRank: index,
          key: `prefill-a/boot-1/${index}`,
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
        parsed.ranks.map(() => ({ blockIds: Int32Array.from(blocks), slot: shape.isHybrid ? 4 : null })),
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
    const meta = changed({ ...hybrid, hasAddresses: true, tpSize: 2 }, (it) => {
      it['tp_metas'].forEach(reference);
      for (const kind of ['conv', 'recurrent']) it['ssm'][kind].forEach(reference);
      delete it['handoff'];
      it['tp_metas'][0]['agent_name'] = 'prefill-rank0-f00';
      it['tp_metas'][0]['agent_metadata_b64'] = 'AAAA';
    });
    const parsed = parseKvMeta(meta, blocks);
    const shape = { ...hybrid, tpSize: 2 };
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
    const shape = { ...hybrid, ppSize: 2 };
    const described = describeInstance(shape);
    const meta = sampleKvMeta(shape, { ssmRankDescriptors: [null, described.ssmRankDescriptors![1]!] });
    const { ranks } = parseKvMeta(meta, blocks);
    expect(ranks[0]!.ssm!.layout.numLayers).toBe(0);
    expect(ranks[1]!.ssm!.layout.numLayers).toBe(2);
  });

  it('takes a stage without attention layers, whatever its element size would have been', () => {
    const meta = changed({ ...smallShape, ppSize: 2 }, (it) => {
      Object.assign(it['pp_metas'][0].tp_metas, { layer_end: 0, geometry: [], element_size: 1 });
      Object.assign(it['pp_metas'][1].tp_metas, { layer_start: 2 });
    });
    const { ranks } = parseKvMeta(meta, blocks);
    expect(ranks[0]!.kv.buffers).toEqual([]);
    expect(ranks[1]!.kv.buffers).toHaveLength(1);
  });

  it('reads 64-bit values that came as small numbers', () => {
    const meta = changed(hybrid, (it) => {
      it['handoff'].block_generations = [1, 2n, 3];
      it['handoff'].slot_generation = 4;
    });
    expect(parseKvMeta(meta, blocks)).toMatchObject({
      blockGenerations: BigUint64Array.of(1n, 2n, 3n),
      slotGeneration: 4n,
    });
  });

  it('is not led by inherited keys', () => {
    const meta = Object.assign(Object.create({ tp_metas: [] }) as Meta, sampleKvMeta(smallShape));
    expect(parseKvMeta(meta, blocks).ranks).toHaveLength(1);
  });

  const pipelined: Shape = { ...smallShape, ppSize: 2 };
  const tensor: Shape = { ...hybrid, tpSize: 2 };
  const lies: [string, Shape, (meta: Meta) => void, string, string][] = [
    [
      'version',
      smallShape,
      (it) => (it['handoff'].version = 2),
      'TICKET_VERSION',
      'kvMeta.handoff.version: expected 1, got 2',
    ],
    [
      'no version',
      smallShape,
      (it) => delete it['handoff'].version,
      'TICKET_INVALID',
      'kvMeta.handoff.version: expected 1, got undefined',
    ],
    ['handoff', smallShape, (it) => (it['handoff'] = 3), 'TICKET_INVALID', 'kvMeta.handoff: expected a map, got 3'],
    [
      'instance',
      smallShape,
      (it) => (it['handoff'].instance = ''),
      'TICKET_INVALID',
      'kvMeta.handoff.instance: expected a string of 1 to 256 characters, got ""',
    ],
    [
      'incarnation',
      smallShape,
      (it) => (it['handoff'].incarnation = 'x'.repeat(257)),
      'TICKET_INVALID',
      'kvMeta.handoff.incarnation: expected a string of 1 to 256',
    ],
    [
      'handoff id',
      smallShape,
      (it) => (it['handoff'].handoff_id = -1),
      'TICKET_INVALID',
      'kvMeta.handoff.handoff_id: expected an integer in [0, 9007199254740991], got -1',
    ],
    ['epoch', smallShape, (it) => (it['handoff'].epoch = 1.5), 'TICKET_INVALID', 'kvMeta.handoff.epoch: expected'],
    [
      'prompt tokens (field report 101)',
      smallShape,
      (it) => (it['handoff'].prompt_tokens = 49),
      'BLOCK_COUNT_MISMATCH',
      'sourceBlockIds: expected 4 blocks for 49 tokens, got 3',
    ],
    [
      'no prompt tokens',
      smallShape,
      (it) => delete it['handoff'].prompt_tokens,
      'TICKET_INVALID',
      'kvMeta.handoff.prompt_tokens: expected an integer in [1, 2147483647], got undefined',
    ],
    [
      'generations',
      smallShape,
      (it) => it['handoff'].block_generations.pop(),
      'TICKET_INVALID',
      'kvMeta.handoff.block_generations: expected one for each of 3 blocks, got an array of 2',
    ],
    [
      'more generations',
      smallShape,
      (it) => it['handoff'].block_generations.push(1n),
      'TICKET_INVALID',
      'kvMeta.handoff.block_generations: expected a list of at most 3, got an array of 4',
    ],
    [
      'a generation',
      smallShape,
      (it) => (it['handoff'].block_generations[1] = -1n),
      'TICKET_INVALID',
      'kvMeta.handoff.block_generations[1]: expected an unsigned 64-bit integer, got -1n',
    ],
    [
      'a large generation',
      smallShape,
      (it) => (it['handoff'].block_generations[1] = 1n << 64n),
      'TICKET_INVALID',
      'kvMeta.handoff.block_generations[1]: expected an unsigned 64-bit integer',
    ],
    [
      'a text generation',
      smallShape,
      (it) => (it['handoff'].block_generations[2] = '5'),
      'TICKET_INVALID',
      'kvMeta.handoff.block_generations[2]: expected an unsigned 64-bit integer, got "5"',
    ],
    [
      'slot generation',
      smallShape,
      (it) => (it['handoff'].slot_generation = 1n),
      'TICKET_INVALID',
      'kvMeta.handoff.slot_generation: expected null without SSM state, got 1n',
    ],
    [
      'resume tokens',
      smallShape,
      (it) => delete it['resume_tokens'],
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_tokens: expected a list of at most 64, got undefined',
    ],
    [
      'no resume token',
      smallShape,
      (it) => (it['resume_tokens'] = []),
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_tokens: expected at least the sampled token, got an array of 0',
    ],
    [
      'a resume token',
      smallShape,
      (it) => (it['resume_tokens'][1] = 2 ** 31),
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_tokens[1]: expected a token id in [0, 2147483647], got 2147483648',
    ],
    [
      'a negative token',
      smallShape,
      (it) => (it['resume_tokens'][0] = -1),
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_tokens[0]: expected a token id',
    ],
    [
      'log-probs',
      smallShape,
      (it) => (it['resume_log_probs'] = []),
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_log_probs: expected one finite number, got an array of 0',
    ],
    [
      'two log-probs',
      smallShape,
      (it) => (it['resume_log_probs'] = [1, 2]),
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_log_probs: expected a list of at most 1, got an array of 2',
    ],
    [
      'a log-prob',
      smallShape,
      (it) => (it['resume_log_probs'] = [NaN]),
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_log_probs: expected one finite number',
    ],
    [
      'block id',
      smallShape,
      (it) => (it['block_ids'] = [5, 101, 2]),
      'TICKET_INVALID',
      'kvMeta: block 1: expected an id in [0, 100], got 101',
    ],
    [
      'block twice',
      smallShape,
      (it) => (it['block_ids'] = [5, 2, 5]),
      'TICKET_INVALID',
      'kvMeta: blocks: expected each block once, got an array of 3',
    ],
    [
      'no block',
      pipelined,
      (it) => delete it['pp_metas'][0].block_ids,
      'TICKET_INVALID',
      'kvMeta.pp_metas[0].tp_metas: blocks: expected at least one, got an array of 0',
    ],
    [
      'a stage with other blocks',
      pipelined,
      (it) => (it['pp_metas'][1].block_ids = [1, 2]),
      'TICKET_INVALID',
      'kvMeta.pp_metas[1].tp_metas: blocks: expected 3, as on the first rank, got an array of 2',
    ],
    [
      'other source blocks',
      pipelined,
      (it) => it['pp_metas'].forEach((stage: Meta) => stage['block_ids'].pop()),
      'TICKET_INVALID',
      'sourceBlockIds: expected 2 blocks, as the ranks have, got an array of 3',
    ],
    [
      'no rank',
      pipelined,
      (it) => (it['pp_metas'] = []),
      'TICKET_INVALID',
      'kvMeta: expected at least one rank, got an array of 0',
    ],
    [
      'head_dim',
      tensor,
      (it) => (it['tp_metas'][1].head_dim = 'x'),
      'TICKET_INVALID',
      'kvMeta.tp_metas[1].head_dim: expected an integer in [1, 2147483647], got "x"',
    ],
    [
      'another head_dim',
      tensor,
      (it) => (it['tp_metas'][1].head_dim = 9),
      'TICKET_INVALID',
      'kvMeta.tp_metas[1].head_dim: expected 8, as on the other ranks, got 9',
    ],
    [
      'rank twice',
      tensor,
      (it) => (it['tp_metas'][1].global_rank = 0),
      'TICKET_INVALID',
      'kvMeta.tp_metas[1].global_rank: expected a rank not listed before, got 0',
    ],
    [
      'layers',
      tensor,
      (it) => (it['tp_metas'][1].num_layers_global = 5),
      'TICKET_INVALID',
      'kvMeta.tp_metas[1].num_layers_global: expected 4, as on the other ranks, got 5',
    ],
    [
      'element size',
      tensor,
      (it) => ((it['tp_metas'][1].element_size = 1), (it['tp_metas'][1].geometry[0].element_size = 1)),
      'TICKET_INVALID',
      'kvMeta.tp_metas[1].element_size: expected 2, as on the other ranks, got 1',
    ],
    [
      'tp_rank',
      smallShape,
      (it) => (it['tp_rank'] = 1),
      'TICKET_INVALID',
      'kvMeta.tp_rank: expected an integer in [0, 0], got 1',
    ],
    [
      'pp_rank',
      smallShape,
      (it) => (it['pp_rank'] = 1),
      'TICKET_INVALID',
      'kvMeta.pp_rank: expected an integer in [0, 0], got 1',
    ],
    [
      'layer_end',
      smallShape,
      (it) => (it['layer_end'] = 5),
      'TICKET_INVALID',
      'kvMeta.layer_end: expected an integer in [0, 4], got 5',
    ],
    [
      'layer_start',
      smallShape,
      (it) => (it['layer_start'] = 5),
      'TICKET_INVALID',
      'kvMeta.layer_start: expected an integer in [0, 4], got 5',
    ],
    [
      'no layout',
      smallShape,
      (it) => delete it['tp_size'],
      'TICKET_INVALID',
      'kvMeta.tp_size: expected an integer in [1, 1048576], got undefined',
    ],
    [
      'heads',
      smallShape,
      (it) => (it['num_kv_heads_global'] = 8),
      'TICKET_INVALID',
      'kvMeta.heads_per_partition: expected 8, as the layout implies, got 4',
    ],
    [
      'num_blocks',
      smallShape,
      (it) => (it['num_blocks'] = 200),
      'TICKET_INVALID',
      'kvMeta.geometry[0].axes[2][1]: expected 200, got 101',
    ],
    [
      'no num_blocks',
      smallShape,
      (it) => delete it['num_blocks'],
      'TICKET_INVALID',
      'kvMeta.num_blocks: expected an integer in [1, 2147483647], got undefined',
    ],
    [
      'tokens',
      smallShape,
      (it) => (it['tokens_per_block'] = 20),
      'TICKET_INVALID',
      'kvMeta.geometry[0].axes[3][1]: expected 20, got 16',
    ],
    [
      'neither geometry nor slices',
      smallShape,
      (it) => delete it['geometry'],
      'TICKET_INVALID',
      'kvMeta: expected a geometry, or slices of one row-major buffer [plane, layer, block, token, head, dim], got an object',
    ],
    [
      'geometry',
      smallShape,
      (it) => (it['geometry'] = {}),
      'TICKET_INVALID',
      'kvMeta.geometry: expected a list of at most 1024, got an object',
    ],
    [
      'a buffer',
      smallShape,
      (it) => (it['geometry'][0] = null),
      'TICKET_INVALID',
      'kvMeta.geometry[0]: expected a map, got null',
    ],
    [
      'region',
      smallShape,
      (it) => (it['geometry'][0].region = 1),
      'TICKET_INVALID',
      'kvMeta.geometry[0].region: expected an integer in [0, 0], got 1',
    ],
    [
      'offset',
      smallShape,
      (it) => (it['geometry'][0].offset_bytes = 2),
      'TICKET_INVALID',
      'kvMeta.geometry[0]: expected a buffer inside the 827392 bytes of region 0, got 827394',
    ],
    [
      'region bytes',
      smallShape,
      (it) => (it['regions'][0].bytes -= 1),
      'TICKET_INVALID',
      'kvMeta.geometry[0]: expected a buffer inside the 827391 bytes of region 0, got 827392',
    ],
    [
      'a stride beyond',
      smallShape,
      (it) => (it['geometry'][0].axes[0][2] = 2 ** 52),
      'TICKET_INVALID',
      'kvMeta.geometry[0]: expected a buffer inside',
    ],
    [
      'a stride of 0',
      smallShape,
      (it) => (it['geometry'][0].axes[3][2] = 0),
      'TICKET_INVALID',
      'kvMeta.geometry[0].axes[3][2]: expected a stride of 1 byte or more, got 0',
    ],
    [
      'a size of 0',
      smallShape,
      (it) => (it['geometry'][0].axes[0][1] = 0),
      'TICKET_INVALID',
      'kvMeta.geometry[0].axes[0][1]: expected a size in [1, 2147483647], got 0',
    ],
    [
      'an axis',
      smallShape,
      (it) => (it['geometry'][0].axes[0][0] = 'slot'),
      'TICKET_INVALID',
      'kvMeta.geometry[0].axes[0][0]: expected each of plane, layer, block, token, head, dim at most once, got "slot"',
    ],
    [
      'an axis twice',
      smallShape,
      (it) => (it['geometry'][0].axes[1][0] = 'plane'),
      'TICKET_INVALID',
      'kvMeta.geometry[0].axes[1][0]: expected each of',
    ],
    [
      'an axis without stride',
      smallShape,
      (it) => it['geometry'][0].axes[1].pop(),
      'TICKET_INVALID',
      'kvMeta.geometry[0].axes[1]: expected [name, size, stride in bytes], got an array of 2',
    ],
    [
      'no block axis',
      smallShape,
      (it) => it['geometry'][0].axes.splice(2, 1),
      'TICKET_INVALID',
      'kvMeta.geometry[0].axes: expected an axis named block, got an array of 5',
    ],
    [
      'too many layers',
      smallShape,
      (it) => (it['layer_end'] = 3),
      'TICKET_INVALID',
      'kvMeta.geometry[0].layer_start: expected an integer in [0, -1], got 0',
    ],
    [
      'a buffer of other layers',
      { ...smallShape, isPerLayer: true },
      (it) => (it['geometry'][3].layer_start = 4),
      'TICKET_INVALID',
      'kvMeta.geometry[3].layer_start: expected an integer in [0, 3], got 4',
    ],
    [
      'a buffer of another element size',
      smallShape,
      (it) => (it['geometry'][0].element_size = 4),
      'TICKET_INVALID',
      'kvMeta.geometry[0].element_size: expected an integer in [2, 2], got 4',
    ],
    [
      'region kind',
      smallShape,
      (it) => (it['regions'][0].kind = 'disk'),
      'TICKET_INVALID',
      'kvMeta.regions[0].kind: expected "host" or "cuda", got "disk"',
    ],
    [
      'a region',
      smallShape,
      (it) => (it['regions'][0] = 7),
      'TICKET_INVALID',
      'kvMeta.regions[0]: expected a map, got 7',
    ],
    [
      'transports',
      smallShape,
      (it) => (it['transports'] = []),
      'TICKET_INVALID',
      'kvMeta.transports: expected a map, got an array of 0',
    ],
    [
      'many transports',
      smallShape,
      (it) => (it['transports'] = Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`t${i}`, 0]))),
      'TICKET_INVALID',
      'kvMeta.transports: expected at most 16 transports, got an array of 17',
    ],
    [
      'a transport without name',
      smallShape,
      (it) => (it['transports'] = { '': 0 }),
      'TICKET_INVALID',
      'kvMeta.transports: expected names of 1 to 256 characters, got ""',
    ],
    [
      'agent name',
      smallShape,
      (it) => (it['agent_name'] = 7),
      'TICKET_INVALID',
      'kvMeta.agent_name: expected a string of 1 to 256 characters, got 7',
    ],
    [
      'a base address',
      { ...smallShape, hasAddresses: true },
      (it) => (it['base_addr'] = -1n),
      'TICKET_INVALID',
      'kvMeta.base_addr: expected an unsigned 64-bit integer, got -1n',
    ],
    [
      'num_outer',
      { ...smallShape, hasAddresses: true },
      (it) => delete it['num_outer'],
      'TICKET_INVALID',
      'kvMeta.num_outer: expected an integer in [0, 2147483647], got undefined',
    ],
    [
      'shared heads',
      { ...smallShape, tpSize: 8 },
      (it) => (it['tp_metas'][3].heads_per_partition = 2),
      'TICKET_INVALID',
      'kvMeta.tp_metas[3].heads_per_partition: expected 1, as the layout implies, got 2',
    ],
    ['ssm', hybrid, (it) => (it['ssm'] = []), 'SSM_METADATA_INVALID', 'kvMeta.ssm: expected a map, got an array of 0'],
    [
      'no recurrent state',
      hybrid,
      (it) => delete it['ssm'].recurrent,
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.recurrent: expected descriptors, got undefined',
    ],
    [
      'no conv state',
      hybrid,
      (it) => (it['ssm'].conv = null),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv: expected descriptors, got null',
    ],
    [
      'no SSM rank',
      hybrid,
      (it) => (it['ssm'] = { conv: [], recurrent: [] }),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv: expected at least one rank, got an array of 0',
    ],
    [
      'fewer recurrent ranks',
      tensor,
      (it) => it['ssm'].recurrent.pop(),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.recurrent: expected as many ranks as conv has, 2, got an array of 1',
    ],
    [
      'no slot',
      hybrid,
      (it) => (it['ssm'].conv.block_ids = []),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv.block_ids: expected one slot, got an array of 0',
    ],
    [
      'two slots',
      hybrid,
      (it) => (it['ssm'].recurrent.block_ids = [4, 5]),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.recurrent.block_ids: expected one slot, got an array of 2',
    ],
    [
      'another slot',
      tensor,
      (it) => (it['ssm'].recurrent[1].block_ids = [5]),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.recurrent[1].block_ids[0]: expected 4, as on the first rank, got 5',
    ],
    [
      'slot range',
      hybrid,
      (it) => (it['ssm'].conv.block_ids = it['ssm'].recurrent.block_ids = [9]),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv.block_ids[0]: expected a slot in [0, 8], got 9',
    ],
    [
      'ssm_layout',
      hybrid,
      (it) => delete it['ssm'].conv.ssm_layout,
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv.ssm_layout: expected a map, got undefined',
    ],
    [
      'ssm rank',
      hybrid,
      (it) => (it['ssm'].conv.ssm_layout.global_rank = 3),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv.ssm_layout.global_rank: expected a rank with an attention descriptor, got 3',
    ],
    [
      'ssm rank twice',
      tensor,
      (it) => (it['ssm'].conv[1].ssm_layout.global_rank = 0),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv[1].ssm_layout.global_rank: expected a rank not listed before, got 0',
    ],
    [
      'recurrent of another rank',
      tensor,
      (it) => (it['ssm'].recurrent[1].ssm_layout.global_rank = 0),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.recurrent[1].ssm_layout: expected {',
    ],
    [
      'a dim',
      hybrid,
      (it) => (it['ssm'].conv.ssm_layout.dims.d_conv = 0),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv.ssm_layout.dims.d_conv: expected an integer in [1, 16777216], got 0',
    ],
    [
      'groups',
      tensor,
      (it) => (it['ssm'].conv[0].ssm_layout.dims.ngroups = 3),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv[0].ssm_layout.dims.ngroups: expected a multiple of tp_size 2, got 3',
    ],
    [
      'width',
      hybrid,
      (it) => (it['ssm'].conv.heads_per_partition = 40),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv.heads_per_partition: expected 48, as the layout implies, got 40',
    ],
    [
      'heads of the recurrent state',
      hybrid,
      (it) => (it['ssm'].recurrent.heads_per_partition = 4),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.recurrent.heads_per_partition: expected 8',
    ],
    [
      'slots',
      hybrid,
      (it) => ((it['ssm'].recurrent.num_blocks = 8), (it['ssm'].recurrent.geometry[0].axes[1][1] = 8)),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.recurrent.num_blocks: expected 9, as in conv, got 8',
    ],
    [
      'a state in two buffers',
      hybrid,
      (it) => it['ssm'].conv.geometry.push(it['ssm'].conv.geometry[0]),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv.geometry: expected one buffer, got an array of 2',
    ],
    [
      'a state of fewer layers',
      hybrid,
      (it) => (it['ssm'].conv.geometry[0].axes[0][1] = 1),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv.geometry: expected all 2 layers in one buffer, got 1',
    ],
    [
      'no bytes of a state',
      hybrid,
      (it) => delete it['ssm'].conv.geometry,
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv: expected a geometry, or slices of one row-major buffer [layer, slot, channel, dim], got an object',
    ],
    [
      'an SSM region',
      hybrid,
      (it) => (it['ssm'].conv.geometry[0].region = 3),
      'TICKET_INVALID',
      'kvMeta.ssm.conv.geometry[0].region: expected an integer in [0, 2], got 3',
    ],
    [
      'dims of another rank',
      tensor,
      (it) => {
        for (const kind of ['conv', 'recurrent']) it['ssm'][kind][1].ssm_layout.dims.d_conv = 4;
      },
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv[1].ssm_layout.dims: expected {',
    ],
    [
      'element size of another rank',
      tensor,
      (it) => (it['ssm'].conv[1].element_size = it['ssm'].conv[1].geometry[0].element_size = 1),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.conv[1].element_size: expected 2, as on the first rank, got 1',
    ],
    [
      'element size of another recurrent rank',
      tensor,
      (it) => (it['ssm'].recurrent[1].element_size = it['ssm'].recurrent[1].geometry[0].element_size = 1),
      'SSM_METADATA_INVALID',
      'kvMeta.ssm.recurrent[1].element_size: expected 4, as on the first rank, got 1',
    ],
  ];

  it.each(lies)('refuses a lie about %s', (_what, shape, lie, code, message) => {
    const meta = changed(shape, lie);
    expect(() => parseKvMeta(meta, blocks)).toThrow(
      expect.objectContaining({ code, message: expect.stringContaining(message) as string }),
    );
    // A peer that was believed before is not believed now.
    const cache = new PeerDescriptorCache();
    parseKvMeta(sampleKvMeta(shape), blocks, { cache });
    expect(() => parseKvMeta(meta, blocks, { cache })).toThrow(expect.objectContaining({ code }));
  });

  it('bounds what it reads', () => {
    const limits = { ...defaultTicketLimits, blocksMax: 2 };
    expect(() => parseKvMeta(sampleKvMeta(smallShape), blocks, { limits })).toThrow(
      'expected a list of at most 2 block ids',
    );
  });

  it.each([[null], [[]], ['x'], [7n]])('refuses %p as metadata', (meta) => {
    expect(() => parseKvMeta(meta, blocks)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
  });

  it('does not derive axes from slices that do not fit', () => {
    for (const key of ['num_outer', 'outer_stride_bytes', 'bytes_per_slice'] as const) {
      const meta = changed({ ...smallShape, hasAddresses: true }, (it) => {
        delete it['geometry'];
        it[key] += 1;
      });
      expect(() => parseKvMeta(meta, blocks)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
    }
    const past = changed({ ...smallShape, hasAddresses: true }, (it) => {
      delete it['geometry'];
      it['base_addr'] = (1n << 64n) - 827391n;
    });
    expect(() => parseKvMeta(past, blocks)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
    past['base_addr'] -= 1n;
    expect(parseKvMeta(past, blocks).ranks[0]!.regions[0]!.byteLength).toBe(827392);
  });

  it('takes buffers of one plane from slices', () => {
    const meta = changed({ ...smallShape, hasAddresses: true }, (it) => {
      delete it['geometry'];
      it['num_outer'] = 4;
    });
    expect(parseKvMeta(meta, blocks).ranks[0]!.kv.buffers[0]!.axes).toEqual(
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

describe('PeerDescriptorCache', () => {
  const parse = (cache: PeerDescriptorCache, meta: unknown, ids = blocks) => parseKvMeta(meta, ids, { cache });

  it('gives the same ranks for the same description and checks it once', () => {
    const cache = new PeerDescriptorCache();
    const shape = { ...hybrid, tpSize: 2, ppSize: 2 };
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
      const { ranks } = parse(cache, changed(smallShape, change));
      expect(ranks).not.toBe(first.ranks);
      expect(ranks[0]!.key).not.toBe(first.ranks[0]!.key);
    }
    expect(cache.checked).toBe(1 + changes.length);
  });

  it('tells incarnations apart', () => {
    const cache = new PeerDescriptorCache();
    const first = parse(cache, sampleKvMeta(smallShape));
    const second = parse(
      cache,
      changed(smallShape, (it) => (it['handoff'].incarnation = 'boot-2')),
    );
    expect(second.ranks).not.toBe(first.ranks);
    expect(cache.size).toBe(2);
  });

  it('keeps a copy: what the caller does to its objects later changes nothing', () => {
    const cache = new PeerDescriptorCache();
    const meta = changed(smallShape, () => undefined);
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
        changed(smallShape, (it) => {
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
    const large = changed(smallShape, (it) => (it['transports'].host.blob = 'x'.repeat(2000)));
    expect(parse(cache, large).ranks).not.toBe(parse(cache, large).ranks);
    expect(cache.size).toBe(0);
    let deep: unknown = 1;
    for (let depth = 0; depth < 1000; depth++) deep = { deep };
    const nested = changed(smallShape, (it) => (it['transports'].host.deep = deep));
    expect(new PeerDescriptorCache().size).toBe(0);
    const roomy = new PeerDescriptorCache();
    parse(roomy, nested);
    expect(roomy.size).toBe(0);
  });
});

describe('parseInstanceMeta', () => {
  it('reads registered ranks, each with its own SSM state', () => {
    const shape = { ...hybrid, tpSize: 2 };
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

describe('checkExpectation', () => {
  const expected = {
    promptTokens: 40,
    blockSize: 16,
    resumeTokens: 2,
    isHybrid: false,
    wantsLogProbs: false,
    epoch: 3,
  };
  const parsed = parseKvMeta(sampleKvMeta(smallShape), blocks);

  it('lets the handoff through that was asked for', () => {
    expect(() => checkExpectation(parsed, expected)).not.toThrow();
    const withState = parseKvMeta(sampleKvMeta(hybrid, { resumeLogProbs: [-1] }), blocks);
    expect(() => checkExpectation(withState, { ...expected, isHybrid: true, wantsLogProbs: true })).not.toThrow();
    const anonymous = parseKvMeta(sampleKvMeta(smallShape, { handoff: null }), blocks);
    expect(() => checkExpectation(anonymous, { ...expected, promptTokens: 48, epoch: 9 })).not.toThrow();
  });

  it.each([
    [
      { promptTokens: 41 },
      'BLOCK_COUNT_MISMATCH',
      'kvMeta.handoff.prompt_tokens: expected 41, the length of the prompt, got 40',
    ],
    [{ blockSize: 32 }, 'INCOMPATIBLE', "kvMeta.tokens_per_block: expected 32, this engine's block size, got 16"],
    [
      { resumeTokens: 1 },
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_tokens: expected 1 tokens (one sampled, the rest proposals), got an array of 2',
    ],
    [{ isHybrid: true }, 'SSM_METADATA_INVALID', 'kvMeta.ssm: expected SSM state, this model has some, got undefined'],
    [
      { wantsLogProbs: true },
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_log_probs: expected the log-probability of the sampled token, got null',
    ],
    [{ epoch: 4 }, 'EPOCH_MISMATCH', "kvMeta.handoff.epoch: expected 4, the epoch of this engine's weights, got 3"],
  ])('refuses when %j was expected', (difference, code, message) => {
    expect(() => checkExpectation(parsed, { ...expected, ...difference })).toThrow(
      expect.objectContaining({ code, message }),
    );
  });

  it('counts blocks for a peer that does not say its prompt', () => {
    const anonymous = parseKvMeta(sampleKvMeta(smallShape, { handoff: null }), blocks);
    for (const promptTokens of [32, 49]) {
      expect(() => checkExpectation(anonymous, { ...expected, promptTokens })).toThrow(
        expect.objectContaining({ code: 'BLOCK_COUNT_MISMATCH' }),
      );
    }
  });

  it('refuses SSM state that this model has no place for', () => {
    expect(() => checkExpectation(parseKvMeta(sampleKvMeta(hybrid), blocks), expected)).toThrow(
      expect.objectContaining({
        code: 'SSM_METADATA_INVALID',
        message: 'kvMeta.ssm: expected none, this model has no SSM state, got 4',
      }),
    );
  });
});
