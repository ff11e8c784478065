/**
 * Promises of the NCCL transport between two processes, over stand-ins for NCCL and CUDA: both ends cut and post alike,
 * pushes go one after the other, a cancel or a death costs one communicator and proves quiet, and the next push has a new
 * one. What NCCL itself does on a GPU is not shown here.
 */
import { allocateCudaRegion, type CudaRegion } from '../../lib/memory/cuda-region.js';
import type { JsonObject, JsonValue } from '../../lib/json.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import { NcclTransport } from '../../lib/transfer/transports/nccl.js';
import { decodeNcclGrant } from '../../lib/transfer/transports/nccl-grant.js';
import type { Peer, TransferHandle } from '../../lib/transfer/transport.js';
import { startChild, type Child } from '../support/child-process.js';
import { stallNccl, useFakeNccl } from '../support/fake-nccl.js';
import { blockProgram, requestOf, waitFor } from '../support/host-fixture.js';
import { eachFragment } from '../support/program-oracle.js';

const bytes = 1 << 20;
const blockBytes = 16_384;
const chunkBytes = 65_536;
const filler = 0xee;

let env: Record<string, string> = {};
let region: CudaRegion;
let transport: NcclTransport;
let peer: Peer;

beforeAll(() => {
  env = useFakeNccl();
});

beforeEach(async () => {
  region = allocateCudaRegion({ bytes });
  region.write(0, new Uint8Array(bytes).fill(filler));
  transport = new NcclTransport({ pushes: false, chunkBytes });
  transport.register(region);
  await transport.open();
});

afterEach(async () => {
  await transport.close();
  region.close();
});

interface Ended {
  readonly status: string;
  readonly error: string | null;
  readonly bytes: number;
}

async function source(seed: number): Promise<Child> {
  const child = startChild('nccl-end', [], env);
  const grant = await child.ask<JsonObject>('open', { bytes, seed, options: { chunkBytes } });
  expect(await child.ask('connect', { grant: transport.grant() })).toBeNull();
  peer = transport.connect(grant);
  return child;
}

/** Every second slice of each block; blocks change places. */
function sliced(sliceBytes: number, blocks = bytes / blockBytes): CopyProgram {
  const from = Int32Array.from({ length: blocks }, (_, i) => (i * 37 + 5) % blocks);
  const { rectangles, tables } = blockProgram(from, from.slice().reverse(), blockBytes);
  const loop = { count: blockBytes / sliceBytes / 2, sourceStride: 2 * sliceBytes, targetStride: 2 * sliceBytes };
  return { rectangles: [{ ...rectangles[0]!, fragmentBytes: sliceBytes, loops: [loop] }], tables };
}

const whole = (): CopyProgram => {
  const ids = Int32Array.from({ length: bytes / blockBytes }, (_, i) => i);
  return blockProgram(ids, ids.slice().reverse(), blockBytes);
};

/** As the source sees it: it does not know where blocks go over there. */
function asSource(program: CopyProgram): CopyProgram {
  return {
    rectangles: program.rectangles,
    tables: program.tables.map((table) => ({ ...table, target: Int32Array.from(table.target, (_, row) => row) })),
  };
}

function contents(): Uint8Array {
  const now = new Uint8Array(bytes);
  region.read(0, now);
  return now;
}

function expectedBytes(program: CopyProgram, seed: number): Uint8Array {
  const words = Uint32Array.from({ length: bytes / 4 }, (_, i) => Math.imul(i + seed, 2654435761) >>> 0);
  const from = new Uint8Array(words.buffer);
  const target = new Uint8Array(bytes).fill(filler);
  eachFragment(program, (_, at, __, to, length) => target.set(from.subarray(at, at + length), to));
  return target;
}

async function quiet(handle: TransferHandle): Promise<TransferHandle> {
  await waitFor('a transfer to be quiet', () => {
    transport.takeChanged();
    return ['done', 'failed-quiet'].includes(handle.poll());
  });
  return handle;
}

const push = (child: Child, tag: string, program: CopyProgram): Promise<unknown> =>
  child.ask('push', { tag, programs: [asSource(program)] });

test('packed chunks bring the right bytes to the right places and no others', async () => {
  const child = await source(1);
  for (const [index, program] of [whole(), sliced(512), sliced(8192), sliced(64, 1)].entries()) {
    region.write(0, new Uint8Array(bytes).fill(filler));
    const tag = `h${index}`;
    const handle = transport.begin({ ...requestOf(program), tag }, peer);
    await push(child, tag, program);
    await quiet(handle);
    expect(handle.error).toBeNull();
    expect(await child.ask<Ended>('ended', { tag })).toMatchObject({ status: 'done', bytes: handle.bytesDone });
    expect(Buffer.compare(contents(), expectedBytes(program, 1))).toBe(0);
  }
});

test('field report 56: crossed orders are agreed upon: each push lands under its own tag', async () => {
  const child = await source(2);
  const first = blockProgram(Int32Array.of(3, 1, 2), Int32Array.of(10, 11, 12), blockBytes);
  const second = blockProgram(Int32Array.of(4, 0), Int32Array.of(20, 21), blockBytes);
  // Announced before it is expected, and in another order than it is expected in.
  await push(child, 'a', first);
  await push(child, 'b', second);
  const b = transport.begin({ ...requestOf(second), tag: 'b' }, peer);
  const a = transport.begin({ ...requestOf(first), tag: 'a' }, peer);
  await quiet(a);
  const afterA = await child.ask<Ended>('ended', { tag: 'a' });
  await quiet(b);
  expect([a.error, b.error, afterA.status]).toEqual([null, null, 'done']);
  const both = blockProgram(Int32Array.of(3, 1, 2, 4, 0), Int32Array.of(10, 11, 12, 20, 21), blockBytes);
  expect(Buffer.compare(contents(), expectedBytes(both, 2))).toBe(0);
});

test('what was not posted is quiet at once when it is cancelled', async () => {
  await source(3);
  const handle = transport.begin({ ...requestOf(whole()), tag: 'never' }, peer);
  expect(handle.poll()).toBe('active');
  handle.cancel();
  expect([handle.poll(), handle.error?.code]).toEqual(['failed-quiet', 'TRANSFER_CANCELLED']);
  expect(transport.takeChanged()).toContain(handle);
});

test('field report 59: a cancel while bytes move ends the communicator on both sides, quiet on both; the next push has a new one', async () => {
  stallNccl(true);
  try {
    const child = await source(4);
    const handle = transport.begin({ ...requestOf(whole()), tag: 'stuck' }, peer);
    await push(child, 'stuck', whole());
    await waitFor('the push to be posted here', () => {
      transport.takeChanged();
      return transport.isPosted(handle);
    });
    handle.cancel();
    await quiet(handle);
    expect(handle.error?.code).toBe('TRANSFER_CANCELLED');
    expect(await child.ask<Ended>('ended', { tag: 'stuck' })).toMatchObject({
      status: 'failed-quiet',
      error: expect.stringMatching(/PEER_LOST|TRANSFER_CANCELLED/),
    });
    stallNccl(false);
    region.write(0, new Uint8Array(bytes).fill(filler));
    expect(await child.ask('peer')).toBe('failed');
    expect(await child.ask('connect', { grant: transport.grant() })).toBeNull();
    const again = transport.begin({ ...requestOf(whole()), tag: 'again' }, peer);
    await push(child, 'again', whole());
    expect((await quiet(again)).error).toBeNull();
    expect(Buffer.compare(contents(), expectedBytes(whole(), 4))).toBe(0);
  } finally {
    stallNccl(false);
  }
});

test('field report 58: a source that is killed costs its pair and nothing else', async () => {
  stallNccl(true);
  const child = await source(5);
  const stuck = transport.begin({ ...requestOf(whole()), tag: 'stuck' }, peer);
  await push(child, 'stuck', whole());
  await waitFor('the push to be posted here', () => {
    transport.takeChanged();
    return transport.isPosted(stuck);
  });
  stallNccl(false);
  await child.kill();
  await quiet(stuck);
  expect(stuck.error?.code).toBe('PEER_LOST');
  const other = await source(6);
  const handle = transport.begin({ ...requestOf(sliced(256)), tag: 'other' }, peer);
  await push(other, 'other', sliced(256));
  expect((await quiet(handle)).error).toBeNull();
});

test('a target that goes away is lost for the source, with all that waits', async () => {
  const child = await source(7);
  await push(child, 'one', whole());
  await push(child, 'two', whole());
  await transport.close();
  for (const tag of ['one', 'two']) {
    expect(await child.ask<Ended>('ended', { tag })).toMatchObject({ status: 'failed-quiet', error: 'PEER_LOST' });
  }
});

test('a push of another size than expected is refused on both sides, and the pair goes on', async () => {
  const child = await source(8);
  const handle = transport.begin({ ...requestOf(sliced(512)), tag: 'x' }, peer);
  await push(child, 'x', whole());
  await quiet(handle);
  expect(handle.error?.code).toBe('INCOMPATIBLE');
  expect(await child.ask<Ended>('ended', { tag: 'x' })).toMatchObject({ error: 'PEER_REFUSED' });
  const next = transport.begin({ ...requestOf(whole()), tag: 'y' }, peer);
  await push(child, 'y', whole());
  expect((await quiet(next)).error).toBeNull();
});

test('field report 52: who does not know the token, or cuts otherwise, is turned away', async () => {
  const child = startChild('nccl-end', [], env);
  await child.ask('open', { bytes, seed: 9, options: { chunkBytes } });
  const grant = transport.grant();
  const lie = { ...grant, listener: { ...(grant['listener'] as JsonObject), token: '0'.repeat(32) } };
  expect(await child.ask('connect', { grant: lie })).toBe('PEER_LOST');
  expect(await child.ask('connect', { grant: { ...grant, chunk_bytes: 4096 } })).toBe('PEER_REFUSED');
  expect(await child.ask('connect', { grant })).toBeNull();
});

test('a source that ends before it announces anything costs what only it could send, and nothing else', async () => {
  const child = await source(10);
  await waitFor('the source to be known', () => peer.status() === 'ready');
  const [gone, lost] = [child, peer];
  const other = await source(11);
  const orphan = transport.begin({ ...requestOf(whole()), tag: 'orphan' }, lost);
  const kept = transport.begin({ ...requestOf(whole()), tag: 'kept' }, peer);
  await gone.kill();
  await quiet(orphan);
  expect([orphan.error?.code, lost.status(), kept.poll()]).toEqual(['PEER_LOST', 'failed', 'active']);
  await push(other, 'kept', whole());
  expect((await quiet(kept)).error).toBeNull();
});

test('a source that is gone before it is met is a peer that failed', async () => {
  const child = startChild('nccl-end', [], env);
  const grant = await child.ask<JsonObject>('open', { bytes, seed: 12, options: { chunkBytes } });
  await child.kill();
  const stranger = transport.connect(grant);
  await waitFor('the peer to fail', () => stranger.status() === 'failed');
  expect(stranger.error?.code).toBe('PEER_LOST');
  const handle = transport.begin({ ...requestOf(whole()), tag: 'late' }, stranger);
  expect([handle.poll(), handle.error?.code]).toEqual(['failed-quiet', 'PEER_LOST']);
});

test('a push that was given up here is declined, and does not hold up those behind it', async () => {
  const child = await source(13);
  const early = transport.begin({ ...requestOf(whole()), tag: 'early' }, peer);
  early.cancel();
  await push(child, 'early', whole());
  await push(child, 'next', sliced(512));
  expect(await child.ask<Ended>('ended', { tag: 'early' })).toMatchObject({ error: 'PEER_REFUSED' });
  const next = transport.begin({ ...requestOf(sliced(512)), tag: 'next' }, peer);
  expect((await quiet(next)).error).toBeNull();
  // The tag may be used again.
  const again = transport.begin({ ...requestOf(whole()), tag: 'early' }, peer);
  await push(child, 'early', whole());
  expect((await quiet(again)).error).toBeNull();
});

test('a push that the source gives up before its turn is not waited for', async () => {
  const child = await source(14);
  const behind = transport.begin({ ...requestOf(whole()), tag: 'behind' }, peer);
  // The first waits here, so the second is not announced.
  await push(child, 'first', sliced(512));
  await push(child, 'behind', whole());
  await child.ask('cancel', { tag: 'behind' });
  await quiet(behind);
  expect(behind.error?.code).toBe('TRANSFER_CANCELLED');
  const first = transport.begin({ ...requestOf(sliced(512)), tag: 'first' }, peer);
  expect((await quiet(first)).error).toBeNull();
});

test('two ends that push, or that are pushed to, refuse each other', () => {
  const refused = transport.connect(transport.grant());
  expect([refused.status(), refused.error?.code]).toEqual(['failed', 'PEER_REFUSED']);
});

const granted = { version: 1, chunk_bytes: 4096, regions: ['1'], pushes: true, packed: true };
const listener = { host: 'a', port: 1, token: 'b' };
test.each<[string, JsonValue, string]>([
  ['nothing', null, 'grant: '],
  ['another version', { version: 'x' }, 'grant.version: '],
  ['no listener', { ...granted, listener: null }, 'grant.listener: '],
  ['no regions', { ...granted, regions: [], listener }, 'grant.regions: '],
  ['a region of nothing', { ...granted, regions: ['0'], listener }, 'grant.regions[0]: '],
  ['tiny chunks', { ...granted, chunk_bytes: 1, listener }, 'grant.chunk_bytes: '],
  ['no cut', { ...granted, packed: null, listener }, 'grant.packed: '],
  ['no direction', { ...granted, pushes: 1, listener }, 'grant.pushes: '],
  ['a port of zero', { ...granted, listener: { ...listener, port: 0 } }, 'grant.listener.port: '],
])('a grant with %s is refused by name', (_, value, message) => {
  expect(() => decodeNcclGrant(value)).toThrow(
    expect.objectContaining({ code: 'ARGUMENT_INVALID', message: expect.stringContaining(message) }),
  );
});
