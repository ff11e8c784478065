/**
 * Promises of the cuda-ipc transport between real processes, over a GPU or over the stand-in for its driver: those of every
 * one-sided transport; besides, no block is delivered that got a new owner, and nothing is left mapped.
 */
import type { Child } from './child-process.js';
import { GpuEnds, right, type GpuSetting, type Pulled } from './gpu-ends.js';
import { gpuPrograms, gpuPullSuite } from './gpu-pull-suite.js';
import { waitFor } from './host-fixture.js';

export function cudaIpcSuite(setting: GpuSetting): void {
  const { bytes, gpus } = setting;
  const ends = new GpuEnds('cuda-ipc', setting);
  const { count, blocks: program, sliced } = gpuPrograms(bytes);
  const letGo = (reader: Child): Promise<void> => waitForCounters(reader, { mappings: 0 });

  gpuPullSuite({ ends, bytes, letGo });

  test('pulls scattered blocks and slices, every byte, and lets go of the mapping with the last peer', async () => {
    const { child, grant } = await ends.exporter(7);
    const reader = await ends.importer();
    expect(await ends.pull(reader, grant, program, 7)).toMatchObject({ ...right, bytes });
    expect(await ends.pull(reader, grant, sliced(2048), 7)).toMatchObject({ ...right, bytes: bytes / 2 });
    await letGo(reader);
    await ends.close(reader, child);
  });

  test('delivers nothing of a block that got a new owner before it was read', async () => {
    const { child, grant } = await ends.open({ seed: 8, devices: [gpus.source], blocks: count });
    const reader = await ends.importer();
    const claimed = { grant, program, seed: 8, generations: Array.from({ length: count }, () => 1) };
    expect(await reader.ask<Pulled>('pull', claimed)).toMatchObject({ status: 'done', error: null, bytes });
    await child.ask('advance', { ids: [program.tables[0]!.source[1]] });
    const late = await reader.ask<Pulled>('pull', claimed);
    expect(late).toMatchObject({ status: 'failed-quiet', error: 'HANDOFF_EXPIRED', bytes: 0 });
    await ends.close(reader, child);
  });

  test('refuses a ticket without the generations that the peer grants', async () => {
    const { child, grant } = await ends.open({ seed: 9, devices: [gpus.source], blocks: count });
    const reader = await ends.importer();
    const bare = await reader.ask<Pulled>('pull', { grant, program, seed: 9 });
    expect(bare).toMatchObject({ status: 'failed-quiet', error: 'PEER_REFUSED' });
    await ends.close(reader, child);
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
