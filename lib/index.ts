/** Everything a host engine, a router or an operator's tool imports. Named exports only. */
export { HandoffError, isHandoffError, type HandoffErrorCode, type HandoffPhase } from './errors.js';
export type {
  EngineContext,
  Fence,
  Finished,
  KvBuffers,
  PrefilledRequest,
  RequestId,
  SamplingParams,
  SsmBuffers,
} from './engine-context.js';
export type { BlockAllocator, SlotAllocator } from './memory/allocators.js';
export type { Axis, AxisName, BufferGeometry } from './memory/axes-geometry.js';
export type { KvLayout } from './memory/kv-layout.js';
export type { SsmDims, SsmLayout } from './memory/ssm-layout.js';
export type { Region } from './memory/region.js';
export { computeBlockHashes } from './memory/block-hash.js';
export { BlockPool } from './memory/block-pool.js';
export { Generations } from './memory/generations.js';
export { allocateHostRegion } from './memory/host-region.js';
export { SsmSlotPool } from './memory/ssm-slot-pool.js';
