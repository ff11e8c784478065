/**
 * Promises of the host transport between real processes: whichever side is killed, stopped or restarted, and whenever,
 * the other goes on, every transfer ends, nothing wrong is delivered, and nothing is left behind.
 */
import type { JsonObject } from '../../lib/json.js';
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import type { Region } from '../../lib/memory/region.js';
import { HostTransport } from '../../lib/transfer/transports/host.js';
import type { TransferHandle } from '../../lib/transfer/transport.js';
import { startChild, type Child } from '../support/child-process.js';
import {
  blockProgram,
  ended,
  patientMs,
  processResources,
  requestOf,
  settled,
  waitFor,
} from '../support/host-fixture.js';

const bytes = 16 << 20;
const one = Int32Array.of(0);
const whole = requestOf(blockProgram(one, one, bytes));

interface Pulled {
  readonly status: string;
  readonly error: string | null;
  readonly wrong: number;
}

const exporterOf = async (seed: number): Promise<{ child: Child; grant: JsonObject }> => {
  const child = startChild('host-end');
  return { child, grant: await child.ask<JsonObject>('open', { bytes, seed }) };
};

// Under Jest every look-up of a global is slow.
const { imul } = Math;

function isFilledFrom(region: Region, seed: number, length = bytes): boolean {
  const words = new Uint32Array(region.buffer as ArrayBuffer, 0, length / 4);
  for (let at = 0; at < words.length; at += 1) {
    if (words[at] !== imul(at + seed, 2654435761) >>> 0) return false;
  }
  return true;
}

let region: Region;
let transport: HostTransport;

beforeEach(() => {
  region = allocateHostRegion({ bytes });
  transport = new HostTransport({ handshakeMs: patientMs });
  transport.register(region);
});

afterEach(async () => {
  await transport.close();
  region.close();
});

test('a pull from another process brings its bytes', async () => {
  const { grant } = await exporterOf(1);
  const handle = await ended(transport.begin(whole, transport.connect(grant)));
  expect(handle).toMatchObject({ error: null, bytesDone: bytes });
  expect(isFilledFrom(region, 1)).toBe(true);
});

test('two importers pull from one exporter at once, again and again', async () => {
  const { child, grant } = await exporterOf(2);
  const other = startChild('host-end');
  await other.ask('open', { bytes, seed: null });
  const before = await child.ask('resources');
  for (let round = 0; round < 10; round += 1) {
    const theirs = other.ask<Pulled>('pull', { grant, seed: 2 });
    const peer = transport.connect(grant);
    await ended(transport.begin(whole, peer));
    expect(isFilledFrom(region, 2)).toBe(true);
    expect(await theirs).toEqual({ status: 'done', error: null, wrong: 0 });
    peer.close();
    new Uint8Array(region.buffer as ArrayBuffer).fill(0);
  }
  await other.kill();
  // The exporter forgets importers that went away.
  let after = await child.ask('resources');
  for (let tries = 0; tries < 500 && JSON.stringify(after) !== JSON.stringify(before); tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    after = await child.ask('resources');
  }
  expect(after).toEqual(before);
});

test('closing ends the threads, descriptors and mappings of either end', async () => {
  const [source, target] = [startChild('host-end'), startChild('host-end')];
  const once = async (seed: number): Promise<unknown[]> => {
    const grant = await source.ask<JsonObject>('open', { bytes, seed });
    await target.ask('open', { bytes, seed: null });
    expect(await target.ask<Pulled>('pull', { grant, seed })).toEqual({ status: 'done', error: null, wrong: 0 });
    const open = await target.ask<{ threads: number }>('resources');
    await target.ask('close');
    await source.ask('close');
    const closed = await target.ask<{ threads: number }>('resources');
    expect(closed.threads).toBeLessThan(open.threads);
    return [closed, await source.ask('resources')];
  };
  // The first time loads what stays with the process; every later one must leave exactly that behind.
  const first = await once(1);
  expect(await once(2)).toEqual(first);
  expect(await once(3)).toEqual(first);
});

test('an exporter that is killed in mid-read costs nothing but itself, many times', async () => {
  await ended(transport.begin(whole, transport.connect((await exporterOf(3)).grant)));
  const before = processResources();
  let interrupted = 0;
  for (let round = 0; round < 25; round += 1) {
    const { child, grant } = await exporterOf(round);
    const peer = await settled(transport.connect(grant));
    new Uint8Array(region.buffer as ArrayBuffer).fill(0xee);
    const handle = transport.begin(whole, peer);
    const enough = (bytes / 25) * round;
    await waitFor('a moment in the read', () => handle.bytesDone >= enough || handle.poll() !== 'active');
    const gone = child.kill();
    if (handle.poll() === 'active') interrupted += 1;
    await ended(handle);
    // What was mapped stays as it was when its owner died: the read completes, with the right bytes.
    expect(handle.poll()).toBe('done');
    expect(isFilledFrom(region, round)).toBe(true);
    await gone;
    await waitFor('the loss to show', () => peer.status() === 'failed');
    expect(peer.error).toMatchObject({ code: 'PEER_LOST', retryable: true });
    const late = transport.begin(whole, peer);
    expect([late.poll(), late.error?.code]).toEqual(['failed-quiet', 'PEER_LOST']);
    const again = await settled(transport.connect(grant));
    expect(again.error?.code).toBe('PEER_UNREACHABLE');
    peer.close();
    again.close();
    transport.takeChanged();
  }
  expect(interrupted).toBeGreaterThan(5);
  const after = processResources();
  expect(after.threads).toBeLessThanOrEqual(before.threads);
  expect(after.descriptors).toBeLessThanOrEqual(before.descriptors);
  expect(after.mapped).toBeLessThanOrEqual(before.mapped);
});

test('an importer that is killed in mid-read leaves the exporter as it was, many times', async () => {
  const { child, grant } = await exporterOf(4);
  const before = await child.ask('resources');
  for (let round = 0; round < 15; round += 1) {
    const importer = startChild('host-end');
    await importer.ask('open', { bytes, seed: null });
    await importer.ask('pullForEver', { grant, seed: 4 });
    await new Promise((resolve) => setTimeout(resolve, 3 * round));
    await importer.kill();
  }
  const last = startChild('host-end');
  await last.ask('open', { bytes, seed: null });
  expect(await last.ask<Pulled>('pull', { grant, seed: 4 })).toEqual({ status: 'done', error: null, wrong: 0 });
  await last.kill();
  let after = await child.ask('resources');
  for (let tries = 0; tries < 500 && JSON.stringify(after) !== JSON.stringify(before); tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    after = await child.ask('resources');
  }
  expect(after).toEqual(before);
});

test('field report 47: a hundred restarts of the exporter under load: the importer recovers every time', async () => {
  const child = startChild('host-end');
  const handles: TransferHandle[] = [];
  for (let restart = 0; restart < 100; restart += 1) {
    const grant = await child.ask<JsonObject>('open', { bytes: 65_536, seed: restart });
    const peer = transport.connect(grant);
    const small = requestOf(blockProgram(one, one, 65_536));
    const handle = transport.begin(small, peer);
    // Closing races with the pull: it may find nobody, or be done.
    const closed = child.ask('close');
    await ended(handle);
    await closed;
    handles.push(handle);
    if (handle.poll() === 'done') {
      expect(isFilledFrom(region, restart, 65_536)).toBe(true);
    } else {
      expect(['PEER_LOST', 'PEER_UNREACHABLE']).toContain(handle.error?.code);
    }
    transport.takeChanged();
    peer.close();
  }
  expect(handles.filter((handle) => handle.poll() === 'done').length).toBeGreaterThan(0);
});

test('field report 43: an exporter that is stopped does not stop a pull, and only delays a handshake up to its deadline', async () => {
  const { child, grant } = await exporterOf(5);
  const peer = await settled(transport.connect(grant));
  child.process.kill('SIGSTOP');
  const handle = await ended(transport.begin(whole, peer));
  expect(handle.poll()).toBe('done');
  expect(isFilledFrom(region, 5)).toBe(true);
  const hasty = new HostTransport({ handshakeMs: 100 });
  hasty.register(region);
  const waiting = hasty.connect(grant);
  const begun = hasty.begin(whole, waiting);
  // None of the calls waited for the peer, which says nothing yet.
  expect([waiting.status(), begun.poll()]).toEqual(['connecting', 'active']);
  const late = await settled(waiting);
  expect((await ended(begun)).error?.code).toBe('PEER_UNREACHABLE');
  expect(late.error).toMatchObject({
    code: 'PEER_UNREACHABLE',
    message: "the peer's broker did not finish the handshake within 100 ms",
  });
  child.process.kill('SIGCONT');
  expect((await settled(hasty.connect(grant))).status()).toBe('ready');
  await hasty.close();
});

test('an exporter that exits in its own time is lost like one that is killed', async () => {
  const { child, grant } = await exporterOf(6);
  const peer = await settled(transport.connect(grant));
  const handle = transport.begin(whole, peer);
  await child.ask('exit', { code: 0 }).catch(() => undefined);
  await ended(handle);
  expect(handle.poll()).toBe('done');
  await waitFor('the loss', () => peer.status() === 'failed');
  expect(peer.error?.code).toBe('PEER_LOST');
});

test('works over a path in a folder that both share', async () => {
  const { mkdtempSync, readdirSync, rmSync } = await import('node:fs');
  const { tmpdir } = await import('node:os');
  const { join } = await import('node:path');
  const folder = mkdtempSync(join(tmpdir(), 'handoff-'));
  const child = startChild('host-end');
  const grant = await child.ask<JsonObject>('open', { bytes, seed: 7, options: { socketDirectory: folder } });
  expect(grant.socket).toMatchObject({ kind: 'path' });
  expect(readdirSync(folder)).toHaveLength(1);
  const handle = await ended(transport.begin(whole, transport.connect(grant)));
  expect(handle.poll()).toBe('done');
  expect(isFilledFrom(region, 7)).toBe(true);
  await child.ask('close');
  expect(readdirSync(folder)).toHaveLength(0);
  rmSync(folder, { recursive: true });
});
