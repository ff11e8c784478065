/** From what the router of the llama.cpp demo saw to a verdict, a table for a reader, and plain data for a program. */
import type { Observation } from './observation.js';
import type { Evaluated, Stopped } from './router.js';
import type { DemoRequest, Scenario } from './scenario.js';

/** One request, in numbers. Milliseconds and bytes; null where there is nothing to measure. */
export interface Row {
  readonly id: string;
  readonly promptTokens: number;
  readonly computedTokens: number;
  readonly prefillMs: number | null;
  readonly waited: boolean;
  readonly cachedBlocks: number;
  readonly movedBlocks: number;
  readonly movedBytes: number;
  readonly transferMs: number | null;
  readonly loadMs: number | null;
  /** What one engine takes to compute the prompt, less what the handoff took. */
  readonly savedMs: number | null;
  readonly timeToFirstTokenMs: number | null;
  readonly interTokenMs: number | null;
  readonly tokens: readonly number[];
  readonly end: string;
  readonly identical: boolean | null;
  /** Batched: tokens that the replay draws alike, of those that decode drew. */
  readonly agreeing: { readonly drawn: number; readonly agreeing: number } | null;
  readonly surprises: readonly string[];
}

export interface Report {
  readonly rows: readonly Row[];
  /** What is wrong with the whole, not with one request. */
  readonly surprises: readonly string[];
  readonly memory: { readonly prefill: string; readonly decode: string };
  readonly evaluated: Evaluated;
  readonly identical: boolean | null;
  readonly ok: boolean;
}

export interface Outcome {
  readonly seen: ReadonlyMap<string, Observation>;
  readonly ends: { readonly prefill: Stopped; readonly decode: Stopped };
  readonly evaluated: Evaluated;
  /** Null unless batched. */
  readonly replayed: ReadonlyMap<string, { readonly drawn: number; readonly agreeing: number }> | null;
}

export function reportOf(scenario: Scenario, { seen, ends, evaluated, replayed }: Outcome): Report {
  const requests = scenario.stages.flatMap((stage) => stage.requests);
  const rows = requests.map((request) => rowOf(request, seen.get(request.id)!, replayed?.get(request.id) ?? null));
  const surprises: string[] = [];
  for (const [name, end] of Object.entries(ends)) {
    if (end.leftovers.length > 0) surprises.push(`${name} still holds ${end.leftovers.join(', ')}`);
    if (end.blocksFree !== end.blocksUsable)
      surprises.push(`${name} has ${end.blocksFree} of ${end.blocksUsable} blocks back`);
  }
  if (evaluated.promptTokens > 0) surprises.push(`decode evaluated ${evaluated.promptTokens} prompt tokens`);
  for (const { title, requests: some, waits } of scenario.stages) {
    if (waits && !some.some(({ id }) => seen.get(id)!.isDeferred))
      surprises.push(`"${title}": expected somebody to wait for room`);
    const turns = some.flatMap(({ id }) => seen.get(id)!.reserved?.turn ?? []);
    if (turns.some((turn, index) => turn < (turns[index - 1] ?? 0)))
      surprises.push(`"${title}": expected room to be given in the order of arrival, got turns ${turns.join(', ')}`);
  }
  const compared = rows.filter((row) => row.identical !== null);
  const identical = compared.length === 0 ? null : compared.every((row) => row.identical);
  const isWell = surprises.length === 0 && rows.every((row) => row.surprises.length === 0);
  return {
    rows,
    surprises,
    memory: {
      prefill: `${ends.prefill.blocksFree} of ${ends.prefill.blocksUsable} blocks`,
      decode: `${ends.decode.blocksFree} of ${ends.decode.blocksUsable} blocks`,
    },
    evaluated,
    identical,
    ok: isWell && (replayed === null ? identical === true : identical !== false),
  };
}

function rowOf(request: DemoRequest, seen: Observation, agreeing: Row['agreeing']): Row {
  const { prefilled, reserved, landed, finished, failure, reference } = seen;
  const { handoffMs } = seen;
  return {
    id: request.id,
    promptTokens: request.prompt.length,
    computedTokens: prefilled?.computedTokens ?? 0,
    prefillMs: prefilled?.evaluateMs ?? null,
    waited: seen.isDeferred,
    cachedBlocks: reserved?.cachedBlocks ?? 0,
    movedBlocks: seen.movedBlocks,
    movedBytes: landed?.bytes ?? 0,
    transferMs: landed?.milliseconds ?? null,
    loadMs: finished?.loadMs ?? null,
    savedMs: handoffMs === null || reference === null ? null : reference.evaluateMs - handoffMs,
    timeToFirstTokenMs: seen.timeToFirstTokenMs,
    interTokenMs: seen.interTokenMs,
    tokens: finished?.tokens ?? [],
    end: finished?.reason ?? failure?.code.toLowerCase() ?? 'none',
    identical: agreeing === null ? seen.isIdentical : null,
    agreeing,
    surprises: surprisesOf(request, seen, agreeing === null ? seen.difference : null),
  };
}

function surprisesOf(request: DemoRequest, seen: Observation, difference: string | null): string[] {
  const { finished, failure, reserved } = seen;
  const surprises: string[] = [];
  const end = failure?.code ?? (finished === null ? 'none' : 'a result');
  const expected = request.abortAfter === null ? 'a result' : 'ABORTED';
  if (end !== expected) surprises.push(`expected ${expected}, got ${failure?.message ?? end}`);
  if (request.sharesPrefix && (reserved?.cachedBlocks ?? 0) === 0)
    surprises.push('expected blocks of the system prompt to be there already, got none');
  if (difference !== null) surprises.push(difference);
  return surprises;
}

const columns: readonly (readonly [string, (row: Row) => string])[] = [
  ['request', ({ id }) => id],
  ['prompt tokens', ({ promptTokens }) => String(promptTokens)],
  ['computed', ({ computedTokens }) => String(computedTokens)],
  ['prefill ms', ({ prefillMs }) => figure(prefillMs, 0)],
  ['waited', ({ waited }) => (waited ? 'yes' : 'no')],
  ['blocks cached', ({ cachedBlocks }) => String(cachedBlocks)],
  ['blocks moved', ({ movedBlocks }) => String(movedBlocks)],
  ['bytes moved', ({ movedBytes }) => String(movedBytes)],
  ['transfer ms', ({ transferMs }) => figure(transferMs, 2)],
  ['MB/s', ({ movedBytes, transferMs }) => figure(rateOf(movedBytes, transferMs), 0)],
  ['load ms', ({ loadMs }) => figure(loadMs, 2)],
  ['saved ms', ({ savedMs }) => figure(savedMs, 0)],
  ['TTFT ms', ({ timeToFirstTokenMs }) => figure(timeToFirstTokenMs, 0)],
  ['ITL ms', ({ interTokenMs }) => figure(interTokenMs, 1)],
  ['tokens', ({ tokens }) => String(tokens.length)],
  ['end', ({ end }) => end],
];

const identity: (typeof columns)[number] = [
  'identical',
  ({ identical }) => (identical === null ? '-' : identical ? 'yes' : 'no'),
];
const agreement: (typeof columns)[number] = [
  'drawn alike',
  ({ agreeing }) => (agreeing === null || agreeing.drawn === 0 ? '-' : `${agreeing.agreeing}/${agreeing.drawn}`),
];

function rateOf(bytes: number, milliseconds: number | null): number | null {
  return milliseconds === null || bytes === 0 ? null : bytes / 1e3 / milliseconds;
}

function figure(value: number | null, digits: number): string {
  return value === null ? '-' : value.toFixed(digits);
}

/** The table and what is wrong, as lines. */
export function linesOf(report: Report, batched: boolean): string[] {
  const shown = [...columns, batched ? agreement : identity];
  const headings = shown.map(([heading]) => heading.split(' '));
  const top = headings.map((words) => (words.length > 1 ? words[0]! : ''));
  const bottom = headings.map((words) => words.at(-1)!);
  const lines = [top, bottom, ...report.rows.map((row) => shown.map(([, cell]) => cell(row)))];
  const widths = shown.map((_, column) => Math.max(...lines.map((line) => line[column]!.length)));
  const print = (line: readonly string[]): string =>
    line
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[0]!) : cell.padStart(widths[column]!)))
      .join('  ')
      .trimEnd();
  return [
    '',
    ...lines.map(print),
    '',
    `evaluated on decode: ${report.evaluated.tokens} tokens, ${report.evaluated.promptTokens} of them in a prompt`,
    `memory back at the end: prefill ${report.memory.prefill}, decode ${report.memory.decode}`,
    ...report.rows.flatMap(({ id, surprises }) => surprises.map((line) => `unexpected: ${id}: ${line}`)),
    ...report.surprises.map((line) => `unexpected: ${line}`),
  ];
}

/** What the headings mean. */
export function legendOf(batched: boolean): string[] {
  return [
    'computed: prompt tokens that prefill evaluated, the rest was in its cache; transfer: from the reservation on decode until it sees all bytes;',
    "load: copied from blocks into decode's llama.cpp; saved: what one engine takes to compute the prompt, less transfer and load; TTFT: the first token comes with the ticket;",
    batched
      ? 'drawn alike: a replay of the same evaluations in one engine, prompts computed and not loaded, draws the same token; a figure, no proof'
      : 'identical: tokens and every bit of all logits, compared with one engine that computed the request alone, without a handoff',
  ];
}
