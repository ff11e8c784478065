/** Everything a host engine, a router or an operator's tool imports. Named exports only. */
export { StateHandoff } from './state-handoff.js';
export type { AddOptions } from './calls/decode-calls.js';
export type { SetupOptions } from './calls/setup-calls.js';
export { errorCodes, HandoffError, isHandoffError } from './errors.js';
export type { HandoffErrorCode, HandoffErrorInit, HandoffPhase } from './errors.js';
export type { HandoffRef, ImportNotice, StateHandoffEvents } from './events.js';
export type { DeadlineOptions, LimitOptions, StateHandoffOptions } from './options.js';
export { systemClock, type Clock } from './clock.js';
export type {
  EngineContext,
  Fence,
  Finished,
  KvBuffers,
  PrefillContext,
  PrefilledRequest,
  RequestId,
  SamplingParams,
  SsmBuffers,
} from './engine-context.js';
export type { JsonObject, JsonValue, WireObject, WireValue } from './json.js';

export type { BlockAllocator, SlotAllocator } from './memory/allocators.js';
export { rowMajorBuffer } from './memory/axes-geometry.js';
export type { Axis, AxisName, BufferGeometry, RowMajorInput } from './memory/axes-geometry.js';
export {
  computeBlockHashes,
  computeBlockHashesAsync,
  parentHashes,
  type BlockHashOptions,
  type Tokens,
} from './memory/block-hash.js';
export { BlockPool, type BlockPoolOptions, type BlockPoolSnapshot, type EvictionPolicy } from './memory/block-pool.js';
export { Generations } from './memory/generations.js';
export type { NativeGenerations } from './native/memory-types.js';
export { allocateHostRegion, type HostRegionOptions } from './memory/host-region.js';
export type { IndexRange } from './memory/index-range.js';
export { makeKvLayout, type KvLayout, type KvLayoutInput } from './memory/kv-layout.js';
export type { BlockPoolObserver } from './memory/pool-observers.js';
export type { Region } from './memory/region.js';
export { makeSsmLayout } from './memory/ssm-layout.js';
export type { SsmBandName, SsmDims, SsmLayout } from './memory/ssm-layout.js';
export { SsmSlotPool, type SsmSlotPoolOptions, type SsmSlotPoolSnapshot } from './memory/ssm-slot-pool.js';

export type { FinishedPrefill } from './prefill/finished-prefill.js';
export type { PreparedHandoffs } from './prefill/prefill-side.js';
export type { PinState } from './prefill/pin-ledger.js';
export { encodeTicket, decodeTicket } from './ticket-codec.js';
export { disaggregatedParams, ticketFromParams, type KvMeta, type Ticket } from './ticket.js';
export {
  decodeAdmission,
  type AdmissionBlocks,
  type DecodeAdmission,
  type DecodeAdmissionInput,
} from './decode/decode-admission.js';
export type { TicketLimits } from './limits.js';
export { checkCompatible, parseInstanceCard } from './compatibility.js';
export type { Difference, InstanceCard, InstanceRole, KvSignature, SsmSignature } from './compatibility.js';

export {
  InProcessRankGroup,
  type InProcessRankGroupOptions,
  type MessageKind,
} from './control/in-process-rank-group.js';
export type { InstanceFailureCode, LogRecord, RankGroup, RankReport, StepFrame } from './control/rank-group.js';
export { SocketRankGroup, type SocketRankGroupOptions } from './control/socket-rank-group.js';
export type { RankAddress } from './control/ranks/rendezvous.js';

export { loopsMax } from './transfer/copy-program.js';
export type { CopyProgram, Loop, Rectangle, Table } from './transfer/copy-program.js';
export type { DescriptorList, DescriptorOrder } from './transfer/program-descriptors.js';
export { planInstances, type RankExchange } from './transfer/peer-instances.js';
export type { Balance } from './transfer/peer-pairing.js';
export type { RectangleLabel } from './transfer/program-label.js';
export {
  describeProgram,
  lowerToDescriptors,
  planKv,
  planKvReshard,
  planSsm,
  planSsmReshard,
  programBytes,
  rectangleBetween,
} from './transfer/checked-planning.js';
export type { KvEndpoint, KvTransfer } from './transfer/plan-kv.js';
export type { SsmEndpoint, SsmTransfer } from './transfer/plan-ssm.js';
export type { AxisRange, RectangleOptions, RectangleTemplate } from './transfer/rectangle.js';
export {
  allocateCudaRegion,
  importCudaRegion,
  type CudaMemoryDescription,
  type CudaRegion,
  type CudaRegionOptions,
} from './memory/cuda-region.js';
export { cudaStreamFence, type EngineStream } from './memory/cuda-fence.js';
export { describeCuda } from './memory/cuda-driver-path.js';
export type { NativeNixlCounters } from './native/nixl-types.js';
export type { NativeCudaDescription } from './native/cuda-types.js';
export { CudaIpcTransport, type CudaIpcTransportOptions } from './transfer/transports/cuda-ipc.js';
export { orderTransports, selectTransport } from './transfer/transport-registry.js';
export type {
  Grants,
  NativeCounted,
  TransportEntry,
  TransportSetting,
  TransportTable,
} from './transfer/transport-registry.js';
export { shippedTransports } from './transfer/transports/shipped.js';
export { checkProgram, type CheckOptions, type WantedRange } from './transfer/check-program.js';
export type {
  MemoryKind,
  Peer,
  PeerStatus,
  SourceGenerations,
  Transport,
  TransportCapabilities,
  TransportGrant,
  TransferHandle,
  TransferRequest,
  TransferStatus,
} from './transfer/transport.js';
export type { Backend } from './setup/build-transports.js';
export type { Role } from './setup/check-context.js';
export { NcclTransport, type NcclTransportOptions } from './transfer/transports/nccl.js';
export { NixlTransport, type NixlTransportOptions } from './transfer/transports/nixl.js';
export { HostTransport, type HostGenerations, type HostTransportOptions } from './transfer/transports/host.js';

export type { ImportView, ImportViewState, Inspection, Load, PinView } from './observe/inspection.js';
export type { HistogramSnapshot, MetricsSnapshot } from './observe/metrics.js';

export {
  parseInferenceShards,
  requireDisaggregated,
  shardInstances,
  shardObject,
  type InferenceShard,
  type InferenceShardObject,
  type InferenceShards,
  type ShardInstance,
  type ShardRole,
} from './topology/inference-shards.js';
