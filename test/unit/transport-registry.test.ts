/** Promise: of an ordered table the first transport that both ends can use wins, and a refusal names every reason. */
import {
  orderTransports,
  selectTransport,
  type OpenTransport,
  type TransportEntry,
} from '../../lib/transfer/transport-registry.js';
import { TransportChoice } from '../../lib/transfer/transport-choice.js';
import type { Transport, TransportGrant } from '../../lib/transfer/transport.js';

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

describe('TransportChoice', () => {
  const opened = (name: string, grant: number, whyNot: OpenTransport['whyNot'] = () => null): OpenTransport => ({
    transport: { name } as Transport,
    grant,
    whyNot,
  });

  test('asks each transport about its own two grants, in order, and once for a peer', () => {
    const asked: unknown[] = [];
    const far = opened('far', 1, (...grants) => {
      asked.push(grants);
      return 'too far';
    });
    const near = opened('near', 2);
    const choice = new TransportChoice([far, near]);
    const peer = { near: 3, far: 4 };
    expect(choice.require(peer)).toBe(near.transport);
    expect(choice.find(peer)).toBe(near.transport);
    expect(asked).toEqual([[1, 4]]);
    expect(new TransportChoice([near, far]).find({ far: 4 })).toBeNull();
  });

  test('a refusal says why for what was opened, what this machine lacks, and what only the peer has', () => {
    const push = opened('push', 1);
    const choice = new TransportChoice(
      [push, opened('far', 2, () => 'too far'), opened('ours', 3)],
      { lost: 'no library' },
      ({ name }) => (name === 'push' ? 'it is read by its peers and does not push' : null),
    );
    expect(() => choice.require({ push: 1, far: 1, theirs: 1 })).toThrow(
      expect.objectContaining({
        code: 'NO_TRANSPORT',
        details: {
          reasons: {
            lost: 'no library',
            push: 'it is read by its peers and does not push',
            far: 'too far',
            ours: 'the peer does not have it',
            theirs: 'only the peer has it',
          },
        },
      }),
    );
  });
});
