/** Section `completion_tracker`: traces of reports and drains. */
import { CompletionTracker } from '../decode/completion-tracker.js';
import type { ExactObject, ExactValue } from './exact-json.js';
import { expectEqual, Mismatch, render } from './mismatch.js';
import { booleanOf, expectError, fieldsOf, integerOf, listOf, stringOf, type Section } from './section.js';

const reportColumns = ['request_id', 'rank', 'failed', 'source_safe'];
const drainColumns = ['request_id', 'failed', 'source_safe'];
const errorTypes = { RuntimeError: ['COMPLETION_CONTRADICTED'], ValueError: ['ARGUMENT_INVALID'] } as const;

export const completionTrackerSection: Section = {
  name: 'completion_tracker',
  keys: ['report_columns', 'drain_columns'],
  groups: {
    cases(value, document) {
      const fields = fieldsOf(value, '', ['world_size', 'trace'], ['name']);
      const tracker = new CompletionTracker(integerOf(fields['world_size'], 'world_size'));
      for (const [index, step] of listOf(fields['trace'], 'trace').entries()) {
        runStep(
          tracker,
          fieldsOf(step, `trace[${index}]`, [], ['report', 'drain', 'error']),
          `trace[${index}]`,
          document,
        );
      }
    },
  },
};

function runStep(tracker: CompletionTracker, step: ExactObject, path: string, document: ExactObject): void {
  const isReport = Object.hasOwn(step, 'report');
  if (isReport === Object.hasOwn(step, 'drain')) throw new Mismatch(path, 'either a report or a drain', render(step));
  if (isReport) {
    const at = (column: string) => `${path}.report.${column}`;
    const row = tuple(step['report'], `${path}.report`, columnsOf(document, 'report_columns', reportColumns));
    const report = {
      requestId: integerOf(row['request_id'], at('request_id')),
      rank: integerOf(row['rank'], at('rank')),
      failed: booleanOf(row['failed'], at('failed')),
      sourceSafe: booleanOf(row['source_safe'], at('source_safe')),
    };
    if (Object.hasOwn(step, 'error'))
      expectError(step['error'], `${path}.error`, errorTypes, () => tracker.report(report));
    else tracker.report(report);
    return;
  }
  if (Object.hasOwn(step, 'error')) throw new Mismatch(`${path}.error`, 'none for a drain', render(step['error']));
  const columns = columnsOf(document, 'drain_columns', drainColumns);
  const decisions = tracker.drain().map(({ requestId, failed, sourceSafe }) => {
    const named: Readonly<Record<string, unknown>> = { request_id: requestId, failed, source_safe: sourceSafe };
    return columns.map((column) => named[column]);
  });
  expectEqual(`${path}.drain`, step['drain'] as ExactValue, decisions);
}

/** The order in which the file writes its tuples. */
function columnsOf(document: ExactObject, key: string, known: readonly string[]): readonly string[] {
  if (!Object.hasOwn(document, key)) return known;
  const columns = listOf(document[key], key).map((column, index) => stringOf(column, `${key}[${index}]`));
  if ([...columns].sort().join() !== [...known].sort().join()) throw new Mismatch(key, render(known), render(columns));
  return columns;
}

function tuple(value: ExactValue | undefined, path: string, columns: readonly string[]): ExactObject {
  const list = listOf(value, path);
  if (list.length !== columns.length) throw new Mismatch(path, columns.join(', '), render(list));
  return Object.fromEntries(columns.map((column, index) => [column, list[index] as ExactValue]));
}
