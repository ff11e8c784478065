/**
 * The header integers of spec 1.1 and who speaks them. A table of data: the values of the reference, the six ownership
 * headers whose values the reference does not publish (ours, in a free range), and this package's own extensions.
 * Loading it fails when a value or a name stands twice.
 */
import { argumentError } from '../../errors.js';
import { invariant } from '../../invariant.js';

/** Ranges of values, named as the reference names them; `Extension` is this package's own. */
export type HeaderCategory =
  'Connection' | 'Request' | 'Control' | 'Lifecycle' | 'Transport' | 'Ownership' | 'Extension';

/** The reference's headers of spec 1.1 with their values (vectors `headers_gen_b`). */
export const referenceHeaders = {
  Connection: { CONNECT: 0, CONNECT_ACK: 1, REGISTER_ROLE_ACK: 2 },
  Request: {
    SUBMIT_REQUEST: 20,
    ENGINE_REPLY: 21,
    ENGINE_REPLY_PARTIAL: 22,
    ABORT_REQUEST: 23,
    SUBMIT_REQUEST_WITH_KV: 24,
    RELEASE_KV: 25,
    SEND_KV: 26,
    REGISTER_ROLE: 27,
    KV_READ_DONE: 28,
    REQUEST_ERROR: 29,
    KV_TRANSFER_READY: 30,
    REQUEST_ABORTED: 31,
  },
  Control: {
    PAUSE: 40,
    UNPAUSE: 41,
    SUSPEND: 42,
    RESUME: 43,
    SET_GENERATION_EPOCH: 44,
    STOP: 45,
    START_CUDA_PROFILER: 46,
    STOP_CUDA_PROFILER: 47,
  },
  Lifecycle: { DISCONNECT: 60, SHUTDOWN: 61 },
  Transport: { TP_BROADCAST: 80, KV_HANDOFF_COMPLETE: 81 },
} as const;

/** Headers whose values are ours: the ownership protocol of spec 1.7, and what only this package's peers say. */
export const ownHeaders = {
  Ownership: {
    REGISTER_KV: 32,
    CLAIM_KV: 33,
    CLAIM_KV_ACK: 34,
    RELEASE_KV_ACK: 35,
    RELEASE_KV_OWNER: 36,
    RELEASE_KV_OWNER_ACK: 37,
  },
  Extension: { ENGINE_STATUS: 100, STATUS: 101, STATUS_REPLY: 102 },
} as const;

/** Every header, name to value. */
export const headerValues = {
  ...referenceHeaders.Connection,
  ...referenceHeaders.Request,
  ...referenceHeaders.Control,
  ...referenceHeaders.Lifecycle,
  ...referenceHeaders.Transport,
  ...ownHeaders.Ownership,
  ...ownHeaders.Extension,
} as const;

/** The name of a header, as the reference writes it. */
export type Header = keyof typeof headerValues;

const names: ReadonlyMap<number, Header> = indexed();

function indexed(): ReadonlyMap<number, Header> {
  const tables = [...Object.values(referenceHeaders), ...Object.values(ownHeaders)];
  const found = new Map<number, Header>();
  for (const [name, value] of tables.flatMap((table) => Object.entries(table) as [Header, number][])) {
    invariant(!found.has(value) && ![...found.values()].includes(name), 'a header stands once', { name, value });
    found.set(value, name);
  }
  return found;
}

/**
 * The name of a header value.
 *
 * @throws `MESSAGE_INVALID` for a value that no header has: a protocol error
 */
export function headerOf(value: unknown): Header {
  const name = typeof value === 'number' ? names.get(value) : undefined;
  if (name === undefined)
    throw argumentError('frames[0][0]', 'a header value of the protocol', value, 'MESSAGE_INVALID');
  return name;
}
