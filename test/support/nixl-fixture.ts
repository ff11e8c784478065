/** Two ends of the NIXL transport in two processes, and what tests need to know of them. */
import { isAbsolute } from 'node:path';
import type { JsonObject } from '../../lib/json.js';
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import type { Region } from '../../lib/memory/region.js';
import { NixlTransport, type NixlTransportOptions } from '../../lib/transfer/transports/nixl.js';
import { nixlCandidates } from '../../lib/transfer/transports/nixl-library.js';
import type { TransferHandle } from '../../lib/transfer/transport.js';
import { startChild, type Child } from './child-process.js';
import { waitFor } from './host-fixture.js';

/** Why this machine has no NIXL to test with; null when it has. */
export function nixlMissing(): string | null {
  if (nixlCandidates().some((path) => isAbsolute(path))) return null;
  return 'no NIXL library was found; `npm run fetch:nixl` brings one';
}

/** Puts all bytes through sockets, where a peer that is stopped stops them. */
export const overTcp = { UCX_TLS: 'tcp,self' };

export interface Exporter {
  readonly child: Child;
  readonly grant: JsonObject;
}

/** A process that exports a region of `bytes`, filled from `seed`. */
export async function exporterOf(
  bytes: number,
  seed: number,
  env: Record<string, string> = {},
  options: NixlTransportOptions = {},
): Promise<Exporter> {
  const child = startChild('nixl-end', [], env);
  return { child, grant: await child.ask<JsonObject>('open', { bytes, seed, options }) };
}

export interface Importer {
  readonly region: Region;
  readonly transport: NixlTransport;
}

const open: Importer[] = [];

export async function importerOf(bytes: number, options: NixlTransportOptions = {}): Promise<Importer> {
  const region = allocateHostRegion({ bytes });
  const transport = new NixlTransport({ exports: false, ...options });
  transport.register(region);
  await transport.open();
  const importer = { region, transport };
  open.push(importer);
  return importer;
}

afterEach(async () => {
  for (const { region, transport } of open.splice(0)) {
    await transport.close();
    region.close();
  }
});

// Under Jest every look-up of a global is slow.
const { imul } = Math;

/** Word `i` of a region filled from `seed`, as the exporter fills it. */
export const word = (seed: number, i: number): number => imul(i + seed, 2654435761) >>> 0;

export function isFilledFrom(region: Region, seed: number): boolean {
  const words = new Uint32Array(region.buffer as ArrayBuffer);
  for (let at = 0; at < words.length; at += 1) {
    if (words[at] !== word(seed, at)) return false;
  }
  return true;
}

/** Bytes of the region that are not `filler`. */
export function touched(region: Region, filler: number): number {
  let count = 0;
  for (const byte of new Uint8Array(region.buffer as ArrayBuffer)) if (byte !== filler) count += 1;
  return count;
}

/** Waits until nothing of it can touch memory. */
export async function quiet(handle: TransferHandle): Promise<TransferHandle> {
  await waitFor('a transfer to be quiet', () => ['done', 'failed-quiet'].includes(handle.poll()));
  return handle;
}
