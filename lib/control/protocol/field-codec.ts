/** Reads, checks and writes one field of a message by its kind. Reading blames the peer, writing the caller. */
import { argumentError, type HandoffErrorCode } from '../../errors.js';
import { int32Max } from '../../limits.js';
import { extensionFromWire, extensionToWire } from './engine-extension.js';
import type { Field, FieldKind } from './message-fields.js';
import type { EngineExtension } from './messages.js';
import { isListForm, isMapForm, isTextForm } from './wire-bytes.js';
import type { Wire } from './wire-value.js';
import type { WireReader } from './wire-reader.js';
import type { WireWriter } from './wire-writer.js';

const nameLengthMax = 512;
const textLengthMax = 1 << 16;
const nil = 0xc0;

/** @throws `MESSAGE_INVALID` */
export function readField(field: Field, reader: WireReader): unknown {
  switch (field.kind) {
    case 'opaque':
    case 'prompt':
    case 'opaque-map':
    case 'opaque-list': {
      const value = reader.opaque();
      if (field.otherwise === null && value[0] === nil) return null;
      check(field, value, 'MESSAGE_INVALID');
      return value;
    }
    case 'hashes':
      if (reader.peek() !== nil) return reader.int64List();
      reader.opaque();
      return null;
    case 'extension':
      return extensionFromWire(reader.value(), field.name);
    default: {
      const value = reader.value();
      if (field.otherwise === null && value === null) return null;
      check(field, value, 'MESSAGE_INVALID');
      return value;
    }
  }
}

/** @throws `ARGUMENT_INVALID` */
export function writeField(field: Field, value: unknown, writer: WireWriter): void {
  if (value === null && field.otherwise === null) return writer.value(null, field.name);
  switch (field.kind) {
    case 'extension':
      return writer.value(extensionToWire(value as EngineExtension), field.name);
    case 'hashes':
      if (!(value instanceof BigInt64Array)) throw argumentError(field.name, forms.hashes.expected, value);
      writer.listHead(value.length);
      for (const hash of value) writer.value(hash, field.name);
      return;
    case 'opaque':
    case 'prompt':
    case 'opaque-map':
    case 'opaque-list':
      check(field, value, 'ARGUMENT_INVALID');
      return writer.opaque(value as Uint8Array);
    default:
      check(field, value, 'ARGUMENT_INVALID');
      return writer.value(value as Wire, field.name);
  }
}

/** Whether a value kept in its bytes has the form of its field. @throws `ARGUMENT_INVALID` */
export function checkOpaque(field: Field, value: unknown): void {
  check(field, value, 'ARGUMENT_INVALID');
}

function check(field: Field, value: unknown, code: HandoffErrorCode): void {
  const form = forms[field.kind];
  if (!form.holds(value)) throw argumentError(field.name, form.expected, value, code);
}

const forms: Readonly<Record<FieldKind, { readonly expected: string; readonly holds: (value: unknown) => boolean }>> = {
  id: {
    expected: 'an integer in [0, 2^53 - 1]',
    holds: (value) => typeof value === 'number' && Number.isSafeInteger(value) && value >= 0,
  },
  count: {
    expected: `an integer in [0, ${int32Max}]`,
    holds: (value) => typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= int32Max,
  },
  text: {
    expected: `text of at most ${textLengthMax} characters`,
    holds: (value) => typeof value === 'string' && value.length <= textLengthMax,
  },
  name: {
    expected: `text of 1 to ${nameLengthMax} characters`,
    holds: (value) => typeof value === 'string' && value.length >= 1 && value.length <= nameLengthMax,
  },
  boolean: { expected: 'true or false', holds: (value) => typeof value === 'boolean' },
  map: { expected: 'a map', holds: (value) => value instanceof Map },
  list: { expected: 'a list', holds: (value) => Array.isArray(value) },
  opaque: { expected: 'the bytes of a value', holds: (value) => value instanceof Uint8Array && value.length > 0 },
  prompt: {
    expected: 'text or a list, in its bytes',
    holds: (value) => value instanceof Uint8Array && (isTextForm(value[0]) || isListForm(value[0])),
  },
  'opaque-map': {
    expected: 'a map, in its bytes',
    holds: (value) => value instanceof Uint8Array && isMapForm(value[0]),
  },
  'opaque-list': {
    expected: 'a list, in its bytes',
    holds: (value) => value instanceof Uint8Array && isListForm(value[0]),
  },
  hashes: { expected: 'a BigInt64Array', holds: (value) => value instanceof BigInt64Array },
  extension: { expected: 'an extension', holds: (value) => typeof value === 'object' },
};
