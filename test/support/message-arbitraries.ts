/** Any message of the control plane, well formed: values of the wire in every form, and messages to every place. */
import fc from 'fast-check';
import type { Place } from '../../lib/control/protocol/message-fields.js';
import { encodeValue } from '../../lib/control/protocol/wire-bytes.js';
import { Float64, type Wire } from '../../lib/control/protocol/wire-value.js';

const id = fc.oneof(fc.nat(200), fc.maxSafeNat());
const text = fc.string({ unit: 'binary', maxLength: 40 });
const name = fc.string({ minLength: 1, maxLength: 40 });
const int64 = fc.bigInt({ min: -(1n << 63n), max: (1n << 64n) - 1n });

/** What decoding gives back unchanged: integers that a number holds are numbers, every float is a `Float64`. */
export const anyWire: fc.Arbitrary<Wire> = fc.letrec<{ value: Wire }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.constant(null),
    fc.boolean(),
    fc.maxSafeInteger(),
    int64.map((value) => (Number.isSafeInteger(Number(value)) ? Number(value) : value)),
    text,
    fc.double().map((value) => new Float64(value)),
    fc.uint8Array({ maxLength: 300 }),
    fc.array(tie('value'), { maxLength: 20 }),
    fc
      .array(fc.tuple(fc.oneof(text, fc.nat(99).map(String)), tie('value')), { maxLength: 20 })
      .map((all) => new Map(all)),
  ),
})).value;

const map = fc.array(fc.tuple(text, anyWire), { maxLength: 6 }).map((entries) => new Map<string, Wire>(entries));
const opaque = (value: fc.Arbitrary<Wire>) => value.map((inner) => encodeValue(inner));
const nullable = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: null });
const tokens = fc.array(fc.nat(200_000), { maxLength: 40 });
const prompt = opaque(fc.oneof(text, tokens));
const extra = nullable(opaque(anyWire.filter((value) => value !== null)));
const body = fc.tuple(id, map).map(([requestId, rest]) => ({
  requestId,
  body: encodeValue(new Map<string, Wire>([...rest, ['request_id', requestId]])),
}));
const held = fc.record({
  requestId: id,
  state: fc.constantFrom('pinned', 'importing', 'quarantined'),
  peerInstance: nullable(name),
  peerIncarnation: nullable(name),
  ageMs: fc.nat(),
  blocks: fc.nat(),
});
const extension = fc.record({
  instance: name,
  incarnation: name,
  transports: fc.array(name, { maxLength: 4 }),
  held: fc.array(held, { maxLength: 4 }),
});

type Shape = Record<string, fc.Arbitrary<unknown>>;
const bare = (...headers: string[]): Record<string, Shape> => Object.fromEntries(headers.map((header) => [header, {}]));
const signals = {
  ...bare('PAUSE', 'UNPAUSE', 'SUSPEND', 'RESUME', 'STOP', 'START_CUDA_PROFILER', 'STOP_CUDA_PROFILER'),
  SET_GENERATION_EPOCH: { epoch: id },
};
const submit = { requestId: id, prompt, sampling: map, mediaMeta: extra, media: extra, offloadParams: extra };
const submitWithKv = {
  requestId: id,
  prompt,
  sampling: map,
  kvMeta: opaque(map),
  sourceBlockIds: opaque(tokens),
  offloadParams: extra,
};
const failure = { requestId: id, reason: text, sourceSafe: fc.boolean() };
const aborted = { requestId: id, sourceSafe: fc.boolean() };
const release = { requestId: id, instance: nullable(name) };
const claim = { requestId: id, instance: name, owner: name };

/** Every message of spec 1.4, by place and header, in the multi-frame profile. */
export const messageShapes: Readonly<Record<Place, Readonly<Record<string, Shape>>>> = {
  coordinator: {
    ...bare('REGISTER', 'CONNECT', 'DISCONNECT', 'SHUTDOWN', 'STATUS'),
    ...signals,
    SUBMIT_REQUEST: {
      ...submit,
      blockHashes: nullable(
        fc.array(fc.bigInt({ min: -(1n << 63n), max: (1n << 63n) - 1n })).map((all) => BigInt64Array.from(all)),
      ),
    },
    SUBMIT_REQUEST_WITH_KV: submitWithKv,
    ABORT_REQUEST: { requestId: id },
    RELEASE_KV: release,
    REGISTER_ROLE: {
      role: text,
      transport: text,
      instanceMeta: fc.array(map, { maxLength: 4 }),
      extension: nullable(extension),
    },
    ENGINE_REPLY: {
      replies: fc.array(
        fc.tuple(body, fc.boolean()).map(([entry, needsDetokenize]) => ({ ...entry, needsDetokenize })),
        { maxLength: 5 },
      ),
    },
    ENGINE_REPLY_PARTIAL: { partials: fc.array(body, { maxLength: 5 }) },
    KV_READ_DONE: { requestId: id },
    KV_TRANSFER_READY: { requestId: id, cachedPrefixBlocks: fc.nat() },
    REQUEST_ERROR: failure,
    REQUEST_ABORTED: aborted,
    REGISTER_KV: { requestId: id },
    CLAIM_KV: claim,
    RELEASE_KV_OWNER: { instance: name, owner: name },
    ENGINE_STATUS: { status: map },
  },
  engine: {
    ...bare('REGISTER_ROLE_ACK'),
    REGISTRATION_ERROR: { reason: text },
    ...signals,
    SUBMIT_REQUEST: { ...submit, blockHashes: fc.constant(null) },
    SUBMIT_REQUEST_WITH_KV: submitWithKv,
    ABORT_REQUEST: { requestId: id },
    RELEASE_KV: release,
    SEND_KV: { requestId: id, decodeInstanceMeta: fc.array(map, { maxLength: 4 }), cachedPrefixBlocks: fc.nat() },
    CLAIM_KV: claim,
  },
  client: {
    CONNECT_ACK: { instance: nullable(name) },
    ENGINE_REPLY: { requestId: id, body: opaque(map) },
    ENGINE_REPLY_PARTIAL: { requestId: id, body: opaque(map) },
    REQUEST_ERROR: failure,
    REQUEST_ABORTED: aborted,
    CLAIM_KV_ACK: { requestId: id, instance: name, granted: fc.boolean() },
    RELEASE_KV_ACK: { requestId: id, instance: name },
    RELEASE_KV_OWNER_ACK: { instance: name, owner: name },
    STATUS_REPLY: { status: map },
  },
  ranks: { KV_HANDOFF_COMPLETE: { requestId: id, failed: fc.boolean(), sourceSafe: fc.boolean() } },
};

/** Any message to a place. */
export const anyMessage = fc.oneof(
  ...Object.entries(messageShapes).flatMap(([place, shapes]) =>
    Object.entries(shapes).map(([header, shape]) =>
      fc.record({ place: fc.constant(place as Place), message: fc.record({ header: fc.constant(header), ...shape }) }),
    ),
  ),
);

/** The same message as far as the single-frame profile can say it, and what comes back of it. */
export function inSingleFrame(message: Record<string, unknown>): Record<string, unknown> {
  const said: Record<string, unknown> = { ...message };
  for (const key of ['mediaMeta', 'media', 'offloadParams', 'blockHashes']) if (key in said) said[key] = null;
  if (said['header'] === 'CONNECT_ACK') said['instance'] = null;
  if (said['header'] === 'ENGINE_REPLY' && 'replies' in said)
    said['replies'] = (said['replies'] as object[]).map((entry) => ({ ...entry, needsDetokenize: true }));
  return said;
}
