/** Promise: of an ordered table the first transport that both ends can use wins, and a refusal names every reason. */
import { orderTransports, selectTransport, type TransportEntry } from '../../lib/transfer/transport-registry.js';
import type { TransportGrant } from '../../lib/transfer/transport.js';

function entry(name: string, whyNot: string | null = null): TransportEntry & { readonly asked: TransportGrant[][] } {
  const asked: TransportGrant[][] = [];
  return {
    name,
    asked,
    create: () => {
      throw new Error('selection builds nothing');
    },
    whyNot: (local, peer) => {
      asked.push([local, peer]);
      return whyNot;
    },
  };
}

describe('selectTransport', () => {
  test('takes the first in order that both ends can use', () => {
    const [fast, slow] = [entry('fast', 'the fabric is down'), entry('slow')];
    expect(selectTransport([fast, slow], { fast: 1, slow: 2 }, { slow: 3, fast: 4 })).toBe(slow);
    expect(fast.asked).toEqual([[1, 4]]);
    expect(selectTransport([slow, fast], { fast: 1, slow: 2 }, { slow: 3, fast: 4 })).toBe(slow);
    expect(fast.asked).toHaveLength(1);
  });

  test('says for each transport why not', () => {
    const order = [entry('here'), entry('there'), entry('nowhere'), entry('broken', 'no common fabric')];
    const select = (): unknown => selectTransport(order, { here: 1, broken: 1 }, { there: 1, broken: 1 });
    expect(select).toThrow(
      expect.objectContaining({
        code: 'NO_TRANSPORT',
        message:
          'no transport that both ends can use: here (the peer does not have it), there (this end does not have it), ' +
          'nowhere (neither end has it), broken (no common fabric)',
        details: {
          reasons: {
            here: 'the peer does not have it',
            there: 'this end does not have it',
            nowhere: 'neither end has it',
            broken: 'no common fabric',
          },
        },
      }),
    );
    expect(() => selectTransport([], { here: 1 }, { here: 1 })).toThrow(
      expect.objectContaining({ code: 'NO_TRANSPORT', message: expect.stringContaining('the order is empty') }),
    );
  });

  test('does not take an inherited name for a grant', () => {
    expect(() => selectTransport([entry('toString')], {}, { toString: 1 } as never)).toThrow(
      expect.objectContaining({ details: { reasons: { toString: 'this end does not have it' } } }),
    );
  });
});

describe('orderTransports', () => {
  const table = [entry('a'), entry('b')];
  test('puts the table into the wished order', () => {
    expect(orderTransports(table, ['b', 'a']).map(({ name }) => name)).toEqual(['b', 'a']);
    expect(orderTransports(table, [])).toEqual([]);
  });

  test.each([
    [['a', 'c'], 'order[1]: expected one of a, b, got "c"'],
    [['a', 'a'], 'order[1]: expected each name once, got "a"'],
  ])('refuses %j', (names, message) => {
    expect(() => orderTransports(table, names)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID', message }));
  });
});
