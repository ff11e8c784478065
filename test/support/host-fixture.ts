/** Regions, programs and patience for tests of the host transport. */
import { readdirSync, readFileSync } from 'node:fs';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import type { Peer, SourceGenerations, TransferHandle, TransferRequest } from '../../lib/transfer/transport.js';

/** Whole blocks, the rows of one table. */
export function blockProgram(source: Int32Array, target: Int32Array, blockBytes: number): CopyProgram {
  return {
    rectangles: [
      {
        ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: source.length },
        ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: blockBytes, loops: [] },
      },
    ],
    tables: [
      { source, target, strides: { sourceBlock: blockBytes, targetBlock: blockBytes, sourceSub: 0, targetSub: 0 } },
    ],
  };
}

export function requestOf(program: CopyProgram, generations: SourceGenerations | null = null): TransferRequest {
  return { programs: [program], generations, tag: 'test' };
}

/** Polls until `condition` holds; fails after 20 seconds. */
export async function waitFor(what: string, condition: () => boolean): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`waited 20 s for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

/** How long a handshake may take on a machine that is busy with other things, in milliseconds. */
export const patientMs = 60_000;

export async function settled(peer: Peer): Promise<Peer> {
  await waitFor('a peer to settle', () => peer.status() !== 'connecting');
  return peer;
}

export async function ended(handle: TransferHandle): Promise<TransferHandle> {
  await waitFor('a transfer to end', () => handle.poll() !== 'active');
  return handle;
}

/** Open descriptors, threads and mappings of shared memory of this process. */
export function processResources(): { descriptors: number; threads: number; mapped: number } {
  return {
    descriptors: readdirSync('/proc/self/fd').length,
    threads: readdirSync('/proc/self/task').length,
    mapped: readFileSync('/proc/self/maps', 'utf8').split('/memfd:').length - 1,
  };
}

/** Collects garbage without `--expose-gc`, and lets finalizers run. */
export async function collectGarbage(): Promise<void> {
  const { setFlagsFromString } = await import('node:v8');
  const { runInNewContext } = await import('node:vm');
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  for (let round = 0; round < 3; round += 1) {
    collect();
    await new Promise((resolve) => setImmediate(resolve));
  }
}
