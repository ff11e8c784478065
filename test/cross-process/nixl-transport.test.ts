/**
 * Promises of the NIXL transport between real processes over host memory: what is pulled is right; whichever side is
 * killed or stopped, and whenever, no transfer is called quiet while bytes of it may still come, and every one is in the
 * end.
 */
import type { JsonObject } from '../../lib/json.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import type { NixlTransport } from '../../lib/transfer/transports/nixl.js';
import type { Peer, TransferHandle } from '../../lib/transfer/transport.js';
import { startChild } from '../support/child-process.js';
import { blockProgram, requestOf, settled, waitFor } from '../support/host-fixture.js';
import {
  exporterOf,
  importerOf,
  isFilledFrom,
  nixlMissing,
  overTcp,
  quiet,
  touched,
  word,
  type Exporter,
} from '../support/nixl-fixture.js';
import { describeOptional } from '../support/optional.js';
import { eachFragment } from '../support/program-oracle.js';

const bytes = 16 << 20;
const blockBytes = 32_768;
const filler = 0xee;

/** All blocks, in an order that leaves no two neighbours together. */
function shuffledBlocks(count = bytes / blockBytes): Int32Array {
  return Int32Array.from({ length: count }, (_, i) => (i * 101 + 7) % count);
}

const everything = requestOf(blockProgram(shuffledBlocks(), shuffledBlocks(), blockBytes));

/** Every second slice of each block, to where the other slices are. */
function sliced(sliceBytes: number): CopyProgram {
  const { rectangles, tables } = blockProgram(shuffledBlocks(), shuffledBlocks().reverse(), blockBytes);
  const loop = { count: blockBytes / sliceBytes / 2, sourceStride: 2 * sliceBytes, targetStride: 2 * sliceBytes };
  const slice = { ...rectangles[0]!, fragmentBytes: sliceBytes, targetOffset: sliceBytes, loops: [loop] };
  return { rectangles: [slice], tables };
}

/** What the program makes of a target filled with `filler`. */
function expectedBytes(program: CopyProgram, seed: number): Uint8Array {
  const source = new Uint8Array(Uint32Array.from({ length: bytes / 4 }, (_, i) => word(seed, i)).buffer);
  const target = new Uint8Array(bytes).fill(filler);
  eachFragment(program, (_, from, __, to, length) => target.set(source.subarray(from, from + length), to));
  return target;
}

const fillingOf = (buffer: ArrayBuffer | null): Uint8Array => new Uint8Array(buffer as ArrayBuffer).fill(filler);

describeOptional('nixl', nixlMissing(), 'the NIXL transport', () => {
  test('field report 106: layers of UCX that cannot work are refused with what mends them', async () => {
    const child = startChild('nixl-end', [], { UCX_TLS: 'cma' });
    await expect(child.ask('open', { bytes: 4096, seed: 1 })).rejects.toThrow(
      /makes no UCX backend.*UCX_TLS is cma and must contain tcp, or be left unset/,
    );
  });

  describe.each([
    ['over the fastest way between two processes of a machine', {}],
    ['over sockets', overTcp],
  ])('%s', (_, env) => {
    test('brings the right bytes to the right places and no others, packed and as they lie', async () => {
      const { child, grant } = await exporterOf(bytes, 11, env);
      for (const options of [{ packPatienceMs: 60_000 }, { directBytesMin: 0 }]) {
        const { region, transport } = await importerOf(bytes, options);
        const peer = await settled(transport.connect(grant));
        expect(peer.error).toBeNull();
        for (const program of [
          blockProgram(shuffledBlocks(), shuffledBlocks().reverse(), blockBytes),
          sliced(512),
          sliced(8192),
        ]) {
          const target = fillingOf(region.buffer);
          const handle = await quiet(transport.begin(requestOf(program), peer));
          expect(handle.error).toBeNull();
          expect(Buffer.compare(target, expectedBytes(program, 11))).toBe(0);
          transport.takeChanged();
        }
        expect(transport.counters).toMatchObject({ packRefusals: 0 });
      }
      // The first importer's 512-byte and 8-KiB slices: chunks of 2 MiB.
      expect(await child.ask('counters')).toMatchObject({ packedChunks: 8 });
    });

    test('an exporter that is killed in mid-read costs the connection and nothing else', async () => {
      const { region, transport } = await importerOf(bytes, { requestBytes: 1 << 20 });
      for (let round = 0; round < 4; round += 1) {
        const { child, grant } = await exporterOf(bytes, round, env);
        const peer = await settled(transport.connect(grant));
        fillingOf(region.buffer);
        const handle = transport.begin(everything, peer);
        const enough = (bytes / 4) * round;
        await waitFor('a moment in the read', () => handle.bytesDone >= enough || handle.poll() !== 'active');
        const gone = child.kill();
        await quiet(handle);
        await gone;
        if (handle.poll() === 'done') expect(isFilledFrom(region, round)).toBe(true);
        else expect(handle.error).toMatchObject({ code: 'PEER_LOST', retryable: true });
        // Quiet is quiet.
        fillingOf(region.buffer);
        // A connection whose peer died while it was idle is found out by the next transfer.
        const late = await quiet(transport.begin(everything, peer));
        expect(late.error?.code).toBe('PEER_LOST');
        expect(peer.status()).toBe('failed');
        const again = await settled(transport.connect(grant));
        const never = await quiet(transport.begin(everything, again));
        expect(never.poll()).toBe('failed-quiet');
        expect(touched(region, filler)).toBe(0);
        transport.takeChanged();
        peer.close();
        again.close();
      }
      await waitFor('agents to be gone', () => transport.counters.links === 0 && transport.counters.agents === 0);
    });
  });

  describe('an exporter that is stopped', () => {
    const stopped = async (seed: number): Promise<Exporter & { readonly goOn: () => void }> => {
      const exporter = await exporterOf(bytes, seed, overTcp);
      return { ...exporter, goOn: () => void exporter.child.process.kill('SIGCONT') };
    };

    test('leaves a cancelled pull in doubt until its last read has come, which it does; the region stays', async () => {
      const { child, grant, goOn } = await stopped(21);
      const { region, transport } = await importerOf(bytes);
      const peer = await settled(transport.connect(grant));
      fillingOf(region.buffer);
      child.process.kill('SIGSTOP');
      const handle = await beginStuck(transport, peer);
      handle.cancel();
      await waitFor('the failure', () => handle.poll() !== 'active');
      expect(handle.poll()).toBe('failed-active');
      expect(handle.error?.code).toBe('TRANSFER_CANCELLED');
      expect(touched(region, filler)).toBe(0);
      expect(() => region.close()).toThrow(expect.objectContaining({ code: 'MEMORY_IN_DOUBT' }));
      // Asking again changes nothing, and neither does time.
      handle.cancel();
      await new Promise((resolve) => setTimeout(resolve, 100));
      expect(handle.poll()).toBe('failed-active');
      expect(transport.takeChanged()).toContain(handle);
      goOn();
      await quiet(handle);
      // Cancelled, released, and written all the same: this is what the doubt was for.
      expect(handle.bytesDone).toBeGreaterThan(0);
      expect(touched(region, filler)).toBeGreaterThan(0);
      expect(transport.takeChanged()).toContain(handle);
      const now = touched(region, filler);
      await new Promise((resolve) => setTimeout(resolve, 100));
      expect(touched(region, filler)).toBe(now);
      // The connection is as good as before.
      fillingOf(region.buffer);
      await quiet(transport.begin(everything, peer));
      expect(isFilledFrom(region, 21)).toBe(true);
    });

    test('past its own deadline a pull has failed, and its memory comes back with the last read and not before', async () => {
      const { child, grant, goOn } = await stopped(22);
      const { region, transport } = await importerOf(bytes, { deadlineMs: 50 });
      const peer = await settled(transport.connect(grant));
      fillingOf(region.buffer);
      child.process.kill('SIGSTOP');
      const handle = await beginStuck(transport, peer);
      await waitFor('the deadline', () => handle.poll() !== 'active');
      expect(handle.poll()).toBe('failed-active');
      expect(handle.error?.code).toBe('TRANSFER_DEADLINE');
      await new Promise((resolve) => setTimeout(resolve, 200));
      expect(handle.poll()).toBe('failed-active');
      goOn();
      await quiet(handle);
      expect(touched(region, filler)).toBeGreaterThan(0);
    });

    test.each<[string, { stopAfterMs?: number; readThreads?: number }]>([
      ['whose death is attested, one reader,', { readThreads: 1 }],
      ['when the connection may be ended after a failure, one reader,', { stopAfterMs: 50, readThreads: 1 }],
      ['whose death is attested', {}],
      ['when the connection may be ended after a failure', { stopAfterMs: 50 }],
    ])('%s, gives the memory back with the end of the connection', async (_, options) => {
      const { child, grant } = await stopped(23);
      const { region, transport } = await importerOf(bytes, options);
      const peer = await settled(transport.connect(grant));
      fillingOf(region.buffer);
      child.process.kill('SIGSTOP');
      const handle = await beginStuck(transport, peer);
      handle.cancel();
      if (options.stopAfterMs === undefined) handle.peerAttestedDead();
      await quiet(handle);
      // Not before: the agent that could still write is gone.
      if (options.readThreads === 1) expect(transport.counters.agents).toBe(0);
      expect(handle.poll()).toBe('failed-quiet');
      expect(peer.status()).toBe('failed');
      // A reader that had posted nothing when the transfer failed could not write; its agent goes with the connection.
      await waitFor('all agents to go', () => transport.counters.agents === 0);
      // What was attested comes true, and nothing of it ever lands.
      await child.kill();
      expect(touched(region, filler)).toBe(0);
      region.close();
    });
  });

  test('a cancel under way lets what was posted come and starts nothing more', async () => {
    const { grant } = await exporterOf(bytes, 31, overTcp);
    const { region, transport } = await importerOf(bytes, { requestBytes: 256 << 10 });
    const peer = await settled(transport.connect(grant));
    let cut = 0;
    for (let round = 0; round < 10; round += 1) {
      fillingOf(region.buffer);
      const handle = transport.begin(everything, peer);
      await waitFor('a part', () => handle.bytesDone >= round * (1 << 20) || handle.poll() !== 'active');
      handle.cancel();
      await quiet(handle);
      if (handle.poll() === 'done') continue;
      cut += 1;
      expect(handle.error?.code).toBe('TRANSFER_CANCELLED');
      expect(handle.bytesDone).toBeLessThan(bytes);
      expect(touched(region, filler)).toBeLessThanOrEqual(handle.bytesDone);
    }
    expect(cut).toBeGreaterThan(0);
    fillingOf(region.buffer);
    await quiet(transport.begin(everything, peer));
    expect(isFilledFrom(region, 31)).toBe(true);
  });

  test('an importer that is killed in mid-read, many times, leaves the exporter as it was', async () => {
    const { child, grant } = await exporterOf(bytes, 41);
    for (let round = 0; round < 3; round += 1) {
      const importer = startChild('nixl-end');
      await importer.ask('open', { bytes, seed: null, options: { exports: false } });
      // Slices, so that slots of the exporter's staging are lost with it.
      await importer.ask('pullForEver', { grant, blockBytes: 1024 });
      await new Promise((resolve) => setTimeout(resolve, 200));
      await importer.kill();
    }
    const { region, transport } = await importerOf(bytes);
    const peer = await settled(transport.connect(grant));
    const program = sliced(512);
    const target = fillingOf(region.buffer);
    await quiet(transport.begin(requestOf(program), peer));
    expect(Buffer.compare(target, expectedBytes(program, 41))).toBe(0);
    expect(child.process.exitCode).toBeNull();
  });

  test('lists of a peer that came anew are made anew: old connections fail and none is mixed up', async () => {
    const child = startChild('nixl-end');
    const { region, transport } = await importerOf(bytes);
    const old: ReturnType<typeof transport.connect>[] = [];
    for (let round = 0; round < 5; round += 1) {
      const grant = await child.ask<JsonObject>('open', { bytes, seed: 50 + round });
      const peer = await settled(transport.connect(grant));
      await quiet(transport.begin(everything, peer));
      expect(isFilledFrom(region, 50 + round)).toBe(true);
      // One for each of the two readers, whichever blocks were asked for.
      expect(transport.counters.preparedLists).toBe(2);
      await child.ask('close');
      fillingOf(region.buffer);
      old.push(peer);
      // Prepared lists of an old connection point into memory that is gone; they went with it.
      for (const each of old) expect((await quiet(transport.begin(everything, each))).poll()).toBe('failed-quiet');
      await waitFor('lists to be gone', () => peer.status() === 'failed' && transport.counters.preparedLists === 0);
      transport.takeChanged();
    }
  });

  test('an exporter that grants staging and never packs is read as it lies', async () => {
    const { grant } = await exporterOf(bytes, 61, {}, { slots: 0 });
    expect(grant['staging']).toBeNull();
    const [{ address } = { address: '' }] = grant['regions'] as readonly JsonObject[];
    const data = { address: address!, kind: 'host', device: 0 };
    const { region, transport } = await importerOf(bytes, { packPatienceMs: 20 });
    const lie = { ...grant, staging: { address: address!, slots: 2, slot_bytes: 65_536, data } };
    const peer = await settled(transport.connect(lie));
    const program = sliced(2048);
    const target = fillingOf(region.buffer);
    const handle = await quiet(transport.begin(requestOf(program), peer));
    expect(handle.error).toBeNull();
    expect(Buffer.compare(target, expectedBytes(program, 61))).toBe(0);
    expect(transport.counters.packRefusals).toBe(1);
  });

  test('with more importers than slots, also in one process, every one gets its own bytes', async () => {
    const { grant } = await exporterOf(bytes, 71, {}, { slots: 1, slotBytes: 65_536 });
    await Promise.all(
      [512, 1024, 2048].map(async (sliceBytes) => {
        const { region, transport } = await importerOf(bytes);
        const peer = await settled(transport.connect(grant));
        const program = sliced(sliceBytes);
        const target = fillingOf(region.buffer);
        const handle = await quiet(transport.begin(requestOf(program), peer));
        expect(handle.error).toBeNull();
        expect(Buffer.compare(target, expectedBytes(program, 71))).toBe(0);
      }),
    );
  });

  test('a grant that promises more than was registered is found out by the read, which touches nothing', async () => {
    const { child, grant } = await exporterOf(65_536, 81);
    const { region, transport } = await importerOf(bytes, { packPatienceMs: 100 });
    const [granted] = grant['regions'] as readonly JsonObject[];
    const peer = await settled(transport.connect({ ...grant, regions: [{ ...granted, bytes: String(bytes) }] }));
    fillingOf(region.buffer);
    const handle = await quiet(transport.begin(everything, peer));
    expect(handle.error?.code).toBe('PEER_REFUSED');
    expect(touched(region, filler)).toBe(0);
    // What it is asked to pack lies outside its memory too: it packs nothing, and lives.
    const packed = await quiet(transport.begin(requestOf(sliced(512)), peer));
    expect(packed.error?.code).toBe('PEER_REFUSED');
    expect(touched(region, filler)).toBe(0);
    expect(await child.ask('counters')).toMatchObject({ packedChunks: 0 });
    const honest = await settled(transport.connect(grant));
    const small = requestOf(blockProgram(Int32Array.of(0, 1), Int32Array.of(1, 0), blockBytes));
    expect((await quiet(transport.begin(small, honest))).error).toBeNull();
    const garbage = await settled(transport.connect({ ...grant, metadata: 'AAAA' }));
    expect(garbage.error?.code).toBe('PEER_UNREACHABLE');
  });
});

/** Begins a pull of everything from a peer that is stopped, and waits until its first reads were posted. */
async function beginStuck(transport: NixlTransport, peer: Peer): Promise<TransferHandle> {
  const { readsPosted } = transport.counters;
  const handle = transport.begin(everything, peer);
  await waitFor('reads to be posted', () => transport.counters.readsPosted > readsPosted);
  return handle;
}
