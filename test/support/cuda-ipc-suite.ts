/**
 * Promises of the cuda-ipc transport between real processes, over a GPU or over the stand-in for its driver: whichever
 * side is killed, the other goes on, every transfer ends, nothing wrong is delivered, and nothing is left mapped.
 */
import type { JsonObject } from '../../lib/json.js';
import { startChild, type Child } from './child-process.js';
import { waitFor } from './host-fixture.js';

export interface CudaSetting {
  readonly env?: NodeJS.ProcessEnv;
  /** Of a region. */
  readonly bytes: number;
  readonly gpus: { readonly source: number; readonly target: number };
}

interface Pulled {
  readonly status: string;
  readonly error: string | null;
  readonly message: string | null;
  readonly wrong: number | null;
  readonly bytes: number;
  readonly pulls?: number;
}

const blockBytes = 32 << 10;

export function cudaIpcSuite({ env = {}, bytes, gpus }: CudaSetting): void {
  const count = bytes / blockBytes;
  const start = (extra: Record<string, string> = {}): Child =>
    startChild('cuda-end', [], { ...(env as Record<string, string>), ...extra });
  const exporter = async (seed: number, blocks = 0): Promise<{ child: Child; grant: JsonObject }> => {
    const child = start();
    return { child, grant: await child.ask<JsonObject>('open', { bytes, seed, device: gpus.source, blocks }) };
  };
  const importer = async (extra: Record<string, string> = {}): Promise<Child> => {
    const child = start(extra);
    await child.ask('open', { bytes, seed: null, device: gpus.target });
    return child;
  };
  // Every block once, each to another place.
  const source = Array.from({ length: count }, (_, index) => (index * 7) % count);
  const target = Array.from({ length: count }, (_, index) => (index * 11 + 3) % count);
  const pullOf = (grant: JsonObject, seed: number): Record<string, unknown> => ({
    ...{ grant, seed, blockBytes, source, target },
  });
  const closed = async (...children: readonly Child[]): Promise<void> => {
    for (const child of children) expect(await child.ask('close')).toBeNull();
    await Promise.all(children.map((child) => child.kill()));
  };

  test('pulls scattered blocks, every byte, and lets go of the mapping with the last peer', async () => {
    const { child, grant } = await exporter(5);
    const reader = await importer();
    const pulled = await reader.ask<Pulled>('pull', pullOf(grant, 5));
    expect(pulled).toMatchObject({ status: 'done', error: null, wrong: 0, bytes });
    await waitForCounters(reader, { mappings: 0 });
    await closed(reader, child);
  });

  test('delivers nothing of a block that got a new owner before it was read', async () => {
    const { child, grant } = await exporter(6, count);
    const reader = await importer();
    const claimed = { ...pullOf(grant, 6), generations: source.map(() => 1) };
    expect(await reader.ask<Pulled>('pull', claimed)).toMatchObject({ status: 'done', wrong: 0 });
    await child.ask('advance', { ids: [source[1]] });
    const late = await reader.ask<Pulled>('pull', { ...claimed, seed: undefined });
    expect(late).toMatchObject({ status: 'failed-quiet', error: 'HANDOFF_EXPIRED', bytes: 0 });
    await closed(reader, child);
  });

  test('refuses a ticket without the generations that the peer grants', async () => {
    const { child, grant } = await exporter(6, count);
    const reader = await importer();
    const bare = await reader.ask<Pulled>('pull', { ...pullOf(grant, 6), seed: undefined });
    expect(bare).toMatchObject({ status: 'failed-quiet', error: 'PEER_REFUSED' });
    await closed(reader, child);
  });

  test('refuses blocks outside either region before anything is launched', async () => {
    const { child, grant } = await exporter(7);
    const reader = await importer();
    for (const changed of [{ source: [count] }, { target: [count] }, { source: [-1] }]) {
      const values = { ...pullOf(grant, 7), seed: undefined, source: [0], target: [0], ...changed };
      const { status, error } = await reader.ask<Pulled>('pull', values);
      expect(status).toBe('failed-quiet');
      expect(['PROGRAM_OUT_OF_RANGE', 'ARGUMENT_INVALID']).toContain(error);
    }
    await closed(reader, child);
  });

  test('a cancel ends, and what comes after it is right', async () => {
    const { child, grant } = await exporter(8);
    const reader = await importer();
    const cancelled = await reader.ask<Pulled>('pull', { ...pullOf(grant, 8), seed: undefined, cancel: true });
    expect(['done', 'failed-quiet']).toContain(cancelled.status);
    if (cancelled.status !== 'done') expect(cancelled.error).toBe('TRANSFER_CANCELLED');
    expect(await reader.ask<Pulled>('pull', pullOf(grant, 8))).toMatchObject({ status: 'done', wrong: 0 });
    await closed(reader, child);
  });

  test('SIGKILL of the exporter under way: nothing wrong arrives, and another exporter is read afterwards', async () => {
    const { child, grant } = await exporter(9);
    const reader = await importer();
    expect(await reader.ask<Pulled>('pull', pullOf(grant, 9))).toMatchObject({ status: 'done' });
    const failing = reader.ask<Pulled>('pullUntilFailure', pullOf(grant, 9));
    await child.kill();
    const { status, error, wrong } = await failing;
    expect(status).toBe('failed-quiet');
    expect(['PEER_LOST', 'PEER_UNREACHABLE']).toContain(error);
    // What a failed pull left is what earlier pulls of the same blocks had written.
    expect(wrong).toBe(0);
    await waitForCounters(reader, { mappings: 0 });
    const other = await exporter(10);
    expect(await reader.ask<Pulled>('pull', pullOf(other.grant, 10))).toMatchObject({ status: 'done', wrong: 0 });
    await closed(reader, other.child);
  });

  test('SIGKILL of an importer under way: the exporter serves the next', async () => {
    const { child, grant } = await exporter(11);
    const doomed = await importer();
    expect(await doomed.ask<Pulled>('pull', pullOf(grant, 11))).toMatchObject({ status: 'done' });
    void doomed.ask('pullForEver', pullOf(grant, 11)).catch(() => undefined);
    await doomed.kill();
    const reader = await importer();
    expect(await reader.ask<Pulled>('pull', pullOf(grant, 11))).toMatchObject({ status: 'done', wrong: 0 });
    await closed(reader, child);
  });

  test('the grant of a dead exporter leads nowhere', async () => {
    const { child, grant } = await exporter(12);
    await child.kill();
    const reader = await importer();
    const { status, error } = await reader.ask<Pulled>('pull', { ...pullOf(grant, 12), seed: undefined });
    expect({ status, error }).toEqual({ status: 'failed-quiet', error: 'PEER_UNREACHABLE' });
    await closed(reader);
  });
}

async function waitForCounters(child: Child, wanted: Record<string, number>): Promise<void> {
  let last: Record<string, number> = {};
  let asking = false;
  await waitFor(`counters ${JSON.stringify(wanted)}`, () => {
    if (!asking) {
      asking = true;
      void child.ask<Record<string, number>>('counters').then((counters) => {
        last = counters;
        asking = false;
      });
    }
    return Object.entries(wanted).every(([name, value]) => last[name] === value);
  });
}
