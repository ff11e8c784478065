/**
 * Engine memory in GPU memory, for an engine that computes on the host: the model works on a mirror, and what it changed
 * is copied. Slow and plain on purpose: the bytes that are handed over are those of the GPU, and nothing else is.
 *
 * Only words that the engine itself changed go to the GPU, so a transfer into other blocks is never overwritten.
 */
import { allocateCudaRegion, BlockPool, computeBlockHashes, Generations, SsmSlotPool } from 'state-handoff';
import type { CudaRegion, Region } from 'state-handoff';
import { Engine, type EngineOptions } from './engine.js';
import { EngineMemory } from './engine-memory.js';
import type { NativeMemoryOptions } from './native-memory.js';
import type { Steps } from './peers.js';

/** A GPU region to the SDK, its mirror to the model. */
class MirroredRegion implements Region {
  readonly kind = 'cuda';
  readonly buffer: ArrayBuffer;
  readonly byteLength: number;
  readonly native: object | null;
  private readonly words: Uint32Array;
  /** What the GPU held when it was last looked at. */
  private readonly known: Uint32Array;

  constructor(private readonly device: CudaRegion) {
    this.byteLength = device.byteLength;
    this.native = device.native;
    this.buffer = new ArrayBuffer(device.byteLength);
    this.words = new Uint32Array(this.buffer);
    this.known = new Uint32Array(this.words.length);
  }

  /** The engine's changes to the GPU, then all of the GPU to the mirror. Waits for both. */
  sync(): void {
    const { words, known } = this;
    for (let at = 0; at < words.length; at += 1) {
      if (words[at] === known[at]) continue;
      let end = at + 1;
      while (end < words.length && words[end] !== known[end]) end += 1;
      this.device.write(at * 4, new Uint8Array(this.buffer, at * 4, (end - at) * 4));
      at = end;
    }
    this.device.read(0, new Uint8Array(this.buffer));
    known.set(words);
  }

  close(): void {
    this.device.close();
  }
}

/** Engine memory whose regions lie on a GPU. */
export interface CudaEngineMemory {
  readonly memory: EngineMemory;
  /** Before and after the model computes. */
  sync(): void;
}

/** @throws `ARGUMENT_INVALID`, `TRANSPORT_UNAVAILABLE` without a GPU, `NATIVE_SYSTEM` */
export function cudaMemory(options: NativeMemoryOptions & { readonly device?: number }): CudaEngineMemory {
  const { poolSize, maxRequests, model, device = 0 } = options;
  const regions: MirroredRegion[] = [];
  const slots = model.ssm === null ? null : new SsmSlotPool({ maxRequests, generations: new Generations(maxRequests) });
  const memory = new EngineMemory({
    ...options,
    blocks: new BlockPool({ poolSize, generations: new Generations(poolSize) }),
    slots,
    allocateRegion: (bytes) => {
      const region = new MirroredRegion(allocateCudaRegion({ bytes, device }));
      regions.push(region);
      return region;
    },
    hashBlocks: (tokens, blockSize, salt) => computeBlockHashes(tokens, blockSize, { salt }),
  });
  return { memory, sync: () => regions.forEach((region) => region.sync()) };
}

/** The reference engine over GPU memory, one rank of it. */
export class CudaEngine extends Engine {
  constructor(
    options: Omit<EngineOptions, 'memory'>,
    private readonly mirrored: CudaEngineMemory,
  ) {
    super({ ...options, memory: mirrored.memory });
  }

  override *stepping(accompanies = false): Steps<number> {
    this.mirrored.sync();
    const tokens = yield* super.stepping(accompanies);
    this.mirrored.sync();
    return tokens;
  }
}
