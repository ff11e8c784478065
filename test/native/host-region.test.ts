/**
 * Promises of host regions: the engine's bytes are the memfd's bytes; a region closes once and for good, but never under
 * a transfer; no view outlives the memory and no memory outlives its last user.
 */
import { constants } from 'node:buffer';
import { readFileSync } from 'node:fs';
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import { addon } from '../../lib/native/addon.js';
import { HostTransport } from '../../lib/transfer/transports/host.js';
import { blockProgram, collectGarbage, ended, requestOf } from '../support/host-fixture.js';

/** Mappings of this process whose memfd has this name. */
function mapped(name: string): number {
  return readFileSync('/proc/self/maps', 'utf8').split(`/memfd:${name} `).length - 1;
}

test('gives zeroed bytes that are the memory itself', () => {
  const region = allocateHostRegion({ bytes: 10_000, name: 'zeroed' });
  expect(region).toMatchObject({ kind: 'host', byteLength: 10_000 });
  const bytes = new Uint8Array(region.buffer as ArrayBuffer);
  expect(bytes).toHaveLength(10_000);
  expect(bytes.every((byte) => byte === 0)).toBe(true);
  bytes[9_999] = 7;
  expect(new Uint8Array(addon().regionBuffer(region.native as object))[9_999]).toBe(7);
  expect(mapped('zeroed')).toBe(1);
  region.close();
});

test('closing detaches every view, unmaps the memory, and may be repeated', () => {
  const region = allocateHostRegion({ bytes: 4096, name: 'closing' });
  const view = new Float32Array(region.buffer as ArrayBuffer, 16, 4);
  region.close();
  expect(view.length).toBe(0);
  expect(region.buffer?.byteLength).toBe(0);
  expect(mapped('closing')).toBe(0);
  region.close();
  expect(() => addon().regionBuffer(region.native as object)).toThrow(expect.objectContaining({ code: 'CLOSED' }));
});

test('a buffer that is held keeps the memory, and nothing else does', async () => {
  const held = await (async () => {
    const buffer = allocateHostRegion({ bytes: 4096, name: 'held' }).buffer as ArrayBuffer;
    new Uint8Array(buffer)[0] = 42;
    await collectGarbage();
    expect(new Uint8Array(buffer)[0]).toBe(42);
    expect(mapped('held')).toBe(1);
    return new WeakRef(buffer);
  })();
  for (let round = 0; round < 20 && mapped('held') > 0; round += 1) await collectGarbage();
  expect(held.deref()).toBeUndefined();
  expect(mapped('held')).toBe(0);
});

test('field report 28: is refused to close while a transfer may touch it, until that has ended', async () => {
  const bytes = 64 << 20;
  const [source, target] = [allocateHostRegion({ bytes }), allocateHostRegion({ bytes })];
  const transport = new HostTransport();
  transport.register(source);
  transport.register(target);
  const peer = transport.connect(transport.grant());
  const program = blockProgram(Int32Array.of(0), Int32Array.of(0), bytes);
  const handle = transport.begin(
    requestOf({ ...program, rectangles: program.rectangles.map((each) => ({ ...each, targetRegion: 1 })) }),
    peer,
  );
  expect(() => target.close()).toThrow(expect.objectContaining({ code: 'MEMORY_IN_DOUBT', targetSafe: false }));
  handle.cancel();
  await ended(handle);
  target.close();
  expect(() =>
    transport.begin(requestOf({ ...program, rectangles: [{ ...program.rectangles[0]!, targetRegion: 1 }] }), peer),
  ).toThrow(
    expect.objectContaining({ code: 'CLOSED', message: 'regions[1]: expected an open region, got a closed one' }),
  );
  expect(() => transport.register(target)).toThrow(expect.objectContaining({ code: 'CLOSED' }));
  await transport.close();
  source.close();
});

test.each([
  [{ bytes: 0 }, `bytes: expected an integer from 1 to ${constants.MAX_LENGTH}, got 0`],
  [{ bytes: 1.5 }, `bytes: expected an integer from 1 to ${constants.MAX_LENGTH}, got 1.5`],
  [{ bytes: '4096' as never }, `bytes: expected an integer from 1 to ${constants.MAX_LENGTH}, got "4096"`],
  [
    { bytes: constants.MAX_LENGTH + 1 },
    `bytes: expected an integer from 1 to ${constants.MAX_LENGTH}, got ${constants.MAX_LENGTH + 1}`,
  ],
  [{ bytes: 1, name: 'a\0b' }, 'name: expected text of at most 200 bytes without NUL, got "a\\u0000b"'],
  [
    { bytes: 1, name: 'é'.repeat(101) },
    `name: expected text of at most 200 bytes without NUL, got "${'é'.repeat(64)}"…`,
  ],
])('refuses %j', (options, message) => {
  expect(() => allocateHostRegion(options)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID', message }));
});

test('says what the system said when there is no such memory', () => {
  const huge = 2 ** 52;
  expect(() => addon().regionAllocate(huge, 'huge')).toThrow(
    expect.objectContaining({
      code: 'NATIVE_SYSTEM',
      message: expect.stringContaining(`of ${huge} bytes of host memory failed because`),
    }),
  );
});

test('no thread takes the memory over: a message copies the buffer or is refused', () => {
  const region = allocateHostRegion({ bytes: 4096, name: 'message' });
  const buffer = region.buffer as ArrayBuffer;
  let copy: ArrayBuffer | null = null;
  try {
    copy = structuredClone(buffer, { transfer: [buffer] });
  } catch (error) {
    expect((error as Error).name).toBe('DataCloneError');
  }
  expect(buffer.byteLength).toBe(4096);
  if (copy !== null) new Uint8Array(copy)[0] = 1;
  expect(new Uint8Array(buffer)[0]).toBe(0);
  region.close();
  expect(mapped('message')).toBe(0);
});

test('a buffer that was moved inside this thread keeps its memory past the close', () => {
  const region = allocateHostRegion({ bytes: 4096, name: 'moved' });
  const buffer = region.buffer as ArrayBuffer & { transfer?: () => ArrayBuffer };
  // ArrayBuffer.prototype.transfer came with Node 22; before it nothing can move the buffer.
  const moved = buffer.transfer?.();
  region.close();
  if (moved !== undefined) new Uint8Array(moved)[0] = 1;
  expect(mapped('moved')).toBe(moved === undefined ? 0 : 1);
});
