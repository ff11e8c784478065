/**
 * Messages to frames and back, in the two wire profiles of spec 1.4: `single-frame` (Gen B, one msgpack list a message)
 * and `multi-frame` (Gen C, a metadata frame and opaque payload frames; what Gen B' leaves out is accepted). Works on
 * bytes only. Decoding refuses what is malformed with `MESSAGE_INVALID` and never looks past the bounds of its input.
 */
import { argumentError, type HandoffError } from '../../errors.js';
import { checkOpaque, readField, writeField } from './field-codec.js';
import { headerOf, headerValues, type Header } from './headers.js';
import { layouts, type Field, type Layout, type Place } from './message-fields.js';
import type { PartialEntry, ReplyEntry, ToClient, ToCoordinator, ToEngine, ToRanks } from './messages.js';
import { decodeValue, isMapForm, mapParts } from './wire-bytes.js';
import { WireReader } from './wire-reader.js';
import type { Opaque } from './wire-value.js';
import { WireWriter } from './wire-writer.js';

/** How messages are cut into frames. Peers of one coordinator all use the same. */
export type WireProfile = 'single-frame' | 'multi-frame';

/** The messages that each place takes. */
export interface PlaceMessages {
  readonly coordinator: ToCoordinator;
  readonly engine: ToEngine;
  readonly client: ToClient;
  readonly ranks: ToRanks;
}

/** Frames of one message, without the routing identity. */
export type Frames = readonly Uint8Array[];

/** Entries of one batched reply. */
const entriesMax = 1 << 16;

type Fields = Record<string, unknown>;

const writer = new WireWriter();

/**
 * What `place` was told.
 *
 * @throws `MESSAGE_INVALID` for anything that is not exactly one message that `place` takes in this profile
 */
export function decodeMessage<P extends Place>(profile: WireProfile, place: P, frames: Frames): PlaceMessages[P] {
  const [first] = frames;
  if (first === undefined) throw malformed('frames', 'at least one frame', frames);
  if (first.length === 0 && frames.length === 1 && place === 'coordinator')
    return { header: 'REGISTER' } as PlaceMessages[P];
  const reader = new WireReader(first, 'frames[0]');
  const elements = reader.listLength();
  if (elements === 0) throw malformed('frames[0]', 'a header', []);
  const header = headerOf(reader.value());
  const isBatched = header === 'ENGINE_REPLY' || header === 'ENGINE_REPLY_PARTIAL';
  if (isBatched && place === 'coordinator')
    return decodeBatch(profile, header, reader, elements, frames) as unknown as PlaceMessages[P];
  const layout = layouts[place][header];
  if (layout === undefined) throw malformed('frames[0]', `a message to the ${place}`, header);
  const message: Fields = { header: nameTowards(place, header) };
  if (profile === 'single-frame') {
    readFields(layout.single, elements - 1, reader, message);
    if (frames.length > 1) throw malformed('frames', 'one frame', frames);
  } else {
    readFields(layout.metadata, elements - 1, reader, message);
    readPayload(layout.payload, frames, message);
  }
  reader.end();
  for (const field of missingFrom(layout, profile)) message[field.name] = field.otherwise;
  if (header === 'KV_HANDOFF_COMPLETE') message['sourceSafe'] ??= !(message['failed'] as boolean);
  return message as unknown as PlaceMessages[P];
}

/**
 * The frames with which `place` is told `message`. Frames may share memory with the message's opaque parts.
 *
 * @throws `ARGUMENT_INVALID` for a message that the profile cannot say, or that breaks its own types
 */
export function encodeMessage<P extends Place>(profile: WireProfile, place: P, message: PlaceMessages[P]): Frames {
  if (message.header === 'REGISTER') return [new Uint8Array(0)];
  const header = headerTowards(message.header);
  if (place === 'coordinator' && (message.header === 'ENGINE_REPLY' || message.header === 'ENGINE_REPLY_PARTIAL'))
    return encodeBatch(profile, message as Batch);
  const layout = layouts[place][header];
  if (layout === undefined) throw argumentError('message.header', `a message to the ${place}`, message.header);
  const fields = message as unknown as Fields;
  for (const field of missingFrom(layout, profile)) {
    if (fields[field.name] !== field.otherwise && field.dropped !== true)
      throw argumentError(field.name, 'null in the single-frame profile', fields[field.name]);
  }
  try {
    const written = profile === 'single-frame' ? layout.single : layout.metadata;
    const count = writtenCount(written, fields);
    writer.listHead(1 + count);
    writer.integer(headerValues[header]);
    for (let index = 0; index < count; index++) writeField(written[index]!, fields[written[index]!.name], writer);
    const frames = [writer.finish()];
    if (profile === 'single-frame') return frames;
    for (const field of layout.payload) frames.push(payloadFrame(field, fields[field.name]));
    return frames;
  } catch (error) {
    writer.discard();
    throw error;
  }
}

/** The place that a coordinator's message goes to: its engines and its clients are told different things. */
export function placeOf(message: ToEngine | ToClient): 'engine' | 'client' {
  if (message.header === 'REGISTRATION_ERROR') return 'engine';
  return message.header !== 'REQUEST_ERROR' && layouts.engine[message.header] !== undefined ? 'engine' : 'client';
}

/** A rejected registration has the header of REQUEST_ERROR and another shape. */
function nameTowards(place: Place, header: Header): string {
  return place === 'engine' && header === 'REQUEST_ERROR' ? 'REGISTRATION_ERROR' : header;
}

function headerTowards(name: string): Header {
  if (name === 'REGISTRATION_ERROR') return 'REQUEST_ERROR';
  if (!Object.hasOwn(headerValues, name)) throw argumentError('message.header', 'a header of the protocol', name);
  return name as Header;
}

function readFields(fields: readonly Field[], count: number, reader: WireReader, message: Fields): void {
  if (count > fields.length) throw malformed('frames[0]', `at most ${fields.length} fields`, count);
  for (let index = 0; index < fields.length; index++) {
    const field = fields[index]!;
    if (index < count) message[field.name] = readField(field, reader);
    else if (field.otherwise === undefined) throw malformed(field.name, 'a value', undefined);
    else message[field.name] = field.otherwise;
  }
}

function readPayload(fields: readonly Field[], frames: Frames, message: Fields): void {
  if (frames.length - 1 > fields.length) throw malformed('frames', `at most ${fields.length + 1} frames`, frames);
  for (let index = 0; index < fields.length; index++) {
    const field = fields[index]!;
    const frame = frames[index + 1];
    if (frame === undefined) {
      if (field.otherwise === undefined) throw malformed(field.name, 'a frame', undefined);
      message[field.name] = field.otherwise;
      continue;
    }
    // Most optional parts are nil.
    if (frame.length === 1 && frame[0] === nil && field.otherwise === null) {
      message[field.name] = null;
      continue;
    }
    const reader = new WireReader(frame, payloadPaths[index]!);
    message[field.name] = readField(field, reader);
    reader.end();
  }
}

const nil = 0xc0;
/** Where errors say that a payload frame lies. */
const payloadPaths = Array.from({ length: 8 }, (_, index) => `frames[${index + 1}]`);

/** Fields that the message has and the profile does not. */
function missingFrom(layout: Layout, profile: WireProfile): readonly Field[] {
  if (profile === 'multi-frame' || layout.single === layout.metadata) return noFields;
  return [...layout.metadata, ...layout.payload].filter((field) => !layout.single.includes(field));
}

const noFields: readonly Field[] = [];

/** How many fields are written: trailing ones that we omit at the value that stands for them are not. */
function writtenCount(fields: readonly Field[], message: Fields): number {
  let count = fields.length;
  while (count > 0) {
    const field = fields[count - 1]!;
    if (field.omitted !== true || message[field.name] !== field.otherwise) break;
    count--;
  }
  return count;
}

/** Opaque values are sent as they lie there. */
function payloadFrame(field: Field, value: unknown): Uint8Array {
  if (value instanceof Uint8Array) {
    checkOpaque(field, value);
    return value;
  }
  writeField(field, value, writer);
  return writer.finish();
}

type Batch =
  | { readonly header: 'ENGINE_REPLY'; readonly replies: readonly ReplyEntry[] }
  | { readonly header: 'ENGINE_REPLY_PARTIAL'; readonly partials: readonly PartialEntry[] };

function decodeBatch(
  profile: WireProfile,
  header: Batch['header'],
  reader: WireReader,
  elements: number,
  frames: Frames,
): Batch {
  if (elements !== 2) throw malformed('frames[0]', 'a list of entries', elements);
  const count = reader.listLength();
  if (count > entriesMax) throw malformed('frames[0]', `at most ${entriesMax} entries`, count);
  const isReply = header === 'ENGINE_REPLY';
  const entries: ReplyEntry[] = [];
  for (let index = 0; index < count; index++) {
    if (profile === 'single-frame') {
      const body = reader.opaque(2);
      entries.push({ requestId: idInside(body, `frames[0][1][${index}]`), needsDetokenize: isReply, body });
    } else {
      if (isReply && reader.listLength() !== 2) throw malformed(`frames[0][1][${index}]`, 'id and flag', undefined);
      const requestId = readField(entryId, reader) as number;
      const needsDetokenize = isReply ? (readField(entryFlag, reader) as boolean) : false;
      entries.push({ requestId, needsDetokenize, body: bodyFrame(frames, index + 1) });
    }
  }
  reader.end();
  if (profile === 'single-frame' && frames.length > 1) throw malformed('frames', 'one frame', frames);
  return isReply
    ? { header, replies: entries }
    : { header, partials: entries.map(({ requestId, body }) => ({ requestId, body })) };
}

const entryId: Field = { name: 'requestId', kind: 'id' };
const entryFlag: Field = { name: 'needsDetokenize', kind: 'boolean' };
const entryBody: Field = { name: 'body', kind: 'opaque-map' };

/** Frames beyond the declared ones are ignored (spec 1.4). */
function bodyFrame(frames: Frames, index: number): Opaque {
  const frame = frames[index];
  if (frame === undefined) throw malformed(`frames[${index}]`, 'a body', undefined);
  const reader = new WireReader(frame, `frames[${index}]`);
  const body = readField(entryBody, reader) as Opaque;
  reader.end();
  return body;
}

function idInside(body: Opaque, path: string): number {
  const part = mapParts(body, path)?.get('request_id');
  const id = part === undefined ? undefined : decodeValue(part, `${path}.request_id`);
  if (typeof id !== 'number' || id < 0) throw malformed(`${path}.request_id`, 'an integer in [0, 2^53 - 1]', id);
  return id;
}

function encodeBatch(profile: WireProfile, message: Batch): Frames {
  const isReply = message.header === 'ENGINE_REPLY';
  const entries: readonly (PartialEntry | ReplyEntry)[] = isReply ? message.replies : message.partials;
  if (entries.length > entriesMax) throw argumentError('message', `at most ${entriesMax} entries`, entries);
  try {
    writer.listHead(2);
    writer.integer(headerValues[message.header]);
    writer.listHead(entries.length);
    entries.forEach((entry, index) => {
      if (!isMapForm(entry.body[0])) throw argumentError(`[${index}].body`, 'a map, in its bytes', entry.body);
      if (profile === 'single-frame') {
        if (idInside(entry.body, `[${index}].body`) !== entry.requestId)
          throw argumentError(`[${index}].body.request_id`, `${entry.requestId}, the entry's own id`, 'another');
        writer.opaque(entry.body);
        return;
      }
      if (isReply) writer.listHead(2);
      writeField({ name: `[${index}].requestId`, kind: 'id' }, entry.requestId, writer);
      if (isReply)
        writeField({ name: 'needsDetokenize', kind: 'boolean' }, (entry as ReplyEntry).needsDetokenize, writer);
    });
    const first = writer.finish();
    return profile === 'single-frame' ? [first] : [first, ...entries.map(({ body }) => body)];
  } catch (error) {
    writer.discard();
    throw error;
  }
}

function malformed(path: string, expected: string, got: unknown): HandoffError {
  return argumentError(path, expected, got, 'MESSAGE_INVALID');
}
