/**
 * A ticket as text, for control planes that speak JSON: versioned, bounded, checked. 64-bit values are decimal strings
 * where the schema knows them and `{"$int64": "…"}` elsewhere; unknown keys travel as they are.
 *
 * `decodeTicket` may be given any bytes: it returns a ticket or throws a `TICKET_*` code, nothing else.
 */
import { requireObject } from './argument-shape.js';
import { unreadyFence } from './ticket-readiness.js';
import { argumentError, HandoffError } from './errors.js';
import { isRecord, setOwn } from './json.js';
import { checkTicketLimits, defaultTicketLimits, type TicketLimits } from './limits.js';
import { checkIdentity, disaggregatedParams, ticketFromParams, type Ticket } from './ticket.js';

/** Version of the text. */
export const ticketVersion = 1;

const reservedKeys = ['version', 'request_id', 'block_ids', 'kv_meta'];

/** What a value may be, by where it stands. `any` has no 64-bit values that the schema knows of. */
type Role = 'any' | 'params' | 'kvMeta' | 'leaves' | 'stages' | 'ssm' | 'handoff' | 'u64' | 'u64List';

const children: Readonly<Record<Role, Readonly<Record<string, Role>>>> = {
  any: {},
  params: { kv_meta: 'kvMeta' },
  kvMeta: { base_addr: 'u64', tp_metas: 'leaves', pp_metas: 'stages', ssm: 'ssm', handoff: 'handoff' },
  leaves: { base_addr: 'u64', tp_metas: 'leaves', pp_metas: 'stages' },
  stages: { base_addr: 'u64', tp_metas: 'leaves' },
  ssm: { conv: 'leaves', recurrent: 'leaves' },
  handoff: { block_generations: 'u64List', slot_generation: 'u64' },
  u64: {},
  u64List: {},
};

/** The role of a list's members. */
const members: Readonly<Record<Role, Role>> = {
  any: 'any',
  params: 'any',
  kvMeta: 'leaves',
  leaves: 'leaves',
  stages: 'stages',
  ssm: 'any',
  handoff: 'any',
  u64: 'any',
  u64List: 'u64',
};

const int64Key = '$int64';
const decimal = /^(?:0|-?[1-9]\d{0,19})$/;
const int64Min = -(1n << 63n);
const uint64Max = (1n << 64n) - 1n;

/**
 * Prefill. The ticket as text.
 *
 * @throws `TICKET_INVALID` for a ticket that is none, with two identities, or with a value that JSON does not carry;
 *   `TICKET_TOO_LARGE`, `HANDOFF_NOT_READY` until the fence given to `captureHandoffMeta` has completed
 */
export function encodeTicket(ticket: Ticket, limits: TicketLimits = defaultTicketLimits): string {
  requireObject('ticket', ticket);
  requireObject('ticket.kvMeta', ticket.kvMeta);
  checkTicketLimits(limits);
  checkIdentity(ticket, limits);
  if (unreadyFence(ticket.kvMeta) !== null) {
    throw new HandoffError(
      'HANDOFF_NOT_READY',
      'the ticket may not leave this process because its state is not in place yet; encode it after `ticketReady`',
    );
  }
  const params = disaggregatedParams(ticket);
  ticketFromParams(params, limits);
  for (const key of reservedKeys) {
    if (Object.hasOwn(ticket.extra ?? {}, key)) {
      throw argumentError(
        `ticket.extra.${key}`,
        'no such key, the text has its own',
        ticket.extra?.[key],
        'TICKET_INVALID',
      );
    }
  }
  const text = JSON.stringify({
    version: ticketVersion,
    ...(toText(params, 'params', 'ticket', limits.ticketDepthMax) as object),
  });
  checkSize(text, limits);
  return text;
}

/**
 * Decode, or a router on the way. The ticket that a text (or its UTF-8 bytes) holds.
 *
 * @throws `TICKET_TOO_LARGE`, `TICKET_VERSION`, `TICKET_INVALID`
 */
export function decodeTicket(text: string | Uint8Array, limits: TicketLimits = defaultTicketLimits): Ticket {
  checkTicketLimits(limits);
  const document = parse(text, limits);
  if (!isRecord(document)) throw argumentError('ticket', 'a map', document, 'TICKET_INVALID');
  const { version, ...params } = document;
  if (version !== ticketVersion) {
    throw argumentError(
      'ticket.version',
      `${ticketVersion}`,
      version,
      typeof version === 'number' ? 'TICKET_VERSION' : 'TICKET_INVALID',
    );
  }
  return ticketFromParams(fromText(params, 'params', 'ticket', limits.ticketDepthMax), limits);
}

function parse(text: string | Uint8Array, limits: TicketLimits): unknown {
  try {
    if (typeof text === 'string') {
      checkSize(text, limits);
      return JSON.parse(text);
    }
    if (!(text instanceof Uint8Array)) throw argumentError('ticket', 'a string or bytes', text, 'TICKET_INVALID');
    if (text.length > limits.ticketBytesMax) throw tooLarge(text.length, limits);
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(text));
  } catch (cause) {
    if (cause instanceof HandoffError) throw cause;
    throw new HandoffError(
      'TICKET_INVALID',
      `ticket: expected JSON text, got something else (${(cause as Error).message})`,
      { cause },
    );
  }
}

function checkSize(text: string, { ticketBytesMax, ...limits }: TicketLimits): void {
  // A character takes one to three bytes; most tickets are far from the bound and need no count.
  if (text.length * 3 <= ticketBytesMax) return;
  const bytes = text.length > ticketBytesMax ? text.length : Buffer.byteLength(text);
  if (bytes > ticketBytesMax) throw tooLarge(bytes, { ticketBytesMax, ...limits });
}

function tooLarge(bytes: number, limits: TicketLimits): HandoffError {
  return argumentError('ticket', `at most ${limits.ticketBytesMax} bytes`, bytes, 'TICKET_TOO_LARGE');
}

function tooDeep(path: string): HandoffError {
  return argumentError(path, 'less nesting', 'more', 'TICKET_INVALID');
}

function toText(value: unknown, role: Role, path: string, depth: number): unknown {
  if (depth < 0) throw tooDeep(path);
  if (role === 'u64' && value !== null) {
    const isU64 =
      typeof value === 'bigint'
        ? value >= 0n && value <= uint64Max
        : Number.isSafeInteger(value) && (value as number) >= 0;
    if (!isU64) throw argumentError(path, 'an unsigned 64-bit integer', value, 'TICKET_INVALID');
    return String(value);
  }
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return value;
  if (typeof value === 'number') {
    if (!Number.isFinite(value)) throw argumentError(path, 'a finite number', value, 'TICKET_INVALID');
    return value;
  }
  if (typeof value === 'bigint') {
    if (value < int64Min || value > uint64Max) throw argumentError(path, 'a 64-bit integer', value, 'TICKET_INVALID');
    return { [int64Key]: String(value) };
  }
  if (Array.isArray(value))
    return value.map((entry, index) => toText(entry, members[role], `${path}[${index}]`, depth - 1));
  if (!isRecord(value) || !isPlain(value)) throw argumentError(path, 'plain data', value, 'TICKET_INVALID');
  if (int64Of(value) !== null)
    throw argumentError(path, `no map of one key ${int64Key}, which stands for an integer`, value, 'TICKET_INVALID');
  const roles = children[role];
  const result: Record<string, unknown> = {};
  for (const key of Object.keys(value)) {
    setOwn(result, key, toText(value[key], roleOf(roles, key), `${path}.${key}`, depth - 1));
  }
  return result;
}

function fromText(value: unknown, role: Role, path: string, depth: number): unknown {
  if (depth < 0) throw tooDeep(path);
  if (role === 'u64' && value !== null) {
    if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return BigInt(value);
    const integer = typeof value === 'string' && decimal.test(value) ? BigInt(value) : -1n;
    if (integer < 0n || integer > uint64Max)
      throw argumentError(path, 'an unsigned 64-bit integer in decimal', value, 'TICKET_INVALID');
    return integer;
  }
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value))
    return value.map((entry, index) => fromText(entry, members[role], `${path}[${index}]`, depth - 1));
  const integer = int64Of(value as Record<string, unknown>);
  if (integer !== null) return integer;
  const roles = children[role];
  const result: Record<string, unknown> = {};
  for (const key of Object.keys(value)) {
    setOwn(
      result,
      key,
      fromText((value as Record<string, unknown>)[key], roleOf(roles, key), `${path}.${key}`, depth - 1),
    );
  }
  return result;
}

function roleOf(roles: Readonly<Record<string, Role>>, key: string): Role {
  return Object.hasOwn(roles, key) ? roles[key]! : 'any';
}

/** The integer that `{"$int64": "…"}` stands for; null for every other map. */
function int64Of(value: Readonly<Record<string, unknown>>): bigint | null {
  if (!Object.hasOwn(value, int64Key) || Object.keys(value).length !== 1) return null;
  const text = value[int64Key];
  if (typeof text !== 'string' || !decimal.test(text)) return null;
  const integer = BigInt(text);
  return integer >= int64Min && integer <= uint64Max ? integer : null;
}

function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  // A map of another realm has that realm's Object.prototype, whose own prototype is null.
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}
