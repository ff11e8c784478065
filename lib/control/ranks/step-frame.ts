/**
 * The frame of one step as bytes: what rank 0 publishes and each worker applies.
 *
 * A frame that was read has the shape that the log relies on; whether its tickets make sense is checked where they are
 * applied. Refuses unknown kinds, unknown, missing and wrong fields, and counts beyond what an instance can have.
 */
import type { SamplingParams } from '../../engine-context.js';
import { argumentError } from '../../errors.js';
import { isRecord } from '../../json.js';
import { defaultTicketLimits, int32Max } from '../../limits.js';
import { checkLabel, checkSamplingParams } from '../../request-input.js';
import { failureCodes, type LogRecord, type StepFrame } from '../rank-group.js';
import { decodeWireValue, encodeWireValue } from './wire-value.js';

/** Records of one frame. */
export const frameRecordsMax = 1 << 20;

/** Characters of a reason, which is part of an error's message. */
const reasonLengthMax = 4096;

type Check = (value: unknown, path: string) => void;

/** @throws `ARGUMENT_INVALID` naming what is no plain value */
export function encodeStepFrame(frame: StepFrame): Uint8Array {
  return encodeWireValue([frame.step, frame.records], 'frame');
}

/** @throws `ARGUMENT_INVALID` for bytes that are no frame */
export function decodeStepFrame(bytes: Uint8Array): StepFrame {
  const pair = decodeWireValue(bytes, 'frame');
  if (!Array.isArray(pair) || pair.length !== 2) throw argumentError('frame', 'a step and its records', pair);
  const [step, records] = pair as [unknown, unknown];
  positive(step, 'frame.step');
  if (!Array.isArray(records) || records.length > frameRecordsMax)
    throw argumentError('frame.records', `a list of at most ${frameRecordsMax}`, records);
  for (const [index, record] of records.entries()) checkRecord(record, `frame.records[${index}]`);
  return { step: step as number, records: records as LogRecord[] };
}

function checkRecord(record: unknown, path: string): void {
  if (!isRecord(record)) throw argumentError(path, 'a record of the schedule log', record);
  const { kind } = record;
  if (typeof kind !== 'string' || !Object.hasOwn(fields, kind))
    throw argumentError(`${path}.kind`, `one of ${Object.keys(fields).join(', ')}`, kind);
  const checks = fields[kind as LogRecord['kind']];
  for (const key of Object.keys(record)) {
    if (key !== 'kind' && !Object.hasOwn(checks, key))
      throw argumentError(`${path}.${key}`, 'no such field', record[key]);
  }
  for (const [key, check] of Object.entries(checks)) {
    check(Object.hasOwn(record, key) ? record[key] : undefined, `${path}.${key}`);
  }
}

function requires(expected: string, holds: (value: unknown) => boolean): Check {
  return (value, path) => {
    if (!holds(value)) throw argumentError(path, expected, value);
  };
}

const isWithin = (value: unknown, minimum: number, maximum: number): boolean =>
  Number.isSafeInteger(value) && (value as number) >= minimum && (value as number) <= maximum;

const positive = requires('an integer of at least 1', (value) => isWithin(value, 1, Number.MAX_SAFE_INTEGER));
const bool = requires('true or false', (value) => typeof value === 'boolean');
const map = requires('a map', isRecord);
const isText = (value: unknown, lengthMax: number): boolean => typeof value === 'string' && value.length <= lengthMax;
const name = requires(`at most ${defaultTicketLimits.nameLengthMax} characters`, (value) =>
  isText(value, defaultTicketLimits.nameLengthMax),
);
const nullableName = requires(
  `null or at most ${defaultTicketLimits.nameLengthMax} characters`,
  (value) => value === null || isText(value, defaultTicketLimits.nameLengthMax),
);
const text = requires(`at most ${reasonLengthMax} characters`, (value) => isText(value, reasonLengthMax));
const oneOf = (...words: readonly string[]): Check =>
  requires(words.join(' or '), (value) => typeof value === 'string' && words.includes(value));
const tokens = requires('tokens', (value) => value instanceof Int32Array && value.length > 0);
const hashes = requires('hashes', (value) => value instanceof BigInt64Array);
const blockIds = requires(
  `a list of at most ${defaultTicketLimits.blocksMax} block ids`,
  (value) =>
    Array.isArray(value) &&
    value.length <= defaultTicketLimits.blocksMax &&
    value.every((id) => isWithin(id, 0, int32Max)),
);

const fields: {
  readonly [Kind in LogRecord['kind']]: Readonly<
    Record<Exclude<keyof Extract<LogRecord, { kind: Kind }>, 'kind'>, Check>
  >;
} = {
  add: {
    attemptId: positive,
    requestId: (value) => void checkLabel(value as string),
    prompt: tokens,
    samplingParams: (value) => void checkSamplingParams(value as SamplingParams),
    kvMeta: map,
    sourceBlockIds: blockIds,
    blockHashes: hashes,
  },
  abort: { attemptId: positive, reason: oneOf('caller', 'queue-deadline') },
  decision: {
    attemptId: positive,
    failed: bool,
    sourceSafe: bool,
    reason: requires(
      `null or at most ${reasonLengthMax} characters`,
      (value) => value === null || isText(value, reasonLengthMax),
    ),
  },
  release: { handoffId: positive, reason: oneOf('released', 'expired', 'attested') },
  push: {
    handoffId: positive,
    targets: requires(
      `a list of at most ${defaultTicketLimits.ranksMax} descriptors`,
      (value) => Array.isArray(value) && value.length <= defaultTicketLimits.ranksMax,
    ),
    cachedPrefixBlocks: requires('a number of blocks', (value) => isWithin(value, 0, defaultTicketLimits.blocksMax)),
    targetInstance: nullableName,
    targetIncarnation: nullableName,
  },
  'push-safe': { pushId: positive },
  'attest-dead': { instance: name, incarnation: name },
  carried: { message: map },
  'instance-failed': {
    code: oneOf(...failureCodes),
    rank: requires('null or a rank', (value) => value === null || isWithin(value, 0, int32Max)),
    attemptId: requires(
      'null or an attempt id',
      (value) => value === null || isWithin(value, 1, Number.MAX_SAFE_INTEGER),
    ),
    reason: text,
  },
};
