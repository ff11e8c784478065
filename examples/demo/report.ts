/** From what the router saw to a verdict, a table for a reader, and plain data for a program. */
import { accountLine } from './chaos.js';
import type { DemoOptions } from './options.js';
import type { Observation } from './observation.js';
import type { Outcome } from './router.js';
import type { Scenario } from './scenario.js';

/** One request, in numbers. Milliseconds and bytes; null where there is nothing to measure. */
export interface Row {
  readonly id: string;
  readonly shows: string;
  readonly promptTokens: number;
  readonly cachedBlocks: number;
  readonly movedBlocks: number;
  readonly movedBytes: number;
  readonly transferMs: number | null;
  /** What moved the bytes; null when nothing moved. */
  readonly transport: string | null;
  readonly megabytesPerSecond: number | null;
  readonly timeToFirstTokenMs: number | null;
  readonly interTokenMs: number | null;
  readonly tokens: readonly number[];
  readonly waited: boolean;
  /** Who decoded it. */
  readonly decodedBy: string | null;
  readonly proposed: number;
  readonly accepted: number;
  readonly end: string;
  readonly identical: boolean | null;
  readonly differences: readonly string[];
  readonly surprises: readonly string[];
}

/** What came of one model. */
export interface ModelReport {
  readonly model: string;
  readonly proposals: number;
  readonly processIds: Outcome['processIds'];
  readonly rows: readonly Row[];
  /** What is wrong with the whole, not with one request. */
  readonly surprises: readonly string[];
  /** Null when nobody was killed. */
  readonly chaos: Outcome['chaos'];
  readonly memory: { readonly prefill: string; readonly decode: string };
  readonly counters: Readonly<Record<string, number>>;
}

export interface Verdict {
  readonly requests: number;
  readonly asExpected: number;
  readonly identical: boolean;
  readonly ok: boolean;
}

export function reportOf(scenario: Scenario, outcome: Outcome): ModelReport {
  const { observations, ends, chaos, processIds } = outcome;
  const surprises: string[] = [];
  for (const { name, end } of ends) {
    if (end.leftovers.length > 0) surprises.push(`${name} still holds ${end.leftovers.join(', ')}`);
    if (end.blocksFree !== end.blocksUsable)
      surprises.push(`${name} has ${end.blocksFree} of ${end.blocksUsable} blocks back`);
  }
  for (const { title, requests, waitingMin } of scenario.stages) {
    const seen = requests.map(({ id }) => observations.find(({ request }) => request.id === id)!);
    const waited = seen.filter(({ isDeferred }) => isDeferred).length;
    if (waited < waitingMin)
      surprises.push(`"${title}": expected at least ${waitingMin} to wait for room, got ${waited}`);
    if (waitingMin === 0) continue;
    for (const instance of new Set(seen.map(({ decode }) => decode?.instance ?? ''))) {
      const line = seen.filter(({ decode }) => decode?.instance === instance).sort((a, b) => a.arrival - b.arrival);
      const turns = line.map(({ reserved }) => reserved?.turn ?? Infinity);
      if (turns.some((turn, index) => turn < (turns[index - 1] ?? 0)))
        surprises.push(`"${title}": expected room to be given in the order of arrival, got turns ${turns.join(', ')}`);
    }
  }
  if (chaos !== null && chaos.pinsReleased + chaos.pinsGone !== chaos.pinsMade)
    surprises.push(`${chaos.pinsMade} pins made, ${chaos.pinsReleased} released, ${chaos.pinsGone} gone`);
  return {
    model: scenario.kind,
    proposals: scenario.proposals,
    processIds,
    rows: observations.map(rowOf),
    surprises,
    chaos,
    memory: { prefill: memoryOf(ends, 'prefill'), decode: memoryOf(ends, 'decode') },
    counters: countersOf(ends),
  };
}

/** Over all ranks. */
function memoryOf(ends: Outcome['ends'], side: 'prefill' | 'decode'): string {
  const own = ends.filter((each) => each.side === side).map(({ end }) => end);
  const sum = (numbers: readonly number[]): number => numbers.reduce((total, each) => total + each, 0);
  const free = sum(own.map(({ blocksFree }) => blocksFree));
  const blocks = `${free} of ${sum(own.map(({ blocksUsable }) => blocksUsable))} blocks`;
  return own.length === 1 ? blocks : `${blocks} on ${own.length} ranks`;
}

/** Of the decode instances, as their leading ranks count. */
function countersOf(ends: Outcome['ends']): Record<string, number> {
  const counters: Record<string, number> = {};
  for (const { side, isLeader, end } of ends) {
    if (side !== 'decode' || !isLeader) continue;
    for (const { name, value } of end.counters) counters[name] = (counters[name] ?? 0) + value;
  }
  return counters;
}

function rowOf(seen: Observation): Row {
  const { request, reserved, landed, computed } = seen;
  const movedBytes = landed?.bytes ?? 0;
  const transferMs = landed?.milliseconds ?? null;
  return {
    id: request.id,
    shows: request.shows,
    promptTokens: request.prompt.length,
    cachedBlocks: reserved?.cachedBlocks ?? 0,
    movedBlocks: seen.movedBlocks,
    movedBytes,
    transferMs,
    transport: movedBytes === 0 ? null : (landed?.transport ?? null),
    megabytesPerSecond: transferMs === null || movedBytes === 0 ? null : movedBytes / 1e3 / transferMs,
    timeToFirstTokenMs: seen.timeToFirstToken,
    interTokenMs: seen.interTokenLatency,
    tokens: seen.tokens,
    waited: seen.isDeferred,
    decodedBy: seen.decode?.instance ?? null,
    proposed: computed.proposed,
    accepted: computed.accepted,
    end: seen.end,
    identical: seen.isIdentical,
    differences: seen.differences(),
    surprises: seen.surprises(),
  };
}

/** What the last line says of those that were killed; nothing when nobody was. */
export function chaosOf(reports: readonly ModelReport[]): string {
  const accounts = reports.flatMap(({ chaos }) => chaos ?? []);
  const memories = reports.flatMap(({ memory }) => [memory.prefill, memory.decode]);
  // `143 of 143 blocks …`, each.
  const [back, usable] = [0, 2].map((word) => memories.reduce((sum, text) => sum + Number(text.split(' ')[word]), 0));
  return accounts.length === 0 ? '' : accountLine(accounts, `${back} of ${usable}`);
}

export function verdictOf(reports: readonly ModelReport[]): Verdict {
  const rows = reports.flatMap((report) => report.rows);
  const asExpected = rows.filter(({ surprises }) => surprises.length === 0).length;
  const identical = rows.some((row) => row.identical === true) && rows.every((row) => row.identical !== false);
  const wholes = reports.every(({ surprises }) => surprises.length === 0);
  return { requests: rows.length, asExpected, identical, ok: wholes && identical && asExpected === rows.length };
}

const columns: readonly (readonly [string, (row: Row) => string])[] = [
  ['request', ({ id }) => id],
  ['prompt tokens', ({ promptTokens }) => String(promptTokens)],
  ['waited', ({ waited }) => (waited ? 'yes' : 'no')],
  ['blocks cached', ({ cachedBlocks }) => String(cachedBlocks)],
  ['blocks moved', ({ movedBlocks }) => String(movedBlocks)],
  ['bytes moved', ({ movedBytes }) => String(movedBytes)],
  ['transfer ms', ({ transferMs }) => figure(transferMs, 2)],
  ['MB/s', ({ megabytesPerSecond }) => figure(megabytesPerSecond, 0)],
  ['TTFT ms', ({ timeToFirstTokenMs }) => figure(timeToFirstTokenMs, 1)],
  ['ITL ms', ({ interTokenMs }) => figure(interTokenMs, 2)],
  ['tokens', ({ tokens }) => String(tokens.length)],
  ['proposals', ({ proposed, accepted }) => (proposed === 0 ? '-' : `${accepted}/${proposed}`)],
  ['end', ({ end }) => end],
  ['identical', ({ identical }) => (identical === null ? '-' : identical ? 'yes' : 'no')],
];

function figure(value: number | null, digits: number): string {
  return value === null ? '-' : value.toFixed(digits);
}

/** The heading of a model's part. */
export function headingOf(scenario: Scenario, { layers, blockSize, transport }: DemoOptions): string {
  const proposals = scenario.proposals === 0 ? 'no proposals' : `${scenario.proposals} proposals (MTP) a token`;
  const kind = scenario.kind === 'hybrid' ? 'hybrid (attention + SSM)' : scenario.kind;
  return (
    `== model: ${kind}, ${layers ?? 4} layers, ${proposals}; ${scenario.blocks - 1} blocks of ${blockSize} tokens on decode, ` +
    `prefill chunks of ${scenario.chunk} tokens, ${transport} transport ==`
  );
}

/** The table and what is wrong, as lines. */
export function linesOf(report: ModelReport): string[] {
  const headings = columns.map(([heading]) => heading.split(' '));
  const cells = report.rows.map((row) => columns.map(([, cell]) => cell(row)));
  const top = headings.map((words) => (words.length > 1 ? words[0]! : ''));
  const bottom = headings.map((words) => words.at(-1)!);
  const lines = [top, bottom, ...cells];
  const widths = columns.map((_, column) => Math.max(...lines.map((line) => line[column]!.length)));
  const print = (line: readonly string[]): string =>
    line
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[0]!) : cell.padStart(widths[column]!)))
      .join('  ')
      .trimEnd();
  const wrong = [
    ...report.rows.flatMap(({ id, surprises, differences }) => [
      ...surprises.map((line) => `unexpected: ${id}: ${line}`),
      ...differences.map((line) => `different: ${id}: ${line}`),
    ]),
    ...report.surprises.map((line) => `unexpected: ${line}`),
  ];
  return [
    '',
    ...lines.map(print),
    '',
    `moved by: ${moversOf(report).join(', ')}`,
    `memory back at the end: prefill ${report.memory.prefill}, decode ${report.memory.decode}`,
    ...wrong,
  ];
}

/** Each transport that moved something, with how many requests it moved. */
function moversOf({ rows }: ModelReport): string[] {
  const movers = new Map<string, number>();
  for (const { transport } of rows) if (transport !== null) movers.set(transport, (movers.get(transport) ?? 0) + 1);
  return [...movers].map(([name, requests]) => `the ${name} transport (${requests} requests)`);
}

/** Of the table; in its last stage a coordinator's requests are held back until all of them are there. */
export const legendOf = ({ coordinator, chaos }: DemoOptions): readonly string[] => [
  ...legend,
  ...(coordinator && !chaos
    ? ['--coordinator: the transfers of the last stage begin when all of its requests have arrived']
    : []),
];

const legend = [
  'transfer: from the reservation on decode until it sees all bytes (the first one connects, too); TTFT, ITL: time to the first token and between tokens, at the router;',
  'proposals: accepted of proposed; identical: tokens, log-probabilities and every bit of all logits, compared with one engine without a handoff',
];
