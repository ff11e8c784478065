/**
 * Promises of the host transport inside one process: random programs land byte for byte and touch nothing else, every
 * end is reported once, a grant is believed in nothing, and closing is refused while memory is in doubt.
 */
import fc from 'fast-check';
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import type { JsonObject } from '../../lib/json.js';
import type { Region } from '../../lib/memory/region.js';
import { HostTransport } from '../../lib/transfer/transports/host.js';
import type { TransferHandle } from '../../lib/transfer/transport.js';
import {
  blockProgram,
  collectGarbage,
  ended,
  patientMs,
  processResources,
  requestOf,
  settled,
  waitFor,
} from '../support/host-fixture.js';
import { twoEnds } from '../support/host-ends.js';
import { interleavedNests, layoutBoxes, unrelatedNests } from '../support/program-arbitraries.js';
import { eachFragment, expand } from '../support/program-oracle.js';

const bytesOf = (region: Region): Uint8Array => new Uint8Array(region.buffer as ArrayBuffer);

test('says what it can do', () => {
  const transport = new HostTransport();
  expect(transport.name).toBe('host');
  expect(transport.capabilities).toEqual({
    direction: 'pull',
    memoryKinds: ['host'],
    provesQuietOnCancel: true,
    detectsLateReads: false,
  });
  return transport.close();
});

test.each([
  ['nests of unlike strides', unrelatedNests],
  ['interleaved nests', interleavedNests],
  ['boxes of one layout', layoutBoxes],
])('%s land byte for byte, and every other byte stays', async (_, arbitrary) => {
  const bytes = 1 << 16;
  const { importer, peer, source, target } = await twoEnds(bytes);
  const [from, to] = [bytesOf(source), bytesOf(target)];
  for (let at = 0; at < bytes; at += 1) from[at] = (at * 31 + (at >> 8)) & 0xff;
  await fc.assert(
    fc.asyncProperty(arbitrary, fc.nat({ max: 255 }), async ({ program, sourceBytes, targetBytes }, canary) => {
      const overlaps = expand(program, sourceBytes, targetBytes).overlaps;
      to.fill(canary);
      const expected = Uint8Array.from(to);
      if (!overlaps) {
        eachFragment(program, (_sourceRegion, at, _targetRegion, goes, length) => {
          expected.set(from.subarray(at, at + length), goes);
        });
      }
      const handle = await ended(importer.begin(requestOf(program), peer));
      expect(importer.takeChanged()).toEqual([handle]);
      expect(handle.poll()).toBe(overlaps ? 'failed-quiet' : 'done');
      if (overlaps) expect(handle.error?.code).toBe('PROGRAM_OVERLAP');
      expect(Buffer.compare(to, expected)).toBe(0);
    }),
    { numRuns: 150 },
  );
});

test('several programs of one request are checked and copied as one', async () => {
  const { importer, peer, source, target } = await twoEnds(4096);
  bytesOf(source).forEach((_, at, bytes) => (bytes[at] = at & 0xff));
  const program = (block: number): ReturnType<typeof blockProgram> =>
    blockProgram(Int32Array.of(block), Int32Array.of(3 - block), 1024);
  const both = importer.begin({ programs: [program(0), program(3)], generations: null, tag: 'x' }, peer);
  await ended(both);
  expect(both).toMatchObject({ error: null, bytesDone: 2048 });
  expect(bytesOf(target).subarray(3072, 3075)).toEqual(Uint8Array.of(0, 1, 2));
  expect(
    bytesOf(target)
      .subarray(1024, 3072)
      .every((byte) => byte === 0),
  ).toBe(true);
  const twice = await ended(importer.begin({ programs: [program(1), program(1)], generations: null, tag: 'x' }, peer));
  expect(twice.error).toMatchObject({ code: 'PROGRAM_OVERLAP', phase: 'transfer', targetSafe: true });
});

test('refuses, with the target untouched, what native code checks again', async () => {
  const { importer, peer, target } = await twoEnds(4096);
  bytesOf(target).fill(9);
  const program = blockProgram(Int32Array.of(0, 5), Int32Array.of(0, 1), 1024);
  const outside = await ended(importer.begin(requestOf(program), peer));
  expect(outside.poll()).toBe('failed-quiet');
  expect(outside.error).toMatchObject({
    code: 'PROGRAM_OUT_OF_RANGE',
    message: expect.stringContaining('sourceRegion'),
  });
  const [first] = program.rectangles;
  for (const region of [1, 2 ** 32, Number.MAX_SAFE_INTEGER]) {
    const nowhere = { ...program, rectangles: [{ ...first!, targetRegion: region }] };
    expect((await ended(importer.begin(requestOf(nowhere), peer))).error?.code).toBe('PROGRAM_OUT_OF_RANGE');
  }
  const claims = await ended(
    importer.begin(
      requestOf(blockProgram(Int32Array.of(0), Int32Array.of(0), 1024), {
        blocks: Int32Array.of(0),
        blockGenerations: BigUint64Array.of(1n),
        slots: new Int32Array(0),
        slotGenerations: new BigUint64Array(0),
      }),
      peer,
    ),
  );
  expect(claims.error).toMatchObject({
    code: 'ARGUMENT_INVALID',
    message: 'generations.blocks: expected none for a peer that granted no generations, got 1',
  });
  expect(bytesOf(target).every((byte) => byte === 9)).toBe(true);
});

test('an empty request is done at once and is reported like every other end', async () => {
  const { importer, peer } = await twoEnds(64);
  const woken = new Promise<void>((resolve) => (importer.onWake = resolve));
  const handle = importer.begin({ programs: [], generations: null, tag: 'x' }, peer);
  expect(handle.poll()).toBe('done');
  await woken;
  expect(importer.takeChanged()).toEqual([handle]);
  expect(importer.takeChanged()).toEqual([]);
});

test('wakes for every batch of ends, and reports each end exactly once', async () => {
  const { importer, peer } = await twoEnds(1 << 20);
  const program = blockProgram(Int32Array.of(0, 1, 2, 3), Int32Array.of(3, 1, 2, 0), 1 << 18);
  const begun = new Set<TransferHandle>();
  const reported: TransferHandle[] = [];
  // Nothing polls here: a lost wake-up would leave the test waiting.
  importer.onWake = () => void reported.push(...importer.takeChanged());
  for (let round = 0; round < 200; round += 1) {
    for (let each = 0; each < 5; each += 1) begun.add(importer.begin(requestOf(program), peer));
    await waitFor('the ends of a round', () => reported.length === begun.size);
  }
  expect(new Set(reported)).toEqual(begun);
  expect(reported.every((handle) => handle.poll() === 'done')).toBe(true);
});

test('wakes every copy of the SDK that this environment has loaded', async () => {
  // As when two packages bring a copy each; they share the addon.
  let Copy: typeof HostTransport | undefined;
  jest.isolateModules(() => {
    Copy = (jest.requireActual('../../lib/transfer/transports/host.js') as { HostTransport: typeof HostTransport })
      .HostTransport;
  });
  if (Copy === undefined) throw new Error('the copy was not loaded');
  expect(Copy).not.toBe(HostTransport);
  for (const Each of [HostTransport, Copy, HostTransport]) {
    const transport = new Each();
    const region = allocateHostRegion({ bytes: 64 });
    transport.register(region);
    await new Promise<void>((resolve) => {
      transport.onWake = resolve;
      transport.connect(transport.grant());
    });
    await transport.close();
    region.close();
  }
});

test('field reports 22, 34, 59: a cancel at any moment ends in proof of quiet, may be repeated, and spares later transfers', async () => {
  const bytes = 32 << 20;
  const { importer, peer } = await twoEnds(bytes, { threads: 2 });
  const program = blockProgram(Int32Array.of(0), Int32Array.of(0), bytes);
  let cut = 0;
  for (let round = 0; round < 40; round += 1) {
    const handle = importer.begin(requestOf(program), peer);
    await waitFor('some bytes', () => handle.bytesDone > (round * bytes) / 80 || handle.poll() !== 'active');
    handle.cancel();
    handle.cancel();
    handle.peerAttestedDead();
    await ended(handle);
    if (handle.poll() === 'failed-quiet') {
      cut += 1;
      expect(handle.error).toMatchObject({ code: 'TRANSFER_CANCELLED', retryable: true, targetSafe: true });
      const bytesDone = handle.bytesDone;
      expect(bytesDone).toBeLessThan(bytes);
      expect(handle.bytesDone).toBe(bytesDone);
    } else {
      expect(handle.poll()).toBe('done');
    }
    handle.cancel();
  }
  expect(cut).toBeGreaterThan(5);
  importer.takeChanged();
  const last = await ended(importer.begin(requestOf(program), peer));
  expect(last.poll()).toBe('done');
});

test('a transfer that waits for its peer is cancelled at once', async () => {
  const importer = new HostTransport({ handshakeMs: 20_000 });
  importer.register(allocateHostRegion({ bytes: 64 }));
  const { exporter } = await twoEnds(64);
  const peer = importer.connect(exporter.grant());
  const handle = importer.begin(requestOf(blockProgram(Int32Array.of(0), Int32Array.of(0), 64)), peer);
  handle.cancel();
  expect(['failed-quiet', 'done']).toContain((await ended(handle)).poll());
  await importer.close();
});

test('as many transfers as it has places, and no more before they are taken', async () => {
  const { importer, peer } = await twoEnds(64, { transfersMax: 2 });
  const begin = (): TransferHandle =>
    importer.begin(requestOf(blockProgram(Int32Array.of(0), Int32Array.of(0), 64)), peer);
  const [first, second, third] = [begin(), begin(), begin()];
  expect(third.poll()).toBe('failed-quiet');
  expect(third.error).toMatchObject({ code: 'NATIVE_LIMIT', retryable: true });
  await ended(first);
  await ended(second);
  const taken: TransferHandle[] = [];
  await waitFor('all three', () => taken.push(...importer.takeChanged()) > 0 && taken.length === 3);
  expect(new Set(taken)).toEqual(new Set([first, second, third]));
  expect((await ended(begin())).poll()).toBe('done');
});

describe('peers', () => {
  test('of one incarnation share a link, and each closes on its own', async () => {
    const { exporter, importer, peer } = await twoEnds(64);
    // What earlier tests left to the garbage collector is no part of it.
    await collectGarbage();
    const before = processResources().descriptors;
    const others = await Promise.all(Array.from({ length: 20 }, () => settled(importer.connect(exporter.grant()))));
    expect(processResources().descriptors).toBeLessThanOrEqual(before);
    for (const other of others) other.close();
    expect(others[0]?.status()).toBe('failed');
    expect(others[0]?.error?.code).toBe('CLOSED');
    expect(peer.status()).toBe('ready');
    peer.close();
    peer.close();
    const again = await settled(importer.connect(exporter.grant()));
    expect(again.status()).toBe('ready');
  });

  test('of another transport are refused', async () => {
    const [one, other] = [await twoEnds(64), await twoEnds(64)];
    const program = requestOf(blockProgram(Int32Array.of(0), Int32Array.of(0), 64));
    expect(() => one.importer.begin(program, other.peer)).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID', message: expect.stringMatching(/^peer: expected/) }),
    );
  });
});

describe('options', () => {
  test.each([
    [{ threads: 0 }, 'options.threads: expected an integer from 1 to 64, got 0'],
    [{ threads: 65 }, 'options.threads: expected an integer from 1 to 64, got 65'],
    [{ transfersMax: 1.5 }, 'options.transfersMax: expected an integer from 1 to 1048576, got 1.5'],
    [{ handshakeMs: 0 }, 'options.handshakeMs: expected an integer from 1 to 600000, got 0'],
  ])('%j is refused', (options, message) => {
    expect(() => new HostTransport(options)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID', message }));
  });

  test('a folder that is not there is named', async () => {
    const transport = new HostTransport({ socketDirectory: './no-such-folder' });
    transport.register(allocateHostRegion({ bytes: 1 }));
    expect(() => transport.grant()).toThrow(
      expect.objectContaining({ code: 'NATIVE_SYSTEM', message: expect.stringContaining('./no-such-folder') }),
    );
    await transport.close();
  });

  test('regions that are not of the SDK are refused', async () => {
    const transport = new HostTransport();
    const region = { kind: 'host' as const, byteLength: 1, buffer: new ArrayBuffer(1), native: null, close: () => {} };
    expect(() => transport.register(region)).toThrow(
      expect.objectContaining({
        code: 'ARGUMENT_INVALID',
        message: 'region: expected a host region of allocateHostRegion, got "plain memory"',
      }),
    );
    expect(() => transport.register({ ...region, kind: 'cuda', native: {} })).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID' }),
    );
    await transport.close();
  });
});

test('an exporter serves until it is closed, also when nobody holds it any more', async () => {
  const opened = (): {
    readonly grant: JsonObject;
    readonly region: Region;
    readonly exporter: WeakRef<HostTransport>;
  } => {
    const region = allocateHostRegion({ bytes: 4096 });
    const transport = new HostTransport({ handshakeMs: patientMs });
    transport.register(region);
    return { grant: transport.grant(), region, exporter: new WeakRef(transport) };
  };
  const { grant, region, exporter } = opened();
  await collectGarbage();
  const { importer } = await twoEnds(4096);
  const peer = await settled(importer.connect(grant));
  const whole = blockProgram(Int32Array.of(0), Int32Array.of(0), 4096);
  expect((await ended(importer.begin(requestOf(whole), peer))).poll()).toBe('done');
  peer.close();
  await exporter.deref()?.close();
  region.close();
});

describe('closing', () => {
  test('field report 32: is refused while a transfer is under way, and waits for a cancelled one', async () => {
    const bytes = 64 << 20;
    const { importer, peer } = await twoEnds(bytes);
    const handle = importer.begin(requestOf(blockProgram(Int32Array.of(0), Int32Array.of(0), bytes)), peer);
    await expect(importer.close()).rejects.toMatchObject({ code: 'MEMORY_IN_DOUBT', targetSafe: false });
    expect(handle.poll()).toBe('active');
    handle.cancel();
    await importer.close();
    expect(handle.poll()).toBe('failed-quiet');
    expect(peer.status()).toBe('failed');
  });

  test('is idempotent, and refuses every call afterwards', async () => {
    const { exporter, importer, peer, source, target } = await twoEnds(4096);
    await ended(importer.begin(requestOf(blockProgram(Int32Array.of(0), Int32Array.of(0), 4096)), peer));
    expect(importer.close()).toBe(importer.close());
    await importer.close();
    await exporter.close();
    source.close();
    target.close();
    const closed = expect.objectContaining({ code: 'CLOSED' });
    expect(() => importer.register(target)).toThrow(closed);
    expect(() => importer.grant()).toThrow(closed);
    expect(() => importer.connect({})).toThrow(closed);
    expect(() => importer.begin({ programs: [], generations: null, tag: '' }, peer)).toThrow(closed);
  });
});
