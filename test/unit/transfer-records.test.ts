/**
 * Shapes of transfer metadata beyond the reference's vectors: what is refused, with its path, and that nothing given is
 * ever changed.
 */
import { dropPrefix, handoffBlockCount, transferPeerRecords } from '../../lib/prefill/transfer-records.js';
import { defaultTicketLimits } from '../../lib/limits.js';
import { deepFreeze } from '../../lib/json.js';

describe('transferPeerRecords', () => {
  it("prefers a leaf's own blocks to its stage's, in every shape", () => {
    const records = transferPeerRecords(
      {
        pp_metas: [
          { tp_metas: [{ block_ids: [1] }, {}], block_ids: [2] },
          { block_ids: [3], rank: 7 },
        ],
      },
      [9],
    );
    expect(records.map(({ blockIds }) => [...blockIds])).toEqual([[1], [2], [3]]);
    expect(records.map(({ path }) => path)).toEqual([
      'kvMeta.pp_metas[0].tp_metas[0]',
      'kvMeta.pp_metas[0].tp_metas[1]',
      'kvMeta.pp_metas[1]',
    ]);
    expect(
      transferPeerRecords({ tp_metas: [{ block_ids: [1] }, {}], block_ids: [5] }, [9]).map((r) => [...r.blockIds]),
    ).toEqual([[1], [9]]);
    expect(transferPeerRecords({ block_ids: [4] }, [9])[0]?.blockIds).toEqual([4]);
  });

  it('takes the largest id there is', () => {
    expect(transferPeerRecords({ block_ids: [2147483647] }, [])[0]?.blockIds).toEqual([2147483647]);
  });

  it('reads source ids from a typed array too', () => {
    expect(transferPeerRecords({}, Int32Array.of(3, 4))[0]?.blockIds).toEqual(Int32Array.of(3, 4));
  });

  it('does not take an inherited key for a field', () => {
    const leaf = Object.create({ block_ids: [1], tp_metas: [] }) as object;
    expect(transferPeerRecords(leaf, [9])).toEqual([{ descriptor: leaf, blockIds: [9], path: 'kvMeta' }]);
  });

  it.each([
    [{ tp_metas: [{}, 3] }, 'kvMeta.tp_metas[1]: expected a descriptor (a map), got 3'],
    [{ tp_metas: null }, 'kvMeta.tp_metas: expected a descriptor (a map), got null'],
    [[[]], 'kvMeta[0]: expected a descriptor (a map), got an array of 0'],
    [null, 'kvMeta: expected a descriptor (a map), got null'],
    ['meta', 'kvMeta: expected a descriptor (a map), got "meta"'],
    [{ pp_metas: {} }, 'kvMeta.pp_metas: expected a list of stages, got an object'],
    [{ pp_metas: [7] }, 'kvMeta.pp_metas[0]: expected a map, got 7'],
    [{ pp_metas: [{ tp_metas: [1] }] }, 'kvMeta.pp_metas[0].tp_metas[0]: expected a descriptor (a map), got 1'],
    [
      { pp_metas: [{ block_ids: 3 }] },
      'kvMeta.pp_metas[0].block_ids: expected a list of at most 1048576 block ids, got 3',
    ],
    [
      { tp_metas: [{ block_ids: [1, -1] }] },
      'kvMeta.tp_metas[0].block_ids[1]: expected a block id in [0, 2147483647], got -1',
    ],
    [{ block_ids: [1.5] }, 'kvMeta.block_ids[0]: expected a block id in [0, 2147483647], got 1.5'],
    [{ block_ids: [2 ** 31] }, 'kvMeta.block_ids[0]: expected a block id in [0, 2147483647], got 2147483648'],
    [{ block_ids: ['1'] }, 'kvMeta.block_ids[0]: expected a block id in [0, 2147483647], got "1"'],
    [{ block_ids: [true] }, 'kvMeta.block_ids[0]: expected a block id in [0, 2147483647], got true'],
    [{ block_ids: [NaN] }, 'kvMeta.block_ids[0]: expected a block id in [0, 2147483647], got NaN'],
  ])('refuses %j', (meta, message) => {
    expect(() => transferPeerRecords(meta, [0])).toThrow(expect.objectContaining({ code: 'TICKET_INVALID', message }));
  });

  it('refuses source ids that are none', () => {
    for (const ids of [null, 'x', { length: 1 }, [null]]) {
      expect(() => transferPeerRecords({}, ids)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
      expect(() => transferPeerRecords({ pp_metas: [] }, ids)).toThrow(
        expect.objectContaining({ code: 'TICKET_INVALID' }),
      );
    }
  });

  it('bounds ranks and blocks', () => {
    const limits = { ...defaultTicketLimits, ranksMax: 2, blocksMax: 3 };
    expect(transferPeerRecords([{}, {}], [1, 2, 3], limits)).toHaveLength(2);
    expect(() => transferPeerRecords([{}, {}, {}], [], limits)).toThrow(
      'kvMeta: expected at most 2 ranks, got an array of 3',
    );
    expect(() => transferPeerRecords({ pp_metas: [{}, {}, {}] }, [], limits)).toThrow(
      'kvMeta.pp_metas[2]: expected at most 2 ranks, got an array of 1',
    );
    expect(() => transferPeerRecords({}, [1, 2, 3, 4], limits)).toThrow(
      'sourceBlockIds: expected a list of at most 3 block ids',
    );
  });

  it('counts no blocks where there is no record', () => {
    expect(handoffBlockCount({ pp_metas: [] }, [1])).toBe(0);
    expect(handoffBlockCount([], [1])).toBe(0);
  });
});

describe('dropPrefix', () => {
  it('leaves the ssm subtree and everything it was given alone', () => {
    const meta = deepFreeze({
      pp_metas: [
        { tp_metas: [{ rank: 0, block_ids: [1, 2] }], block_ids: [1, 2] },
        { tp_metas: { rank: 1 }, block_ids: [3, 4] },
      ],
      ssm: { conv: [{ block_ids: [7] }], recurrent: [{ block_ids: [7] }] },
      handoff: { block_generations: [5n, 6n] },
    });
    const before = structuredClone(meta);
    const dropped = dropPrefix(meta, [1, 2], 1);
    expect(dropped).toEqual({
      kvMeta: {
        pp_metas: [
          { tp_metas: [{ rank: 0, block_ids: [2] }], block_ids: [2] },
          { tp_metas: { rank: 1 }, block_ids: [4] },
        ],
        ssm: meta.ssm,
        handoff: meta.handoff,
      },
      sourceBlockIds: [2],
    });
    expect(meta).toEqual(before);
  });

  it("trims each rank's own list (spec 14.1, item 34)", () => {
    const { kvMeta } = dropPrefix({ tp_metas: [{ block_ids: [1, 2] }, { block_ids: [3, 4] }] }, [1, 2], 1);
    expect(kvMeta).toEqual({ tp_metas: [{ block_ids: [2] }, { block_ids: [4] }] });
  });

  it('pairs by index, never by tail: what it leaves out are the first blocks of every list (field report 79)', () => {
    const { kvMeta, sourceBlockIds } = dropPrefix({ block_ids: [10, 11, 12] }, [20, 21, 22, 23], 2);
    expect(kvMeta).toEqual({ block_ids: [12] });
    expect(sourceBlockIds).toEqual([22, 23]);
  });

  it.each([-1, 0.5, NaN, Infinity])('refuses a prefix of %p', (prefix) => {
    expect(() => dropPrefix({}, [], prefix)).toThrow(
      expect.objectContaining({
        code: 'ARGUMENT_INVALID',
        message: `prefix: expected a number of blocks, 0 or more, got ${prefix}`,
      }),
    );
  });

  it('refuses to leave out more blocks than a list has', () => {
    expect(() => dropPrefix({ pp_metas: [{ block_ids: [1, 2] }, { block_ids: [1] }] }, [1, 2], 2)).toThrow(
      expect.objectContaining({
        code: 'TICKET_INVALID',
        message: 'kvMeta.pp_metas[1].block_ids: expected at least 2 blocks, as many as are left out, got an array of 1',
      }),
    );
  });

  it('gives back the very metadata when nothing is left out', () => {
    const meta = { tp_metas: [{ block_ids: [1] }] };
    const ids = [1];
    const { kvMeta, sourceBlockIds } = dropPrefix(meta, ids, 0);
    expect(kvMeta).toBe(meta);
    expect(sourceBlockIds).toEqual(ids);
    expect(sourceBlockIds).not.toBe(ids);
  });

  it('passes over what is no map, as the reference does', () => {
    expect(dropPrefix({ tp_metas: [7, null] }, [1, 2], 1)).toEqual({
      kvMeta: { tp_metas: [7, null] },
      sourceBlockIds: [2],
    });
  });

  it('bounds nesting', () => {
    const nested = (depth: number): unknown => (depth === 0 ? { block_ids: [1] } : [nested(depth - 1)]);
    expect(dropPrefix(nested(8), [1], 1).sourceBlockIds).toEqual([]);
    expect(() => dropPrefix(nested(9), [1], 1)).toThrow('expected at most 8 levels, got an object');
    const inMaps = (depth: number): unknown => (depth === 0 ? {} : { tp_metas: inMaps(depth - 1) });
    expect(() => dropPrefix(inMaps(9), [1], 1)).toThrow('kvMeta.tp_metas.tp_metas');

    let meta: unknown = { block_ids: [1] };
    for (let depth = 0; depth < 100_000; depth++) meta = [meta];
    expect(() => dropPrefix(meta, [1], 1)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
  });

  it('keeps a key named __proto__ a plain key', () => {
    const meta = JSON.parse('{"__proto__": {"polluted": true}, "block_ids": [1, 2]}') as { block_ids: number[] };
    const { kvMeta } = dropPrefix(meta, [1, 2], 1);
    expect(Object.getPrototypeOf(kvMeta)).toBe(Object.prototype);
    expect(JSON.stringify(kvMeta)).toBe('{"__proto__":{"polluted":true},"block_ids":[2]}');
  });
});
