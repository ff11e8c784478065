/**
 * The router's memory by itself: bytes that an entry of the affinity table takes, how long a choice takes against the
 * table's size, and what the loss of an engine and the work that follows it hold up in a table of ten million blocks.
 */
import type { PerformanceEntry } from 'node:perf_hooks';
import { EngineChooser, type EngineLoad } from '../../../lib/control/routing/engine-chooser.js';
import { AffinityTable, affinityColumnsMax } from '../../../lib/control/routing/affinity-table.js';
import type { BenchRow } from '../../support/bench-row.js';
import { blocksOfPrompt, hashesOf } from './frames.js';

const entryBytesMax = 40;
const stallMsMax = 1;
const ttlMs = 300_000;
const informs = { against: null, ratio: null, target: null, ok: true } as const;

/** @param blocks - different ones; each prompt's are held by one engine */
function filled(blocks: number, engines: number): AffinityTable {
  const table = new AffinityTable({ ttlMs, blocksMax: Math.ceil(blocks * 1.2) });
  const columns = Array.from({ length: engines }, () => table.join()!);
  for (let prompt = 0; prompt * blocksOfPrompt < blocks; prompt++)
    table.record(columns[prompt % engines]!, hashesOf(prompt), 0);
  return table;
}

function bytesRow(table: AffinityTable, engines: number): BenchRow {
  const value = table.bytes / table.size;
  return {
    ...informs,
    name: `affinity table: bytes an entry, ${table.size} blocks, ${engines} engines`,
    value,
    unit: 'B',
    target: `≤ ${entryBytesMax}`,
    ok: value <= entryBytesMax,
  };
}

function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!;
}

/** One piece of work. */
interface Timed {
  readonly from: number;
  readonly to: number;
  /**
   * The shorter of its CPU time and the clock's: other processes add to the one, the process's helper threads, whose time is
   * counted some milliseconds at once, to the other.
   */
  readonly ms: number;
}

function timed(work: () => void): Timed {
  const before = process.cpuUsage();
  const from = performance.now();
  work();
  const to = performance.now();
  const { user, system } = process.cpuUsage(before);
  return { from, to, ms: Math.min(to - from, (user + system) / 1000) };
}

const longest = (times: readonly Timed[]): number => Math.max(0, ...times.map(({ ms }) => ms));

/** Runs `work`. @returns every garbage collection meanwhile that stopped the process, in its time */
async function collectionsDuring(work: () => void): Promise<PerformanceEntry[]> {
  const entries: PerformanceEntry[] = [];
  const observer = new PerformanceObserver((list) => entries.push(...list.getEntries()));
  observer.observe({ entryTypes: ['gc'] });
  work();
  await new Promise((resolve) => setTimeout(resolve, 50));
  observer.disconnect();
  return entries;
}

/** Engines leave and others join in their place, and after each the next requests come: nothing of it may take long. */
async function losses(table: AffinityTable, blocks: number, engines: number): Promise<BenchRow[]> {
  const depths = new Int32Array(affinityColumnsMax);
  const prompts = blocks / blocksOfPrompt;
  const [leaving, after]: [Timed[], Timed[]] = [[], []];
  // Made before: what makes them leaves garbage, whose collection is no part of the table's work.
  const asked = Array.from({ length: 4000 }, (_, index) => hashesOf((index * 7919) % prompts));
  let turn = 0;
  const request = (): Timed => {
    const hashes = asked[turn++]!;
    return timed(() => {
      table.leadingDepths(hashes, turn, depths);
      table.record(turn % engines, hashes, turn);
    });
  };
  const collections = await collectionsDuring(() => {
    // What runs first is compiled first.
    for (let warm = 0; warm < 2000; warm++) request();
    for (let loss = 0; loss < 100; loss++) {
      const column = loss % engines;
      leaving.push(
        timed(() => {
          table.leave(column);
          table.join();
        }),
      );
      for (let next = 0; next < 20; next++) after.push(request());
    }
  });
  const own = after.filter(({ from, to }) => {
    return !collections.some(({ startTime, duration }) => startTime < to && startTime + duration > from);
  });
  const of = `${blocks} blocks, ${engines} engines`;
  const target = `≤ ${stallMsMax} ms`;
  const row = (name: string, value: number): BenchRow => ({ ...informs, name, value, unit: 'ms' });
  return [
    {
      ...row(`losing an engine, ${of}: longest of ${leaving.length}`, longest(leaving)),
      target,
      ok: longest(leaving) <= stallMsMax,
    },
    {
      ...row(`routing and recording a request of ${blocksOfPrompt} blocks after a loss, ${of}: longest`, longest(own)),
      against: `of ${own.length} in which no garbage was collected`,
      target,
      ok: longest(own) <= stallMsMax,
    },
    {
      ...row(`the same, ${of}: longest`, longest(after)),
      against: `of all ${after.length}; garbage was collected in ${after.length - own.length}`,
    },
    row(`the same, ${of}: mean`, after.reduce((sum, { ms }) => sum + ms, 0) / after.length),
  ];
}

function choices(blocks: number): BenchRow {
  const chooser = new EngineChooser({ behaviour: 'gen-c', policy: 'longest_prefix', affinityBlocksMax: 2 ** 24 });
  const loads: EngineLoad[] = Array.from({ length: 8 }, () => {
    return { column: chooser.affinity.join()!, active: 1, queued: 0, slotsUsed: 0, freeFraction: 1 };
  });
  const prompts = Math.ceil(blocks / blocksOfPrompt);
  for (let prompt = 0; prompt < prompts; prompt++) chooser.assigned(loads[prompt % 8]!.column, hashesOf(prompt), 0);
  const asked = Array.from({ length: 4000 }, (_, index) => hashesOf((index * 7919) % prompts));
  const times = asked.map((hashes, turn) => {
    const begun = performance.now();
    chooser.choosePooled(loads, hashes, 1, turn);
    return (performance.now() - begun) * 1000;
  });
  return {
    ...informs,
    name: `choosing one of 8 engines for ${blocksOfPrompt} known blocks, ${blocks} in the table: median`,
    value: quantile(times.slice(1000), 0.5),
    unit: 'µs',
  };
}

/** @param note - told what is being measured */
export async function routingRows(note: (what: string) => void): Promise<BenchRow[]> {
  const rows: BenchRow[] = [];
  note('routing: bytes an entry');
  rows.push(bytesRow(filled(1_000_000, 8), 8));
  for (const blocks of [10_000, 100_000, 1_000_000, 10_000_000]) {
    note(`routing: choices, ${blocks} blocks`);
    rows.push(choices(blocks));
  }
  const blocks = 10_000_000;
  note('routing: losing engines, 10,000,000 blocks, 256 engines');
  const table = filled(blocks, affinityColumnsMax);
  rows.push(bytesRow(table, affinityColumnsMax));
  rows.push(...(await losses(table, blocks, affinityColumnsMax)));
  return rows;
}
