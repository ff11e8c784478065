/**
 * `npm run bench:coordinator`: every row of docs/coordinator.md's table, in order. Which rows there are, and how much is run
 * for them.
 */
import type { BenchRow } from '../../support/bench-row.js';
import { requestRows, type Amount } from './requests.js';
import { routingRows } from './routing.js';

const amounts: Readonly<Record<'whole' | 'quick', Amount>> = {
  whole: { requests: 30_000, warmup: 10_000, singles: 4000 },
  quick: { requests: 2000, warmup: 500, singles: 300 },
};

/** @param note - told what is being measured */
export async function run(amount: 'whole' | 'quick', note: (what: string) => void): Promise<BenchRow[]> {
  return [...(await requestRows(amounts[amount], note)), ...(amount === 'whole' ? await routingRows(note) : [])];
}
