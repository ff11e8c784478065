/**
 * What a section of the vectors is: how each of its cases is run, and readers for what the cases hold. One file a
 * section; `sections.ts` lists them.
 */
import { isHandoffError, type HandoffErrorCode } from '../errors.js';
import { isRecord } from '../json.js';
import { JsonFloat, type ExactObject, type ExactValue } from './exact-json.js';
import { expectEqual, int64Of, Mismatch, render } from './mismatch.js';

/**
 * Runs one case; returns when it holds and throws when not, a {@link Mismatch} where something differs.
 *
 * @param path - what paths in messages start with; empty
 * @param document - the whole file, for what the section says beside its cases
 */
export type CaseRunner = (value: ExactValue, document: ExactObject) => void | Promise<void>;

export interface Section {
  /** `section` in the file. */
  readonly name: string;
  /**
   * Keys that hold cases. A list has one case an element; a map is one case as a whole.
   */
  readonly groups: Readonly<Record<string, CaseRunner>>;
  /** Further keys that a file of this section may have, beside `section`, `kind`, `note` and `notes`. */
  readonly keys?: readonly string[];
  /** A case made of several keys of the file (those are in `keys`). */
  readonly whole?: { readonly name: string; readonly run: (document: ExactObject) => void | Promise<void> };
}

/**
 * `value` as a map that has every key of `required`, perhaps those of `optional`, and no other: a vector with a key that
 * nobody looks at would pass for nothing.
 *
 * @throws {@link Mismatch}
 */
export function fieldsOf(
  value: ExactValue | undefined,
  path: string,
  required: readonly string[],
  optional: readonly string[] = [],
): ExactObject {
  const object = objectOf(value, path);
  for (const key of required) {
    if (!Object.hasOwn(object, key)) throw new Mismatch(at(path, key), 'a value', 'nothing');
  }
  for (const key of Object.keys(object)) {
    if (!required.includes(key) && !optional.includes(key))
      throw new Mismatch(at(path, key), 'no such key', render(object[key]));
  }
  return object;
}

/** @throws {@link Mismatch} */
export function objectOf(value: ExactValue | undefined, path: string): ExactObject {
  if (isRecord(value) && !(value instanceof JsonFloat)) return value as ExactObject;
  throw new Mismatch(path, 'a map', render(value));
}

/** @throws {@link Mismatch} */
export function listOf(value: ExactValue | undefined, path: string): readonly ExactValue[] {
  if (Array.isArray(value)) return value as readonly ExactValue[];
  throw new Mismatch(path, 'a list', render(value));
}

/** A safe integer; a float or a larger one is none. @throws {@link Mismatch} */
export function integerOf(value: ExactValue | undefined, path: string): number {
  if (typeof value === 'number') return value;
  throw new Mismatch(path, 'an integer', render(value));
}

/** A 64-bit integer in one of its three forms. @throws {@link Mismatch} */
export function bigintOf(value: ExactValue | undefined, path: string): bigint {
  const integer = value === undefined ? undefined : int64Of(value);
  if (integer !== undefined && integer >= -(1n << 63n) && integer < 1n << 64n) return integer;
  throw new Mismatch(path, 'a 64-bit integer', render(value));
}

/** @throws {@link Mismatch} */
export function booleanOf(value: ExactValue | undefined, path: string): boolean {
  if (typeof value === 'boolean') return value;
  throw new Mismatch(path, 'true or false', render(value));
}

/** @throws {@link Mismatch} */
export function stringOf(value: ExactValue | undefined, path: string): string {
  if (typeof value === 'string') return value;
  throw new Mismatch(path, 'a string', render(value));
}

/** @throws {@link Mismatch} */
export function integersOf(value: ExactValue | undefined, path: string): number[] {
  return listOf(value, path).map((entry, index) => integerOf(entry, `${path}[${index}]`));
}

/** `path.key`, or `key` at the top of a case. */
export function at(path: string, key: string): string {
  return path === '' ? key : `${path}.${key}`;
}

/** Codes of ours that stand for an exception type of the reference. */
export type ErrorTypes = Readonly<Record<string, readonly HandoffErrorCode[]>>;

/** What the reference raises for input that it does not take. */
export const refusedInput: ErrorTypes = Object.fromEntries(
  ['ValueError', 'TypeError', 'KeyError', 'AttributeError'].map((type) => [
    type,
    ['ARGUMENT_INVALID', 'TICKET_INVALID'] as const,
  ]),
);

/**
 * That `action` throws the error that a vector names in `error: {type}`.
 *
 * @throws {@link Mismatch} when it does not throw, or throws something else
 */
export function expectError(
  expected: ExactValue | undefined,
  path: string,
  types: ErrorTypes,
  action: () => unknown,
): void {
  const type = stringOf(fieldsOf(expected, path, ['type'])['type'], at(path, 'type'));
  const codes = Object.hasOwn(types, type) ? types[type]! : [];
  let got: string;
  try {
    got = render(action());
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    if (codes.includes(error.code)) return;
    got = `${error.code} (${error.message})`;
  }
  throw new Mismatch(
    path,
    `${type}${codes.length === 0 ? ', which stands for no code here' : ` (${codes.join(', ')})`}`,
    got,
  );
}

/**
 * One step of a trace: what `action` returns must equal `result`, or, where the step names an `error`, be thrown.
 *
 * @throws {@link Mismatch}
 */
export function expectResult(step: ExactObject, path: string, types: ErrorTypes, action: () => unknown): void {
  if (Object.hasOwn(step, 'error')) {
    expectError(step['error'], at(path, 'error'), types, action);
    expectEqual(at(path, 'result'), step['result'] ?? null, null);
  } else {
    expectEqual(at(path, 'result'), step['result'] as ExactValue, action());
  }
}

/** Keys of a case in which the reference is wrong: why, and what to answer instead (spec 7.2). */
export const planKeys = ['reference_defect', 'recommended_plan'] as const;

/**
 * The plan to compare with: the recommended one where the case is marked as a defect of the reference.
 *
 * @throws {@link Mismatch} for a mark without a recommendation, or the other way round
 */
export function expectedPlan(fields: ExactObject): { readonly path: string; readonly plan: ExactValue | undefined } {
  const [isDefect, isRecommended] = planKeys.map((key) => Object.hasOwn(fields, key));
  if (isDefect !== isRecommended)
    throw new Mismatch(planKeys[1], 'a plan if and only if the case is a defect', 'other');
  if (isDefect !== true) return { path: 'plan', plan: fields['plan'] };
  stringOf(fields[planKeys[0]], planKeys[0]);
  listOf(fields['plan'], 'plan');
  return { path: planKeys[1], plan: fields[planKeys[1]] };
}
