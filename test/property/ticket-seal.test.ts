/**
 * Goal: a ticket is believed exactly when nothing in it differs from what prefill sealed, whatever a control plane carried
 * it as. Method: tickets of real engines, carried as JSON, as objects and as a frame; then one value after another changed.
 */
import { decodeWireValue, encodeWireValue } from '../../lib/control/ranks/wire-value.js';
import { decodeTicket, encodeTicket } from '../../lib/ticket-codec.js';
import { checkTicketSeal, isTrustedTicket, ticketSeal } from '../../lib/ticket-seal.js';
import type { Ticket } from '../../lib/ticket.js';
import { handOff, hybridShape, instance, promptOf, world } from '../support/misuse-world.js';

const secret = 'a secret of no meaning';
const ways: Readonly<Record<string, (ticket: Ticket) => Pick<Ticket, 'kvMeta' | 'blockIds'>>> = {
  'as it is': (ticket) => ticket,
  'as text': (ticket) => decodeTicket(encodeTicket(ticket)),
  'as a frame': ({ kvMeta, blockIds }) =>
    decodeWireValue(encodeWireValue({ kvMeta, blockIds }, 'value')) as Pick<Ticket, 'kvMeta' | 'blockIds'>,
  'with its keys in another order': ({ kvMeta, blockIds }) => ({
    kvMeta: reversed(kvMeta) as Ticket['kvMeta'],
    blockIds,
  }),
  'with integers as bigints': ({ kvMeta, blockIds }) => ({ kvMeta: widened(kvMeta) as Ticket['kvMeta'], blockIds }),
};

async function sealed(shape: object, size: number): Promise<Ticket> {
  const ranks = await instance({
    ...{ role: 'prefill', network: world(), size, carrier: size === 1 ? 'local' : 'host' },
    engine: { ...shape, numSpeculativeTokens: 1 },
    options: { ticketSecret: secret },
  });
  return handOff(ranks, 'r', promptOf(10), { return_log_probs: true }).ticket;
}

const isMap = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value) && !ArrayBuffer.isView(value);
const mapped = (value: unknown, leaf: (value: unknown) => unknown, order = (keys: string[]) => keys): unknown => {
  if (Array.isArray(value)) return value.map((item) => mapped(item, leaf, order));
  if (!isMap(value)) return leaf(value);
  return Object.fromEntries(order(Object.keys(value)).map((key) => [key, mapped(value[key], leaf, order)]));
};
const reversed = (value: unknown): unknown =>
  mapped(
    value,
    (leaf) => leaf,
    (keys) => keys.toReversed(),
  );
const widened = (value: unknown): unknown =>
  mapped(value, (leaf) => (Number.isSafeInteger(leaf) ? BigInt(leaf as number) : leaf));

/** `value` with one leaf after another changed, one entry after another left out or added. */
function* altered(value: unknown, path: string): Generator<readonly [string, unknown]> {
  if (Array.isArray(value)) {
    for (const [index, item] of value.entries()) {
      for (const [at, bad] of altered(item, `${path}[${index}]`)) yield [at, value.with(index, bad)];
    }
    if (value.length > 0) yield [`${path} without its last`, value.slice(0, -1)];
    if (value.length > 1 && value[0] !== value[1])
      yield [`${path} turned`, [value[1], value[0], ...(value.slice(2) as unknown[])]];
    yield [`${path} with one more`, [...(value as unknown[]), 0]];
  } else if (isMap(value)) {
    for (const [key, item] of Object.entries(value)) {
      for (const [at, bad] of altered(item, `${path}.${key}`)) yield [at, { ...value, [key]: bad }];
      yield [`${path} without ${key}`, Object.fromEntries(Object.entries(value).filter(([other]) => other !== key))];
    }
    yield [`${path} with another key`, { ...value, seal2: 0 }];
  } else if (typeof value === 'number') yield [path, value + 1];
  else if (typeof value === 'bigint') yield [path, value ^ 1n];
  else if (typeof value === 'string') yield [path, `${value}.`];
  else if (typeof value === 'boolean') yield [path, !value];
  else yield [path, 0];
}

describe.each([
  ['one rank', {}, 1],
  ['two ranks of a hybrid model', { shape: hybridShape }, 2],
] as const)('the ticket of %s', (_, shape, size) => {
  test.each(Object.keys(ways))('carried %s is believed, and not under another secret', async (way) => {
    const { kvMeta, blockIds } = ways[way]!(await sealed(shape, size));
    expect(() => checkTicketSeal(secret, kvMeta, blockIds)).not.toThrow();
    expect(isTrustedTicket(`${secret}.`, kvMeta, blockIds)).toBe(false);
    expect(isTrustedTicket(null, kvMeta, blockIds)).toBe(true);
  });

  test('is believed no more when any value of it is another', async () => {
    const { kvMeta, blockIds } = decodeTicket(encodeTicket(await sealed(shape, size)));
    const believed: string[] = [];
    let count = 0;
    for (const [path, changed] of altered({ kvMeta, blockIds }, '')) {
      const { kvMeta: meta, blockIds: ids } = changed as Partial<Ticket>;
      // A key beside the two is not of the ticket.
      if (path === ' with another key') continue;
      count += 1;
      if (isTrustedTicket(secret, meta, ids)) believed.push(path);
    }
    expect(count).toBeGreaterThan(80);
    expect(believed).toEqual([]);
  });
});

test('two different values have different seals', () => {
  const seals = [
    [1, 23],
    [12, 3],
    ['1', 23],
    [[1], 23],
    [1, [23]],
    [{ a: 1 }, 23],
    [null, 23],
    [true, 23],
    ['null', 23],
    [1.5, 23],
    [],
  ].map(([a, b]) => ticketSeal(secret, { a, b }, []));
  expect(new Set(seals).size).toBe(seals.length);
  expect(ticketSeal(secret, { a: [], b: 1 }, [])).not.toBe(ticketSeal(secret, { a: [] }, [1]));
});

test('what no ticket has is refused, and no depth is too deep for it', () => {
  let deep: unknown = 1;
  for (let level = 0; level < 10_000; level += 1) deep = [deep];
  for (const value of [deep, () => 1, Symbol('s')]) {
    expect(() => ticketSeal(secret, { value }, [])).toThrow(
      expect.objectContaining({ code: 'TICKET_INVALID' }) as Error,
    );
    expect(isTrustedTicket(secret, { value }, [])).toBe(false);
  }
  for (const value of [
    undefined,
    null,
    7,
    'x',
    [],
    {},
    { handoff: 7 },
    { handoff: { seal: 7 } },
    { handoff: { seal: '' } },
  ])
    expect(isTrustedTicket(secret, value, [1])).toBe(false);
});
