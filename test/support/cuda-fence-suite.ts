/**
 * Order with the host engine's stream: work that is still under way on it shows in what is read and written, unless its
 * fence is waited for. Each promise has its counterpart without the fence, which shows that the fence is what keeps it.
 */
import { cudaStreamFence } from '../../lib/memory/cuda-fence.js';
import { allocateCudaRegion, type CudaRegion } from '../../lib/memory/cuda-region.js';
import { addon } from '../../lib/native/addon.js';
import { cudaDriverPath } from '../../lib/memory/cuda-driver-path.js';
import { CudaIpcTransport } from '../../lib/transfer/transports/cuda-ipc.js';
import type { Peer } from '../../lib/transfer/transport.js';
import { blockProgram, ended, requestOf, settled, waitFor } from './host-fixture.js';

const bytes = 1 << 20;
const one = Int32Array.of(0);

interface World {
  readonly source: CudaRegion;
  readonly target: CudaRegion;
  readonly importer: CudaIpcTransport;
  readonly peer: Peer;
  readonly close: () => Promise<void>;
}

export function cudaFenceSuite(gpus: { readonly source: number; readonly target: number }): void {
  const open = async (): Promise<World> => {
    const source = allocateCudaRegion({ bytes, device: gpus.source });
    const target = allocateCudaRegion({ bytes, device: gpus.target });
    const exporter = new CudaIpcTransport();
    const importer = new CudaIpcTransport();
    exporter.register(source);
    importer.register(target);
    const peer = await settled(importer.connect(exporter.grant()));
    expect(peer.error).toBeNull();
    const close = async (): Promise<void> => {
      await importer.close();
      await exporter.close();
      source.close();
      target.close();
    };
    return { source, target, importer, peer, close };
  };
  const pull = async ({ importer, peer }: World): Promise<void> => {
    const handle = importer.begin(requestOf(blockProgram(one, one, bytes)), peer);
    await ended(handle);
    expect({ status: handle.poll(), error: handle.error }).toEqual({ status: 'done', error: null });
    importer.takeChanged();
  };
  const valuesOf = (region: CudaRegion): number[] => {
    const content = new Uint8Array(bytes);
    region.read(0, content);
    return [...new Set(content)];
  };

  test('a source that the engine still writes is read too early without its fence, and right after it', async () => {
    const world = await open();
    const stream = addon().debugCudaStreamOpen(cudaDriverPath(), gpus.source);
    addon().debugCudaStreamHold(stream);
    addon().debugCudaStreamFill(stream, world.source.native as object, 0, bytes, 7);
    const ready = cudaStreamFence({ device: gpus.source, stream: addon().debugCudaStreamAddress(stream) });
    await pull(world);
    expect(valuesOf(world.target)).toEqual([0]);
    expect(ready.isComplete()).toBe(false);
    addon().debugCudaStreamRelease(stream);
    await waitFor('the engine to write', () => ready.isComplete());
    await pull(world);
    expect(valuesOf(world.target)).toEqual([7]);
    await world.close();
  });

  test('earlier work of the engine overwrites a target that did not wait for it, and not one that did', async () => {
    const world = await open();
    const stream = addon().debugCudaStreamOpen(cudaDriverPath(), gpus.target);
    const busy = (): ReturnType<typeof cudaStreamFence> => {
      addon().debugCudaStreamHold(stream);
      addon().debugCudaStreamFill(stream, world.target.native as object, 0, bytes, 9);
      return cudaStreamFence({ device: gpus.target, stream: addon().debugCudaStreamAddress(stream) });
    };
    world.source.write(0, new Uint8Array(bytes).fill(5));
    const ignored = busy();
    await pull(world);
    expect(valuesOf(world.target)).toEqual([5]);
    addon().debugCudaStreamRelease(stream);
    await waitFor('the engine to write', () => ignored.isComplete());
    expect(valuesOf(world.target)).toEqual([9]);

    const quiescent = busy();
    expect(quiescent.isComplete()).toBe(false);
    addon().debugCudaStreamRelease(stream);
    await waitFor('the engine to write', () => quiescent.isComplete());
    await pull(world);
    expect(valuesOf(world.target)).toEqual([5]);
    await world.close();
  });

  test('a region that a transport shows to peers does not close', async () => {
    const world = await open();
    expect(() => world.source.close()).toThrow(expect.objectContaining({ code: 'MEMORY_IN_DOUBT' }));
    await world.close();
    expect(() => world.source.read(0, new Uint8Array(1))).toThrow(expect.objectContaining({ code: 'CLOSED' }));
  });
}
