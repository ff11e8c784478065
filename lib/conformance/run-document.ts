/**
 * Runs one file of vectors: finds its section, runs every case, and keeps the first difference of each that fails.
 *
 * A file of a known section with an unknown key, or without a case, fails too: it would prove nothing.
 */
import { isHandoffError } from '../errors.js';
import { isRecord } from '../json.js';
import { JsonFloat, parseExactJson, type ExactObject, type ExactValue } from './exact-json.js';
import { Mismatch, render } from './mismatch.js';
import type { Section } from './section.js';

export interface DocumentResult {
  readonly section: string;
  readonly passed: number;
  /** Cases that fail and faults of the file itself. */
  readonly failures: readonly string[];
  /** Cases in which the reference is wrong and the answer is the recommended one. */
  readonly defects: readonly string[];
  /** Cases of a section that is not known; 0 for one that is. */
  readonly skipped: number;
  readonly isKnown: boolean;
}

const describingKeys = ['section', 'kind', 'note', 'notes'];

/**
 * @param text - the file
 * @param fallbackName - what to call it when it does not say
 */
export async function runDocument(
  text: string,
  fallbackName: string,
  sections: readonly Section[],
): Promise<DocumentResult> {
  let document: ExactValue;
  try {
    document = parseExactJson(text);
  } catch (error) {
    return broken(fallbackName, `expected JSON (${(error as Error).message})`);
  }
  return runValue(document, fallbackName, sections);
}

/** The same for a file that was read already. */
export async function runValue(
  document: ExactValue,
  fallbackName: string,
  sections: readonly Section[],
): Promise<DocumentResult> {
  if (!isExactObject(document)) return broken(fallbackName, `expected a map, got ${render(document)}`);
  const name = document['section'];
  if (typeof name !== 'string') return broken(fallbackName, `section: expected a string, got ${render(name)}`);
  const section = sections.find((each) => each.name === name);
  if (section !== undefined) return runSection(document, section);
  return { section: name, passed: 0, failures: [], defects: [], skipped: countCases(document), isKnown: false };
}

function broken(section: string, failure: string): DocumentResult {
  return { section, passed: 0, failures: [failure], defects: [], skipped: 0, isKnown: true };
}

async function runSection(document: ExactObject, section: Section): Promise<DocumentResult> {
  const failures: string[] = [];
  const defects: string[] = [];
  let passed = 0;
  const attempt = async (label: string, run: () => void | Promise<void>): Promise<void> => {
    try {
      await run();
      passed++;
    } catch (error) {
      failures.push(`${label}: ${describe(error)}`);
    }
  };
  const known = [...describingKeys, ...(section.keys ?? []), ...Object.keys(section.groups)];
  for (const key of Object.keys(document)) {
    if (!known.includes(key)) failures.push(`${key}: expected no such key, got ${render(document[key])}`);
  }
  for (const [key, run] of Object.entries(section.groups)) {
    const group = document[key];
    if (group === undefined) continue;
    if (isExactObject(group)) {
      await attempt(label(key, group), () => run(group, document));
    } else if (Array.isArray(group)) {
      const cases = group as readonly ExactValue[];
      if (cases.length === 0) failures.push(`${key}: expected at least one case, got []`);
      for (const [index, value] of cases.entries()) {
        const name = label(`${key}[${index}]`, value);
        if (isExactObject(value) && typeof value['reference_defect'] === 'string') {
          defects.push(`${name}: ${value['reference_defect']}`);
        }
        await attempt(name, () => run(value, document));
      }
    } else {
      failures.push(`${key}: expected cases, got ${render(group)}`);
    }
  }
  const { whole } = section;
  if (whole !== undefined) await attempt(whole.name, () => whole.run(document));
  if (passed + failures.length === 0) failures.push('expected at least one case, got none');
  return { section: section.name, passed, failures, defects, skipped: 0, isKnown: true };
}

function label(place: string, value: ExactValue): string {
  const name = isExactObject(value) ? value['name'] : undefined;
  return typeof name === 'string' ? `${place} ${JSON.stringify(name)}` : place;
}

function describe(error: unknown): string {
  if (error instanceof Mismatch) return error.message;
  if (isHandoffError(error)) return `expected no error, got ${error.code} (${error.message})`;
  return `expected no error, got ${error instanceof Error ? `${error.name}: ${error.message}` : String(error)}`;
}

function isExactObject(value: ExactValue | undefined): value is ExactObject {
  return isRecord(value) && !(value instanceof JsonFloat);
}

const listGroups = [
  'cases',
  'errors',
  'accepted',
  'rejected',
  'applicable',
  'match_best',
  'chunk_selection',
  'generated_lists',
  'derived_later_main',
];
const mapGroups = ['removal', 'replay', 'values', 'registration'];

/** Cases of a section that nobody runs, counted by the rule of all sections (spec 16). */
function countCases(document: ExactObject): number {
  let count = 0;
  for (const key of listGroups) {
    const group = document[key];
    if (Array.isArray(group)) count += group.length;
  }
  return count + mapGroups.filter((key) => document[key] !== undefined).length;
}
