/** Tickets survive their text whatever is in them; whatever is no ticket ends in a TICKET_* code and nothing else. */
import fc from 'fast-check';
import { parseKvMeta } from '../../lib/decode/handoff-parser.js';
import { isHandoffError } from '../../lib/errors.js';
import { decodeTicket, encodeTicket } from '../../lib/ticket-codec.js';
import type { Ticket } from '../../lib/ticket.js';
import { sampleKvMeta, smallShape } from '../support/described-instance.js';

const ticketCodes = ['TICKET_INVALID', 'TICKET_TOO_LARGE', 'TICKET_VERSION'];
const parseCodes = [...ticketCodes, 'SSM_METADATA_INVALID', 'RESUME_TOKENS_INVALID', 'BLOCK_COUNT_MISMATCH'];

function codeOf(action: () => unknown): string | null {
  try {
    action();
    return null;
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    return error.code;
  }
}

const uint64 = fc.bigInt({ min: 0n, max: (1n << 64n) - 1n });
const key = fc.oneof(
  fc.string({ maxLength: 8 }),
  fc.constantFrom('__proto__', 'constructor', 'toString', 'base_addr', '$int64', 'block_ids'),
);
const unknown = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: 'small' },
    fc.constant(null),
    fc.boolean(),
    fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => value + 0),
    fc.bigInt({ min: -(1n << 63n), max: (1n << 64n) - 1n }),
    fc.string(),
    fc.array(tie('value'), { maxLength: 4 }),
    fc
      .dictionary(key, tie('value'), { maxKeys: 4 })
      .filter((map) => !(Object.keys(map).length === 1 && typeof (map as { $int64?: unknown }).$int64 === 'string')),
  ),
})).value;
const ids = fc.array(fc.nat(2 ** 31 - 1), { maxLength: 20 });
const leaf = fc
  .tuple(
    fc.dictionary(
      key.filter((name) => name !== 'block_ids' && name !== 'base_addr'),
      unknown,
      { maxKeys: 4 },
    ),
    fc.record({ base_addr: uint64, block_ids: ids }, { requiredKeys: [] }),
  )
  .map(([map, known]) => ({ ...map, ...known }));
const leaves = fc.oneof(leaf, fc.array(leaf, { maxLength: 3 }));
const shape = fc.oneof(
  leaf,
  leaves.map((tp_metas) => ({ tp_metas })),
  fc.array(fc.record({ tp_metas: leaves, block_ids: ids }), { maxLength: 3 }).map((pp_metas) => ({ pp_metas })),
);
const identity = fc.record({
  instance: fc.string({ minLength: 1, maxLength: 20 }),
  incarnation: fc.string({ minLength: 1, maxLength: 20 }),
  handoffId: fc.maxSafeNat(),
  epoch: fc.maxSafeNat(),
});
const ticket: fc.Arbitrary<Ticket> = fc
  .record({
    requestId: fc.oneof(fc.string({ maxLength: 20 }), fc.maxSafeInteger()),
    blockIds: ids,
    kvMeta: shape,
    ssm: fc.option(fc.record({ conv: leaves, recurrent: leaves })),
    handoff: fc.option(identity),
    generations: fc.option(fc.array(uint64, { maxLength: 5 })),
    slotGeneration: fc.option(uint64),
    extra: fc.option(fc.dictionary(fc.constantFrom('a', '__proto__', 'release'), unknown, { minKeys: 1, maxKeys: 3 })),
  })
  .map(({ requestId, blockIds, kvMeta, ssm, handoff, generations, slotGeneration, extra }) => {
    const meta: Record<string, unknown> = { ...kvMeta };
    delete meta['ssm'];
    delete meta['handoff'];
    if (ssm !== null) meta['ssm'] = ssm;
    if (handoff !== null) {
      meta['handoff'] = {
        version: 1,
        instance: handoff.instance,
        incarnation: handoff.incarnation,
        handoff_id: handoff.handoffId,
        epoch: handoff.epoch,
        prompt_tokens: 1,
        block_generations: generations,
        slot_generation: slotGeneration,
      };
    }
    return {
      requestId: Object.is(requestId, -0) ? 0 : requestId,
      blockIds,
      kvMeta: meta,
      handoff,
      ...(extra === null ? {} : { extra }),
    };
  });

describe('ticket codec', () => {
  it('gives back every ticket it wrote', () => {
    fc.assert(
      fc.property(ticket, (original) => {
        const text = encodeTicket(original);
        const decoded = decodeTicket(text);
        expect(decoded).toEqual(original);
        expect(encodeTicket(decoded)).toBe(text);
      }),
      { numRuns: 1000 },
    );
  });

  it('throws TICKET_* on arbitrary bytes and texts (field report 112)', () => {
    fc.assert(
      fc.property(
        fc.oneof(fc.uint8Array({ maxLength: 200 }), fc.string({ unit: 'binary', maxLength: 200 })),
        (input) => {
          expect(ticketCodes).toContain(codeOf(() => decodeTicket(input)));
        },
      ),
      { numRuns: 1000 },
    );
  });

  it('throws TICKET_* or gives a ticket for arbitrary JSON in its place', () => {
    const document = fc.record(
      {
        version: fc.oneof(fc.constant(1), fc.jsonValue()),
        request_id: fc.jsonValue(),
        block_ids: fc.oneof(ids, fc.jsonValue()),
        kv_meta: fc.oneof(shape, fc.jsonValue()),
      },
      { requiredKeys: [] },
    );
    const text = (value: unknown) =>
      JSON.stringify(value, (_key, inner: unknown) => (typeof inner === 'bigint' ? String(inner) : inner));
    fc.assert(
      fc.property(document, (value) => {
        const code = codeOf(() => decodeTicket(text(value)));
        if (code !== null) expect(ticketCodes).toContain(code);
      }),
      { numRuns: 1000 },
    );
  });

  it('never crashes on a ticket with one value replaced, and parses or refuses what is left of it', () => {
    const places = (value: unknown, path: (string | number)[] = []): (string | number)[][] =>
      typeof value !== 'object' || value === null
        ? [path]
        : [
            path,
            ...Object.entries(value).flatMap(([name, inner]) =>
              places(inner, [...path, Array.isArray(value) ? Number(name) : name]),
            ),
          ];
    const original = encodeTicket({
      requestId: 1,
      blockIds: [5, 9, 2],
      kvMeta: sampleKvMeta({ ...smallShape, tpSize: 2, isHybrid: true, hasAddresses: true }),
      handoff: { instance: 'prefill-a', incarnation: 'boot-1', handoffId: 7, epoch: 3 },
    });
    const all = places(JSON.parse(original)).filter((path) => path.length > 0);
    const odd = fc.oneof(
      fc.jsonValue({ maxDepth: 2 }),
      fc.constantFrom(-1, 0, 1, 2 ** 31, 2 ** 53, 1e300, '18446744073709551615', [], {}),
    );
    let parsed = 0;
    fc.assert(
      fc.property(fc.nat(all.length - 1), odd, (index, value) => {
        // eslint-disable-next-line @typescript-eslint/no-explicit-any -- changed at places that no type knows
        const document = JSON.parse(original) as Record<string | number, any>;
        const path = all[index]!;
        let target = document;
        for (const step of path.slice(0, -1)) target = target[step] as typeof document;
        target[path.at(-1)!] = value;
        const code = codeOf(() => {
          const decoded = decodeTicket(JSON.stringify(document));
          parseKvMeta(decoded.kvMeta, decoded.blockIds);
          parsed++;
        });
        if (code !== null) expect(parseCodes).toContain(code);
      }),
      { numRuns: 5000 },
    );
    expect(parsed).toBeGreaterThan(0);
  });
});
