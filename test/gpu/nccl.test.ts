/** The NCCL transport on real GPUs with NCCL itself: one GPU, or two with `STATE_HANDOFF_GPUS=0,1`. */
import { allocateCudaRegion, type CudaRegion } from '../../lib/memory/cuda-region.js';
import type { JsonObject } from '../../lib/json.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import { NcclTransport, type NcclTransportOptions } from '../../lib/transfer/transports/nccl.js';
import type { Peer, TransferHandle } from '../../lib/transfer/transport.js';
import { startChild, type Child } from '../support/child-process.js';
import { gpuMissing, ncclMissing, testGpus } from '../support/gpu-missing.js';
import { blockProgram, requestOf } from '../support/host-fixture.js';
import { hostOfItsOwn } from '../support/nccl-host.js';
import { describeOptional } from '../support/optional.js';
import { eachFragment } from '../support/program-oracle.js';

const bytes = 64 << 20;
const blockBytes = 1 << 18;
const filler = 0xee;

const whole = (): CopyProgram => {
  const ids = Int32Array.from({ length: bytes / blockBytes }, (_, i) => (i * 37 + 5) % (bytes / blockBytes));
  return blockProgram(ids, ids.slice().reverse(), blockBytes);
};

/** Every second slice of each block. */
function sliced(sliceBytes: number): CopyProgram {
  const { rectangles, tables } = whole();
  const loop = { count: blockBytes / sliceBytes / 2, sourceStride: 2 * sliceBytes, targetStride: 2 * sliceBytes };
  return { rectangles: [{ ...rectangles[0]!, fragmentBytes: sliceBytes, loops: [loop] }], tables };
}

/** As the source sees it: it does not know where blocks go over there. */
function asSource({ rectangles, tables }: CopyProgram): CopyProgram {
  return {
    rectangles,
    tables: tables.map((table) => ({ ...table, target: Int32Array.from(table.target, (_, row) => row) })),
  };
}

function expectedBytes(program: CopyProgram, seed: number): Uint8Array {
  const { imul } = Math;
  const words = new Uint32Array(bytes / 4);
  for (let i = 0; i < words.length; i += 1) words[i] = imul(i + seed, 2654435761);
  const from = new Uint8Array(words.buffer);
  const target = new Uint8Array(bytes).fill(filler);
  eachFragment(program, (_, at, __, to, length) => target.set(from.subarray(at, at + length), to));
  return target;
}

describeOptional('gpu', gpuMissing() ?? ncclMissing(), 'nccl between processes', () => {
  const gpus = testGpus();
  let region: CudaRegion;
  let transport: NcclTransport;
  let peer: Peer;

  beforeAll(() => {
    if (gpus.source === gpus.target) Object.assign(process.env, hostOfItsOwn());
  });

  beforeEach(async () => {
    region = allocateCudaRegion({ bytes, device: gpus.target });
    region.write(0, new Uint8Array(bytes).fill(filler));
    await open({});
  });

  async function open(options: Partial<NcclTransportOptions>): Promise<void> {
    transport = new NcclTransport({ pushes: false, ...options });
    transport.register(region);
    await transport.open();
  }

  afterEach(async () => {
    await transport.close();
    region.close();
  });

  async function source(seed: number, options: Partial<NcclTransportOptions> = {}): Promise<Child> {
    const child = startChild('nccl-end', [], gpus.source === gpus.target ? hostOfItsOwn() : {});
    const grant = await child.ask<JsonObject>('open', { bytes, seed, device: gpus.source, options });
    expect(await child.ask('connect', { grant: transport.grant() })).toBeNull();
    peer = transport.connect(grant);
    return child;
  }

  const push = (child: Child, tag: string, program: CopyProgram): Promise<unknown> =>
    child.ask('push', { tag, programs: [asSource(program)] });

  async function quiet(handle: TransferHandle): Promise<TransferHandle> {
    const until = Date.now() + 60_000;
    while (!['done', 'failed-quiet'].includes(handle.poll())) {
      if (Date.now() > until) throw new Error(`still ${handle.poll()} after a minute`);
      transport.takeChanged();
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    return handle;
  }

  function isAsExpected(program: CopyProgram, seed: number): boolean {
    const now = new Uint8Array(bytes);
    region.read(0, now);
    return Buffer.compare(now, expectedBytes(program, seed)) === 0;
  }

  test.each([true, false])('packed %s: the right bytes come to the right places and no others', async (packed) => {
    if (!packed) {
      await transport.close();
      await open({ packed });
    }
    const child = await source(1, { packed });
    for (const [index, program] of [whole(), sliced(2048), sliced(64)].entries()) {
      region.write(0, new Uint8Array(bytes).fill(filler));
      const tag = `h${index}`;
      const handle = transport.begin({ ...requestOf(program), tag }, peer);
      await push(child, tag, program);
      await quiet(handle);
      expect(handle.error).toBeNull();
      expect(await child.ask('ended', { tag })).toMatchObject({ status: 'done', bytes: handle.bytesDone });
      expect(isAsExpected(program, 1)).toBe(true);
    }
  });

  test('a cancelled push is quiet on both sides, and the next one has a communicator that works', async () => {
    const child = await source(2);
    const handle = transport.begin({ ...requestOf(whole()), tag: 'cancelled' }, peer);
    await push(child, 'cancelled', whole());
    handle.cancel();
    await quiet(handle);
    expect(['done', 'failed-quiet']).toContain(
      (await child.ask<{ status: string }>('ended', { tag: 'cancelled' })).status,
    );
    if ((await child.ask('peer')) === 'failed') {
      expect(await child.ask('connect', { grant: transport.grant() })).toBeNull();
    }
    region.write(0, new Uint8Array(bytes).fill(filler));
    const again = transport.begin({ ...requestOf(whole()), tag: 'again' }, peer);
    await push(child, 'again', whole());
    expect((await quiet(again)).error).toBeNull();
    expect(isAsExpected(whole(), 2)).toBe(true);
  });

  test('a source that is killed costs its pair and nothing else', async () => {
    const child = await source(3);
    const cut = transport.begin({ ...requestOf(whole()), tag: 'cut' }, peer);
    const never = transport.begin({ ...requestOf(whole()), tag: 'never announced' }, peer);
    await push(child, 'cut', whole());
    await child.kill();
    await quiet(cut);
    // It may have come through before the kill.
    expect([undefined, 'PEER_LOST']).toContain(cut.error?.code);
    await quiet(never);
    expect(never.error?.code).toBe('PEER_LOST');
    region.write(0, new Uint8Array(bytes).fill(filler));
    const other = await source(4);
    const handle = transport.begin({ ...requestOf(sliced(4096)), tag: 'other' }, peer);
    await push(other, 'other', sliced(4096));
    expect((await quiet(handle)).error).toBeNull();
    expect(isAsExpected(sliced(4096), 4)).toBe(true);
  });
});
