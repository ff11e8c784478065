/** Cases of the reference's vectors (test/vectors), as plain values. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

/** One operation of an allocator's trace, and the full state after it. */
export interface TraceStep {
  readonly init?: Readonly<Record<string, unknown>>;
  readonly op?: readonly [string, ...unknown[]];
  readonly result?: unknown;
  readonly state?: Readonly<Record<string, unknown>>;
  readonly observer?: unknown;
  readonly error?: { readonly type: string };
}

export function vectorCases<Case>(section: string): readonly Case[] {
  const path = join(__dirname, '..', 'vectors', `${section}.json`);
  return (JSON.parse(readFileSync(path, 'utf8')) as { cases: readonly Case[] }).cases;
}
