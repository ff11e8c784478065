/**
 * Block arithmetic of an imported request. The reference's cases run in the conformance suite; here the edges and one
 * independent restatement.
 */
import fc from 'fast-check';
import { admissionBlocks, decodeAdmission } from '../../lib/decode/decode-admission.js';

describe('decodeAdmission', () => {
  it('needs one more block at an exact boundary, placed by index (field report 79)', () => {
    expect(decodeAdmission({ promptTokens: 8, resumeTokens: 1, blockSize: 4 })).toEqual({
      promptBlocks: 2,
      continuationBlocks: 1,
      hashableBlocks: 2,
      lastBlockOffset: 0,
      positions: [8],
      blockIndexOfPosition: [2],
      offsetInBlock: [0],
    });
  });

  it('places every resume token where counting tokens one by one puts it', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 40 }),
        fc.integer({ min: 1, max: 12 }),
        fc.integer({ min: 1, max: 9 }),
        (p, r, b) => {
          const result = decodeAdmission({ promptTokens: p, resumeTokens: r, blockSize: b });
          const slots: [number, number][] = [];
          for (let block = 0; slots.length < p + r; block++)
            for (let offset = 0; offset < b; offset++) slots.push([block, offset]);
          const places = slots.slice(p, p + r);
          expect(result.blockIndexOfPosition).toEqual(places.map(([block]) => block));
          expect(result.offsetInBlock).toEqual(places.map(([, offset]) => offset));
          expect(result.lastBlockOffset).toBe(places.at(-1)![1]);
          const used = new Set(slots.slice(0, p).map(([block]) => block));
          expect(result.promptBlocks).toBe(used.size);
          expect(result.continuationBlocks).toBe(
            new Set(places.map(([block]) => block).filter((block) => !used.has(block))).size,
          );
          const isFull = (block: number) => slots.filter(([other], index) => other === block && index < p).length === b;
          expect(result.hashableBlocks).toBe([...used].filter(isFull).length);
          expect(admissionBlocks({ promptTokens: p, resumeTokens: r, blockSize: b })).toEqual({
            promptBlocks: result.promptBlocks,
            continuationBlocks: result.continuationBlocks,
            hashableBlocks: result.hashableBlocks,
          });
        },
      ),
    );
  });

  it('takes sequences up to the last 32-bit position', () => {
    const { positions } = decodeAdmission({ promptTokens: 2147483583, resumeTokens: 64, blockSize: 2147483647 });
    expect(positions.at(-1)).toBe(2147483646);
  });

  it.each([
    [
      { promptTokens: -1, resumeTokens: 1, blockSize: 4 },
      'promptTokens: expected an integer in [0, 2147483583], got -1',
    ],
    [
      { promptTokens: 2 ** 31, resumeTokens: 1, blockSize: 4 },
      'promptTokens: expected an integer in [0, 2147483583], got 2147483648',
    ],
    [{ promptTokens: 1, resumeTokens: 0, blockSize: 4 }, 'resumeTokens: expected an integer in [1, 64], got 0'],
    [{ promptTokens: 1, resumeTokens: 65, blockSize: 4 }, 'resumeTokens: expected an integer in [1, 64], got 65'],
    [{ promptTokens: 1, resumeTokens: 1, blockSize: 0 }, 'blockSize: expected an integer in [1, 2147483647], got 0'],
    [
      { promptTokens: 1.5, resumeTokens: 1, blockSize: 4 },
      'promptTokens: expected an integer in [0, 2147483583], got 1.5',
    ],
  ])('refuses %j', (input, message) => {
    expect(() => decodeAdmission(input)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID', message }));
  });
});
