/** Engine memory from the SDK's own parts: shareable host regions, its block pool and slot pool, and its hashes. */
import { allocateHostRegion, BlockPool, computeBlockHashes, Generations, SsmSlotPool } from 'state-handoff';
import { EngineMemory, type EngineMemoryOptions } from './engine-memory.js';

type Layout = Pick<EngineMemoryOptions, 'slice' | 'kvAxes' | 'convAxes' | 'recurrentAxes' | 'bufferPerLayer'>;

export interface NativeMemoryOptions extends Layout {
  readonly model: EngineMemoryOptions['model'];
  readonly blockSize: number;
  /** Blocks including the dummy block. */
  readonly poolSize: number;
  /** Live slots of a hybrid model. */
  readonly maxRequests: number;
  /** One more slot in memory, for steps that only accompany other instances. Default false. */
  readonly dummySlot?: boolean;
}

/** @throws `ARGUMENT_INVALID`, `NATIVE_SYSTEM`, `NATIVE_UNAVAILABLE` */
export function nativeMemory(options: NativeMemoryOptions): EngineMemory {
  const { poolSize, maxRequests, model, dummySlot = false } = options;
  const slots =
    model.ssm === null ? null : new SsmSlotPool({ maxRequests, dummySlot, generations: new Generations(maxRequests) });
  return new EngineMemory({
    ...options,
    blocks: new BlockPool({ poolSize, generations: new Generations(poolSize) }),
    slots,
    ...(slots === null ? {} : { physicalSlots: slots.physicalSlots }),
    allocateRegion: (bytes, name) => allocateHostRegion({ bytes, name }),
    hashBlocks: (tokens, blockSize, salt) => computeBlockHashes(tokens, blockSize, { salt }),
  });
}
