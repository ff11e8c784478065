/**
 * The seal of a ticket: a keyed digest over all that the ticket tells decode, so that nobody between the two engines can
 * name other blocks, another slot or another place in a peer's memory. Optional, and both sides need the same secret.
 *
 * It is taken over values, not over bytes, since routers carry tickets as JSON, msgpack or objects: maps by sorted key,
 * integers alike whether they came as `number` or `bigint`, lists alike whether typed or plain. A ticket without a
 * secret to check it against is believed, as one of the reference is.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { argumentError, HandoffError } from './errors.js';
import { isRecord } from './json.js';
import { defaultTicketLimits } from './limits.js';

/** Key of the seal in `kv_meta.handoff`. */
export const sealKey = 'seal';
const { ticketDepthMax } = defaultTicketLimits;

/**
 * Prefill. The seal of a ticket, base64: HMAC-SHA256 under the secret.
 *
 * @throws `TICKET_INVALID` for a value that no ticket has
 */
export function ticketSeal(secret: string, kvMeta: unknown, blockIds: unknown): string {
  const parts: string[] = [];
  write(parts, kvMeta, 'kvMeta', 0);
  write(parts, blockIds, 'blockIds', 0);
  return createHmac('sha256', secret).update(parts.join(''), 'utf8').digest('base64');
}

/**
 * Decode. Believes a ticket whose seal is that of this secret.
 *
 * @throws `TICKET_FORGED` for any other, `TICKET_INVALID` for a value that no ticket has
 */
export function checkTicketSeal(secret: string, kvMeta: unknown, blockIds: unknown): void {
  const handoff = isRecord(kvMeta) ? kvMeta['handoff'] : null;
  const given = isRecord(handoff) ? handoff[sealKey] : null;
  // As text: one digest has many spellings in base64, and only ours is taken.
  const expected = Buffer.from(ticketSeal(secret, kvMeta, blockIds), 'ascii');
  const bytes = Buffer.from(typeof given === 'string' ? given : '', 'utf8');
  if (bytes.length === expected.length && timingSafeEqual(bytes, expected)) return;
  const got = typeof given === 'string' ? 'another; the ticket was altered, or the secrets differ' : 'none';
  throw new HandoffError(
    'TICKET_FORGED',
    `kvMeta.handoff.${sealKey}: expected the seal of options.ticketSecret, got ${got}`,
    { phase: 'decode' },
  );
}

/** Whether a ticket may be acted upon: it has the seal, or there is no secret to have one of. Throws nothing. */
export function isTrustedTicket(secret: string | null, kvMeta: unknown, blockIds: unknown): boolean {
  if (secret === null) return true;
  try {
    checkTicketSeal(secret, kvMeta, blockIds);
    return true;
  } catch {
    return false;
  }
}

function write(parts: string[], value: unknown, path: string, depth: number): void {
  if (depth > ticketDepthMax) throw argumentError(path, `at most ${ticketDepthMax} levels`, value, 'TICKET_INVALID');
  if (typeof value === 'number') parts.push(Object.is(value, -0) ? '0' : String(value), ' ');
  else if (typeof value === 'bigint') parts.push(String(value), ' ');
  else if (typeof value === 'string') parts.push(JSON.stringify(value));
  else if (typeof value === 'boolean' || value === null) parts.push(String(value), ' ');
  else if (isList(value)) {
    parts.push('[');
    for (const item of value) write(parts, item, path, depth + 1);
    parts.push(']');
  } else if (isRecord(value)) {
    parts.push('{');
    for (const key of Object.keys(value).sort()) {
      // The seal cannot cover itself; what is undefined does not travel.
      if ((key === sealKey && path === 'kvMeta.handoff') || value[key] === undefined) continue;
      parts.push(JSON.stringify(key), ':');
      write(parts, value[key], depth < 2 ? `${path}.${key}` : path, depth + 1);
    }
    parts.push('}');
  } else throw argumentError(path, 'a value that a ticket can carry', value, 'TICKET_INVALID');
}

function isList(value: unknown): value is Iterable<unknown> {
  return Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
}
