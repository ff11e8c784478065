/**
 * What a field of a message can be, and which fields each message has in each wire profile (spec 1.4). Data only: the
 * codec walks these tables both ways. A message whose shape depends on more than its fields is built in `codec.ts`.
 */
import type { Header } from './headers.js';

/** How one field is read, checked and written. */
export type FieldKind =
  /** A request id: 0 to 2^53 - 1. */
  | 'id'
  /** A count: 0 to 2^31 - 1. */
  | 'count'
  /** Text of bounded length; `name` may not be empty. */
  | 'text'
  | 'name'
  | 'boolean'
  | 'map'
  | 'list'
  /** Anything, kept in its bytes; nil is null. */
  | 'opaque'
  /** Text or a list, kept in its bytes. */
  | 'prompt'
  | 'opaque-map'
  | 'opaque-list'
  /** A list of signed 64-bit integers, or nil. */
  | 'hashes'
  | 'extension';

export interface Field {
  readonly name: string;
  readonly kind: FieldKind;
  /** A peer may leave it out, with all that follow; `otherwise` stands for it then. */
  readonly otherwise?: unknown;
  /** We leave it out, too, when it has the value that stands for it. */
  readonly omitted?: true;
  /** The single-frame profile has no place for it and goes without; other such fields must be null there. */
  readonly dropped?: true;
}

/** The fields after the header, in one frame, or in the metadata frame and in a frame each. */
export interface Layout {
  readonly single: readonly Field[];
  readonly metadata: readonly Field[];
  readonly payload: readonly Field[];
}

/** The places that receive. */
export type Place = 'coordinator' | 'engine' | 'client' | 'ranks';

const id: Field = { name: 'requestId', kind: 'id' };
const prompt: Field = { name: 'prompt', kind: 'prompt' };
const sampling: Field = { name: 'sampling', kind: 'map' };
const kvMeta: Field = { name: 'kvMeta', kind: 'opaque-map' };
const sourceBlockIds: Field = { name: 'sourceBlockIds', kind: 'opaque-list' };
const sourceSafe: Field = { name: 'sourceSafe', kind: 'boolean' };
const instance: Field = { name: 'instance', kind: 'name' };
const owner: Field = { name: 'owner', kind: 'name' };
const body: Field = { name: 'body', kind: 'opaque-map' };
const status: Field = { name: 'status', kind: 'map' };
const cachedPrefixBlocks: Field = { name: 'cachedPrefixBlocks', kind: 'count' };

/** An older multi-frame peer leaves these out (spec 1.4, B'). */
function nullable(name: string, kind: FieldKind = 'opaque'): Field {
  return { name, kind, otherwise: null };
}

/** The same fields whatever the profile, all in the first frame. */
function alike(...fields: readonly Field[]): Layout {
  return { single: fields, metadata: fields, payload: [] };
}

function withBody(...fields: readonly Field[]): Layout {
  return { single: [...fields, body], metadata: fields, payload: [body] };
}

const bare = alike();

const signals = {
  PAUSE: bare,
  UNPAUSE: bare,
  SUSPEND: bare,
  RESUME: bare,
  STOP: bare,
  START_CUDA_PROFILER: bare,
  STOP_CUDA_PROFILER: bare,
  SET_GENERATION_EPOCH: alike({ name: 'epoch', kind: 'id' }),
};

const submitWithKv: Layout = {
  single: [id, prompt, sampling, kvMeta, sourceBlockIds],
  metadata: [id, sampling, kvMeta],
  payload: [prompt, sourceBlockIds, nullable('offloadParams')],
};

const releaseKv = alike(id, { ...instance, otherwise: null, omitted: true });
const reason: Field = { name: 'reason', kind: 'text' };
const requestError = alike(id, reason, sourceSafe);
const requestAborted = alike(id, sourceSafe);
const claim = alike(id, instance, owner);

/**
 * Which messages each place takes. ENGINE_REPLY and ENGINE_REPLY_PARTIAL to the coordinator are not here; an engine's
 * REQUEST_ERROR is the rejected registration.
 */
export const layouts: Readonly<Record<Place, Readonly<Partial<Record<Header, Layout>>>>> = {
  coordinator: {
    CONNECT: bare,
    DISCONNECT: bare,
    SHUTDOWN: bare,
    STATUS: bare,
    ...signals,
    SUBMIT_REQUEST: {
      single: [id, prompt, sampling],
      metadata: [id, sampling, nullable('mediaMeta')],
      payload: [
        prompt,
        { ...nullable('blockHashes', 'hashes'), dropped: true },
        nullable('media'),
        nullable('offloadParams'),
      ],
    },
    SUBMIT_REQUEST_WITH_KV: submitWithKv,
    ABORT_REQUEST: alike(id),
    RELEASE_KV: releaseKv,
    REGISTER_ROLE: alike(
      { name: 'role', kind: 'text' },
      { name: 'transport', kind: 'text' },
      { name: 'instanceMeta', kind: 'list' },
      { name: 'extension', kind: 'extension', otherwise: null, omitted: true },
    ),
    KV_READ_DONE: alike(id),
    KV_TRANSFER_READY: alike(id, cachedPrefixBlocks),
    REQUEST_ERROR: requestError,
    REQUEST_ABORTED: requestAborted,
    REGISTER_KV: alike(id),
    CLAIM_KV: claim,
    RELEASE_KV_OWNER: alike(instance, owner),
    ENGINE_STATUS: alike(status),
  },
  engine: {
    REGISTER_ROLE_ACK: bare,
    REQUEST_ERROR: alike(reason),
    ...signals,
    SUBMIT_REQUEST: {
      single: [id, prompt, sampling],
      metadata: [id, sampling, nullable('mediaMeta')],
      payload: [prompt, nullable('media'), nullable('offloadParams')],
    },
    SUBMIT_REQUEST_WITH_KV: submitWithKv,
    ABORT_REQUEST: alike(id),
    RELEASE_KV: releaseKv,
    SEND_KV: alike(id, { name: 'decodeInstanceMeta', kind: 'list' }, { ...cachedPrefixBlocks, otherwise: 0 }),
    CLAIM_KV: claim,
  },
  client: {
    CONNECT_ACK: { single: [], metadata: [{ ...nullable('instance', 'name'), dropped: true }], payload: [] },
    ENGINE_REPLY: withBody(id),
    ENGINE_REPLY_PARTIAL: withBody(id),
    REQUEST_ERROR: requestError,
    REQUEST_ABORTED: requestAborted,
    CLAIM_KV_ACK: alike(id, instance, { name: 'granted', kind: 'boolean' }),
    RELEASE_KV_ACK: alike(id, instance),
    RELEASE_KV_OWNER_ACK: alike(instance, owner),
    STATUS_REPLY: alike(status),
  },
  ranks: { KV_HANDOFF_COMPLETE: alike(id, { name: 'failed', kind: 'boolean' }, { ...sourceSafe, otherwise: null }) },
};
