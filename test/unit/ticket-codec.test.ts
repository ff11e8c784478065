/** The text of a ticket: what it looks like, and each thing that is refused. */
import { dropPrefix } from '../../lib/prefill/transfer-records.js';
import { parseKvMeta } from '../../lib/decode/handoff-parser.js';
import { decodeTicket, encodeTicket } from '../../lib/ticket-codec.js';
import { disaggregatedParams, ticketFromParams, type Ticket } from '../../lib/ticket.js';
import { defaultTicketLimits } from '../../lib/limits.js';
import { sampleKvMeta, smallShape } from '../support/described-instance.js';

const handoff = { instance: 'prefill-a', incarnation: 'boot-1', handoffId: 7, epoch: 3 };

function sample(shape = smallShape, changes: Partial<Ticket> = {}): Ticket {
  return { requestId: 'r-1', blockIds: [5, 9, 2], kvMeta: sampleKvMeta(shape), handoff, ...changes };
}

const plain = (kvMeta: Record<string, unknown>): Ticket => ({ requestId: 1, blockIds: [1], kvMeta, handoff: null });

describe('encodeTicket', () => {
  it.each([
    [smallShape],
    [{ ...smallShape, hasAddresses: true }],
    [{ ...smallShape, tpSize: 2, isHybrid: true, hasAddresses: true }],
    [{ ...smallShape, tpSize: 2, ppSize: 2, isHybrid: true, hasAddresses: true }],
    [{ ...smallShape, ppSize: 2, isHybrid: true, hasAddresses: true }],
  ])('carries everything across (case %#)', (shape) => {
    const ticket = sample(shape);
    const text = encodeTicket(ticket);
    const decoded = decodeTicket(text);
    expect(decoded).toEqual(ticket);
    expect(decodeTicket(new TextEncoder().encode(text))).toEqual(ticket);
    expect(encodeTicket(decoded)).toBe(text);
    expect(parseKvMeta(decoded.kvMeta, decoded.blockIds)).toEqual(parseKvMeta(ticket.kvMeta, ticket.blockIds));
    const trimmed = dropPrefix(decoded.kvMeta, decoded.blockIds, 1);
    expect(trimmed).toEqual(dropPrefix(ticket.kvMeta, ticket.blockIds, 1));
  });

  it('writes 64-bit values as decimal strings where the schema knows them', () => {
    const text = encodeTicket(sample({ ...smallShape, tpSize: 2, isHybrid: true, hasAddresses: true }));
    expect(JSON.parse(text)).toMatchObject({
      version: 1,
      request_id: 'r-1',
      block_ids: [5, 9, 2],
      kv_meta: {
        tp_metas: [{ base_addr: '139637976727552' }, { base_addr: '139650861629440' }],
        ssm: { conv: [{ base_addr: '139642271694848' }, {}], recurrent: [{ base_addr: '139646566662144' }, {}] },
        handoff: { block_generations: ['5', '18446744073709551615', '0'], slot_generation: '77' },
      },
    });
    const stages = encodeTicket(sample({ ...smallShape, ppSize: 2, hasAddresses: true }));
    expect(JSON.parse(stages)).toMatchObject({
      kv_meta: { pp_metas: [{ tp_metas: { base_addr: '139637976727552' } }, {}] },
    });
  });

  it('writes them as tagged values elsewhere, and leaves texts that only look like it alone', () => {
    const kvMeta = {
      transports: { nixl: { base_addr: '12', size: 1n << 63n, most: (1n << 64n) - 1n, low: -(1n << 63n) } },
      list: [1n],
      base_addr: 3n,
    };
    const text = encodeTicket(plain(kvMeta));
    expect(text).toBe(
      '{"version":1,"request_id":1,"block_ids":[1],"kv_meta":{"transports":{"nixl":{"base_addr":"12","size":{"$int64":"9223372036854775808"},' +
        '"most":{"$int64":"18446744073709551615"},"low":{"$int64":"-9223372036854775808"}}},"list":[{"$int64":"1"}],"base_addr":"3"}}',
    );
    expect(decodeTicket(text)).toEqual(plain(kvMeta));
  });

  it('keeps unknown keys, a key named __proto__ among them', () => {
    const text =
      '{"version":1,"request_id":1,"block_ids":[1],"kv_meta":{"__proto__":{"polluted":1},"x":[{"__proto__":2}]},' +
      '"release":{"url":"http://p"},"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}';
    const ticket = decodeTicket(text);
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
    expect(Object.getPrototypeOf(ticket.kvMeta)).toBe(Object.prototype);
    expect((ticket.kvMeta as { polluted?: number }).polluted).toBeUndefined();
    expect(JSON.parse(encodeTicket(ticket))).toEqual(JSON.parse(text));
    expect(Object.keys(ticket.extra!)).toEqual(['release', '__proto__', 'constructor']);
    expect(disaggregatedParams(ticket)).toMatchObject({ request_id: 1, release: { url: 'http://p' } });
  });

  it('keeps maps that look like tagged values but are none', () => {
    for (const odd of [
      { $int64: '007' },
      { $int64: 5 },
      { $int64: '5', more: 1 },
      { $int64: '-0' },
      { $int64: String(1n << 64n) },
    ]) {
      expect(decodeTicket(encodeTicket(plain({ odd }))).kvMeta).toEqual({ odd });
    }
  });

  it('takes small addresses that came as numbers', () => {
    expect(decodeTicket(encodeTicket(plain({ base_addr: 4096 }))).kvMeta).toEqual({ base_addr: 4096n });
    expect(decodeTicket('{"version":1,"request_id":1,"block_ids":[1],"kv_meta":{"base_addr":4096}}').kvMeta).toEqual({
      base_addr: 4096n,
    });
  });

  class Odd {}
  it.each([
    [{ x: undefined }, 'ticket.kv_meta.x: expected plain data, got undefined'],
    [{ x: () => 1 }, 'ticket.kv_meta.x: expected plain data, got a function'],
    [{ x: new Map() }, 'ticket.kv_meta.x: expected plain data, got a Map'],
    [{ x: new Odd() }, 'ticket.kv_meta.x: expected plain data, got a Odd'],
    [{ x: Int32Array.of(1) }, 'ticket.kv_meta.x: expected plain data, got a Int32Array'],
    [{ x: [NaN] }, 'ticket.kv_meta.x[0]: expected a finite number, got NaN'],
    [{ x: 1n << 64n }, 'ticket.kv_meta.x: expected a 64-bit integer, got 18446744073709551616n'],
    [{ x: -(1n << 63n) - 1n }, 'ticket.kv_meta.x: expected a 64-bit integer, got -9223372036854775809n'],
    [{ base_addr: 1.5 }, 'ticket.kv_meta.base_addr: expected an unsigned 64-bit integer, got 1.5'],
    [{ base_addr: -1n }, 'ticket.kv_meta.base_addr: expected an unsigned 64-bit integer, got -1n'],
    [
      { base_addr: 1n << 64n },
      'ticket.kv_meta.base_addr: expected an unsigned 64-bit integer, got 18446744073709551616n',
    ],
    [{ base_addr: -1 }, 'ticket.kv_meta.base_addr: expected an unsigned 64-bit integer, got -1'],
    [
      { x: { $int64: '5' } },
      'ticket.kv_meta.x: expected no map of one key $int64, which stands for an integer, got an object',
    ],
  ])('refuses %p', (kvMeta, message) => {
    expect(() => encodeTicket(plain(kvMeta))).toThrow(expect.objectContaining({ code: 'TICKET_INVALID', message }));
  });

  it.each(['version', 'request_id', 'block_ids', 'kv_meta'])('refuses a second %s', (key) => {
    expect(() => encodeTicket({ ...plain({}), extra: { [key]: 1 } })).toThrow(
      expect.objectContaining({
        code: 'TICKET_INVALID',
        message: `ticket.extra.${key}: expected no such key, the text has its own, got 1`,
      }),
    );
  });

  it.each([
    [null],
    [{ ...handoff, instance: 'other' }],
    [{ ...handoff, incarnation: 'other' }],
    [{ ...handoff, handoffId: 8 }],
    [{ ...handoff, epoch: 4 }],
  ])('refuses a second identity, %j', (other) => {
    const message = 'ticket.handoff: expected the identity in kv_meta.handoff, got another';
    expect(() => encodeTicket(sample(smallShape, { handoff: other }))).toThrow(
      expect.objectContaining({ code: 'TICKET_INVALID', message }),
    );
    if (other !== null)
      expect(() => encodeTicket({ ...plain({}), handoff: other })).toThrow(expect.objectContaining({ message }));
  });

  it('refuses what decode would refuse', () => {
    expect(() => encodeTicket(sample(smallShape, { blockIds: [-1] }))).toThrow(
      expect.objectContaining({ code: 'TICKET_INVALID' }),
    );
    expect(() => encodeTicket(sample(smallShape, { requestId: 1.5 }))).toThrow(
      expect.objectContaining({ code: 'TICKET_INVALID' }),
    );
    const limits = { ...defaultTicketLimits, ticketBytesMax: 100 };
    expect(() => encodeTicket(sample(), limits)).toThrow(expect.objectContaining({ code: 'TICKET_TOO_LARGE' }));
  });
});

describe('decodeTicket', () => {
  const text = (changes: Record<string, unknown>) =>
    JSON.stringify({ version: 1, request_id: 1, block_ids: [1], kv_meta: {}, ...changes });

  it.each([
    ['null', 'TICKET_INVALID', 'ticket: expected a map, got null'],
    ['[]', 'TICKET_INVALID', 'ticket: expected a map, got an array of 0'],
    ['{}', 'TICKET_INVALID', 'ticket.version: expected 1, got undefined'],
    [text({ version: 2 }), 'TICKET_VERSION', 'ticket.version: expected 1, got 2'],
    [text({ version: '1' }), 'TICKET_INVALID', 'ticket.version: expected 1, got "1"'],
    [
      text({ request_id: null }),
      'TICKET_INVALID',
      'ticket.request_id: expected a safe integer or a string of at most 256 characters, got null',
    ],
    [text({ request_id: 2 ** 53 }), 'TICKET_INVALID', 'ticket.request_id: expected'],
    [text({ request_id: 'x'.repeat(257) }), 'TICKET_INVALID', 'ticket.request_id: expected'],
    [
      text({ block_ids: {} }),
      'TICKET_INVALID',
      'ticket.block_ids: expected a list of at most 1048576 block ids, got an object',
    ],
    [
      text({ block_ids: [1.5] }),
      'TICKET_INVALID',
      'ticket.block_ids[0]: expected a block id in [0, 2147483647], got 1.5',
    ],
    [text({ kv_meta: [] }), 'TICKET_INVALID', 'ticket.kv_meta: expected a map, got an array of 0'],
    [
      text({ kv_meta: { tp_metas: [1] } }),
      'TICKET_INVALID',
      'ticket.kv_meta.tp_metas[0]: expected a descriptor (a map), got 1',
    ],
    [
      text({ kv_meta: { handoff: { version: 2 } } }),
      'TICKET_VERSION',
      'ticket.kv_meta.handoff.version: expected 1, got 2',
    ],
    [text({ kv_meta: { handoff: 1 } }), 'TICKET_INVALID', 'ticket.kv_meta.handoff: expected a map, got 1'],
    [
      text({ kv_meta: { base_addr: '-1' } }),
      'TICKET_INVALID',
      'ticket.kv_meta.base_addr: expected an unsigned 64-bit integer in decimal, got "-1"',
    ],
    [text({ kv_meta: { base_addr: '18446744073709551616' } }), 'TICKET_INVALID', 'ticket.kv_meta.base_addr: expected'],
    [text({ kv_meta: { base_addr: '0x10' } }), 'TICKET_INVALID', 'ticket.kv_meta.base_addr: expected'],
    [text({ kv_meta: { base_addr: '01' } }), 'TICKET_INVALID', 'ticket.kv_meta.base_addr: expected'],
    [text({ kv_meta: { base_addr: '' } }), 'TICKET_INVALID', 'ticket.kv_meta.base_addr: expected'],
    [text({ kv_meta: { base_addr: 1.5 } }), 'TICKET_INVALID', 'ticket.kv_meta.base_addr: expected'],
    [text({ kv_meta: { base_addr: true } }), 'TICKET_INVALID', 'ticket.kv_meta.base_addr: expected'],
    [
      text({ kv_meta: { ssm: { conv: { pp_metas: [{ tp_metas: [{ base_addr: 'x' }] }] } } } }),
      'TICKET_INVALID',
      'ticket.kv_meta.ssm.conv.pp_metas[0].tp_metas[0].base_addr: expected',
    ],
    [
      text({ kv_meta: { handoff: { block_generations: ['1', 'x'] } } }),
      'TICKET_INVALID',
      'ticket.kv_meta.handoff.block_generations[1]: expected',
    ],
    ['{', 'TICKET_INVALID', 'ticket: expected JSON text, got something else'],
    ['', 'TICKET_INVALID', 'ticket: expected JSON text'],
  ])('refuses %s', (input, code, message) => {
    expect(() => decodeTicket(input)).toThrow(
      expect.objectContaining({ code, message: expect.stringContaining(message) as string }),
    );
  });

  it('refuses what is no text and no UTF-8', () => {
    const latin1 = Uint8Array.from(Buffer.from(text({ extra: 'é' }), 'latin1'));
    expect(() => decodeTicket(latin1)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
    expect(() => decodeTicket(Uint8Array.of(0xff, 0xfe))).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
    for (const input of [null, 7, {}])
      expect(() => decodeTicket(input as never)).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
  });

  it('refuses nesting that would exhaust the stack', () => {
    const nested = (depth: number) =>
      `{"version":1,"request_id":1,"block_ids":[1],"kv_meta":{"x":${'['.repeat(depth)}${']'.repeat(depth)}}}`;
    // The ticket itself and kv_meta are two levels, and the innermost list is one of its own.
    const deepest = decodeTicket(nested(31));
    expect(decodeTicket(encodeTicket(deepest))).toEqual(deepest);
    expect(() => decodeTicket(nested(32))).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
    for (const depth of [40, 1_000_000]) {
      const input = `{"version":1,"request_id":1,"block_ids":[1],"kv_meta":{"x":${'['.repeat(depth)}${']'.repeat(depth)}}}`;
      expect(() => decodeTicket(input)).toThrow(
        expect.objectContaining({ code: 'TICKET_INVALID', message: expect.stringContaining('less nesting') as string }),
      );
    }
    let deep: unknown = 1;
    for (let depth = 0; depth < 40; depth++) deep = [deep];
    expect(() => encodeTicket(plain({ deep }))).toThrow(expect.objectContaining({ code: 'TICKET_INVALID' }));
  });

  it('counts bytes, not characters', () => {
    const input = text({ pad: '€'.repeat(30) });
    const bytes = Buffer.byteLength(input);
    const limits = (ticketBytesMax: number) => ({ ...defaultTicketLimits, ticketBytesMax });
    expect(decodeTicket(input, limits(bytes)).extra).toEqual({ pad: '€'.repeat(30) });
    const tooLarge = expect.objectContaining({
      code: 'TICKET_TOO_LARGE',
      message: `ticket: expected at most ${bytes - 1} bytes, got ${bytes}`,
    }) as Error;
    expect(() => decodeTicket(input, limits(bytes - 1))).toThrow(tooLarge);
    expect(() => decodeTicket(new TextEncoder().encode(input), limits(bytes - 1))).toThrow(tooLarge);
    expect(() => decodeTicket(input, limits(10))).toThrow(expect.objectContaining({ code: 'TICKET_TOO_LARGE' }));
  });
});

describe('ticketFromParams', () => {
  it("takes the reference's params, which have no identity", () => {
    const params = { request_id: 7, block_ids: [1, 2], kv_meta: { tp_metas: [{ rank: 0 }], handoff: null } };
    expect(ticketFromParams(params)).toEqual({ requestId: 7, blockIds: [1, 2], kvMeta: params.kv_meta, handoff: null });
    expect(disaggregatedParams(ticketFromParams(params))).toEqual(params);
    expect(() => ticketFromParams([])).toThrow(
      expect.objectContaining({ code: 'TICKET_INVALID', message: 'ticket: expected a map, got an array of 0' }),
    );
    const longest = { ...params, request_id: 'x'.repeat(256) };
    expect(ticketFromParams(longest).requestId).toBe(longest.request_id);
  });
});
