/** Runs a directory of vectors and prints what a person (or a script) reads: a line a section, and what failed. */
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { runDocument } from './run-document.js';
import type { Section } from './section.js';

/**
 * Every `*.json` of `directory`, by name.
 *
 * @param write - gets one line at a time, without its end
 * @returns the exit status: 0 when nothing failed
 */
export async function runDirectory(
  directory: string,
  sections: readonly Section[],
  write: (line: string) => void,
): Promise<number> {
  let names: string[];
  try {
    names = readdirSync(directory)
      .filter((name) => name.endsWith('.json'))
      .sort();
  } catch (error) {
    write(`conformance: expected a directory of vectors, got ${directory} (${(error as Error).message})`);
    return 1;
  }
  if (names.length === 0) {
    write(`conformance: expected *.json files in ${directory}, got none`);
    return 1;
  }
  const totals = { passed: 0, failed: 0, skipped: 0 };
  for (const name of names) {
    const result = await runDocument(readFileSync(join(directory, name), 'utf8'), basename(name, '.json'), sections);
    totals.passed += result.passed;
    totals.failed += result.failures.length;
    totals.skipped += result.skipped;
    write(
      result.isKnown
        ? `${result.section}: ${result.passed}/${result.passed + result.failures.length}`
        : `${result.section}: skipped`,
    );
    for (const failure of result.failures) write(`  ${failure}`);
    for (const defect of result.defects) write(`  the reference is wrong here, the recommendation counts: ${defect}`);
  }
  write(`conformance: ${totals.passed} passed, ${totals.failed} failed, ${totals.skipped} skipped`);
  return totals.failed === 0 ? 0 : 1;
}
