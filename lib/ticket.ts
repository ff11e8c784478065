/**
 * The ticket: all that decode needs from prefill to take a request over, and the identity that fences it.
 *
 * On the wire it is the reference's `disaggregated_params`, `{request_id, block_ids, kv_meta}`, with our identity inside
 * `kv_meta.handoff` (spec 1.5.3). Identity and outline are checked here; what the metadata says is `parseKvMeta`'s.
 */
import { requireObject } from './argument-shape.js';
import type { RequestId } from './engine-context.js';
import { argumentError, HandoffError } from './errors.js';
import type { HandoffRef } from './events.js';
import { isRecord, setOwn } from './json.js';
import { integerField, own, recordField, stringField, type Fields } from './json-fields.js';
import { checkTicketLimits, defaultTicketLimits, type TicketLimits } from './limits.js';
import { blockIdList, transferPeerRecords } from './prefill/transfer-records.js';

/** `kv_meta`: plain data; 64-bit values are `bigint`. Unknown keys are kept. */
export type KvMeta = Readonly<Record<string, unknown>>;

/** What prefill gives and decode takes. */
export interface Ticket {
  /** The caller's label of the request. */
  readonly requestId: RequestId;
  /** The prompt's blocks on the source, a partial last one included, in sequence order. */
  readonly blockIds: readonly number[];
  readonly kvMeta: KvMeta;
  /** The same identity that `kvMeta.handoff` carries; null for a ticket of a peer that has none (the reference). */
  readonly handoff: HandoffRef | null;
  /** What else was beside `request_id`, `block_ids` and `kv_meta`. */
  readonly extra?: Readonly<Record<string, unknown>>;
}

/** Version of `kv_meta.handoff`. */
export const handoffVersion = 1;

/**
 * The identity in `kv_meta.handoff`.
 *
 * @throws `TICKET_VERSION` for another version, `TICKET_INVALID`
 */
export function parseHandoffFields(fields: Fields, path: string, limits: TicketLimits): HandoffRef {
  const version = own(fields, 'version');
  if (version !== handoffVersion) {
    const code = typeof version === 'number' ? 'TICKET_VERSION' : 'TICKET_INVALID';
    throw argumentError(`${path}.version`, `${handoffVersion}`, version, code);
  }
  return {
    instance: stringField(fields, 'instance', path, limits.nameLengthMax),
    incarnation: stringField(fields, 'incarnation', path, limits.nameLengthMax),
    handoffId: integerField(fields, 'handoff_id', path, 0, Number.MAX_SAFE_INTEGER),
    epoch: integerField(fields, 'epoch', path, 0, Number.MAX_SAFE_INTEGER),
  };
}

/** The ticket in the reference's form: what a control plane forwards as `disaggregated_params`. Shares, never changes. */
export function disaggregatedParams(ticket: Ticket): Readonly<Record<string, unknown>> {
  requireObject('ticket', ticket);
  const params: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(ticket.extra ?? {})) setOwn(params, key, value);
  return { ...params, request_id: ticket.requestId, block_ids: ticket.blockIds, kv_meta: ticket.kvMeta };
}

/**
 * The ticket in `disaggregated_params` of ours or of the reference.
 *
 * @throws `TICKET_INVALID`, `TICKET_VERSION`
 */
export function ticketFromParams(params: unknown, limits: TicketLimits = defaultTicketLimits): Ticket {
  checkTicketLimits(limits);
  if (!isRecord(params)) throw argumentError('ticket', 'a map', params, 'TICKET_INVALID');
  const requestId = own(params, 'request_id');
  const isLabel = typeof requestId === 'string' && requestId.length <= limits.nameLengthMax;
  if (!isLabel && !(typeof requestId === 'number' && Number.isSafeInteger(requestId))) {
    throw argumentError(
      'ticket.request_id',
      `a safe integer or a string of at most ${limits.nameLengthMax} characters`,
      requestId,
      'TICKET_INVALID',
    );
  }
  const blockIds = Array.from(blockIdList(own(params, 'block_ids'), 'ticket.block_ids', limits));
  const kvMeta = recordField(params, 'kv_meta', 'ticket');
  transferPeerRecords(kvMeta, blockIds, limits, 'ticket.kv_meta');
  const handoff = identityOf(kvMeta, limits);
  const extra: Record<string, unknown> = {};
  for (const key of Object.keys(params)) {
    if (key !== 'request_id' && key !== 'block_ids' && key !== 'kv_meta') setOwn(extra, key, params[key]);
  }
  const ticket: Ticket = { requestId: requestId as RequestId, blockIds, kvMeta, handoff };
  return Object.keys(extra).length === 0 ? ticket : { ...ticket, extra };
}

/** What `kv_meta.handoff` says; null when there is none. */
function identityOf(kvMeta: Fields, limits: TicketLimits): HandoffRef | null {
  if ((own(kvMeta, 'handoff') ?? null) === null) return null;
  return parseHandoffFields(recordField(kvMeta, 'handoff', 'ticket.kv_meta'), 'ticket.kv_meta.handoff', limits);
}

/**
 * That `ticket.handoff` says what its metadata says; a ticket with two identities could be fenced by either.
 *
 * @throws `TICKET_INVALID`
 */
export function checkIdentity(ticket: Ticket, limits: TicketLimits = defaultTicketLimits): void {
  const inside = identityOf(ticket.kvMeta, limits);
  const beside = ticket.handoff;
  const isSame =
    inside === null || beside === null
      ? inside === beside
      : (['instance', 'incarnation', 'handoffId', 'epoch'] as const).every((key) => inside[key] === beside[key]);
  if (isSame) return;
  throw new HandoffError('TICKET_INVALID', 'ticket.handoff: expected the identity in kv_meta.handoff, got another', {
    details: { inside, beside },
  });
}
