/**
 * What two machines can use with each other, from what each says of itself. Pure. What a peer says is hostile until it is
 * here: text is bounded, and nothing of it is run.
 */
import { isRecord, type JsonValue } from '../json.js';
import { fieldError, integerField, listField, own, stringField, type Fields } from '../json-fields.js';
import type { MachineReport, TransportReport } from './machine-report.js';

const code = 'ARGUMENT_INVALID';
const textMax = 4096;

/** Whether two machines can use one transport with each other. */
export interface PairReport {
  readonly name: string;
  readonly usable: boolean;
  /** Null when they can. */
  readonly why: string | null;
  readonly fix: string | null;
}

/** In this machine's order of preference; the first that is usable is what an engine's `auto` takes. */
export function comparePair(ours: MachineReport, theirs: MachineReport): readonly PairReport[] {
  return ours.transports.map((here): PairReport => {
    const { name } = here;
    const there = theirs.transports.find((each) => each.name === name);
    const no = (why: string, fix: string | null = null): PairReport => ({ name, usable: false, why, fix });
    if (!here.usable) return no(`this machine: ${here.lacks ?? 'cannot use it'}`, here.fix);
    if (there === undefined) return no('the peer does not have it');
    if (!there.usable) return no(`the peer: ${there.lacks ?? 'cannot use it'}`, there.fix);
    if (name === 'host' && ours.machine !== null && theirs.machine !== null && ours.machine !== theirs.machine) {
      return no('the peer is on another machine, which the host transport does not reach');
    }
    if (here.version !== null && there.version !== null && here.version !== there.version) {
      return no(`version ${here.version} here and ${there.version} there`, 'install one version on both');
    }
    return { name, usable: true, why: null, fix: null };
  });
}

/** @throws `ARGUMENT_INVALID` naming the field */
export function parseMachineReport(value: JsonValue): MachineReport {
  if (!isRecord(value)) throw fieldError('', 'report', 'a map', value, code);
  integerField(value, 'format', 'report', 1, 1, code);
  return {
    format: 1,
    sdk: stringField(value, 'sdk', 'report', 64, code),
    node: stringField(value, 'node', 'report', 64, code),
    platform: stringField(value, 'platform', 'report', 64, code),
    machine: textOrNull(value, 'machine', 'report'),
    transports: listField(value, 'transports', 'report', 16, code).map(parseTransport),
  };
}

function parseTransport(value: unknown, index: number): TransportReport {
  const path = `report.transports[${index}]`;
  if (!isRecord(value)) throw fieldError('report', `transports[${index}]`, 'a map', value, code);
  const usable = own(value, 'usable');
  if (typeof usable !== 'boolean') throw fieldError(path, 'usable', 'true or false', usable, code);
  return {
    name: stringField(value, 'name', path, 64, code),
    usable,
    found: texts(value, 'found', path),
    version: textOrNull(value, 'version', path),
    lacks: textOrNull(value, 'lacks', path),
    fix: textOrNull(value, 'fix', path),
    notes: texts(value, 'notes', path),
  };
}

function textOrNull(value: Fields, key: string, path: string): string | null {
  return own(value, key) === null ? null : stringField(value, key, path, textMax, code);
}

function texts(value: Fields, key: string, path: string): string[] {
  return listField(value, key, path, 64, code).map((each, index) => {
    if (typeof each === 'string' && each.length <= textMax) return each;
    throw fieldError(path, `${key}[${index}]`, `text of at most ${textMax} characters`, each, code);
  });
}
