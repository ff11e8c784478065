/**
 * The router's memory by itself: bytes that an entry of the affinity table takes, how long a choice takes against the
 * table's size, and what the loss of an engine and the work that follows it hold up in a table of ten million blocks.
 */
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

/**
 * Engines leave and others join in their place, and after each the next requests come: nothing of it may take long. CPU
 * time, which a busy machine cannot add to, in the worst of all of them.
 */
function losses(table: AffinityTable, blocks: number, engines: number): BenchRow[] {
  const depths = new Int32Array(affinityColumnsMax);
  const prompts = blocks / blocksOfPrompt;
  const [leaving, after]: [number[], number[]] = [[], []];
  const timed = (times: number[], work: () => void): void => {
    const begun = process.cpuUsage();
    work();
    const { user, system } = process.cpuUsage(begun);
    times.push((user + system) / 1000);
  };
  // Made before: what makes them leaves garbage, whose collection is no part of the table's work.
  const asked = Array.from({ length: 4000 }, (_, index) => hashesOf((index * 7919) % prompts));
  let turn = 0;
  const request = (): void => {
    const hashes = asked[turn++]!;
    timed(after, () => {
      table.leadingDepths(hashes, turn, depths);
      table.record(turn % engines, hashes, turn);
    });
  };
  // What runs first is compiled first.
  for (let warm = 0; warm < 2000; warm++) request();
  after.length = 0;
  for (let loss = 0; loss < 100; loss++) {
    const column = loss % engines;
    timed(leaving, () => {
      table.leave(column);
      table.join();
    });
    for (let next = 0; next < 20; next++) request();
  }
  const worst = Math.max(...leaving);
  const of = `${blocks} blocks, ${engines} engines`;
  return [
    {
      ...informs,
      name: `losing an engine, ${of}: longest of 100`,
      value: worst,
      unit: 'ms',
      target: `≤ ${stallMsMax} ms`,
      ok: worst <= stallMsMax,
    },
    {
      ...informs,
      name: `routing and recording a request of ${blocksOfPrompt} blocks after a loss, ${of}: p99.9 of 2000`,
      value: quantile(after, 0.999),
      unit: 'ms',
      target: `≤ ${stallMsMax} ms`,
      ok: quantile(after, 0.999) <= stallMsMax,
    },
    // With it come the collections of garbage that happen to fall into one.
    { ...informs, name: `the same, ${of}: longest`, value: Math.max(...after), unit: 'ms' },
    {
      ...informs,
      name: `the same, ${of}: mean`,
      value: after.reduce((sum, ms) => sum + ms, 0) / after.length,
      unit: 'ms',
    },
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
export function routingRows(note: (what: string) => void): BenchRow[] {
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
  rows.push(...losses(table, blocks, affinityColumnsMax));
  return rows;
}
