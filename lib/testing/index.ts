/**
 * `state-handoff/testing`: what this library is tested with, for tests of engines and control planes built on it.
 *
 * A simulated world needs no addon, no process and no waiting: transports in plain JavaScript whose every fault is
 * scripted, a clock that moves when told, allocators in the open, and checks of the library's invariants.
 */
export {
  InProcessRankGroup,
  type InProcessRankGroupOptions,
  type MessageKind,
} from '../control/in-process-rank-group.js';
export { PlainRegion } from '../memory/plain-region.js';
export { expandMoves, joinMoves, movedBytes, type Moves } from './copy-moves.js';
export {
  checkEqualRanks,
  checkHashOwners,
  checkInvariants,
  checkOrder,
  checkOwnership,
  SettlementLedger,
  type Holding,
  type InvariantName,
  type ObservedImport,
  type ObservedRank,
  type Violation,
} from './invariants.js';
export { modelBlockHashes } from './model-block-hash.js';
export {
  ModelBlockPool,
  type EvictionPolicy,
  type ModelBlockPoolOptions,
  type ModelBlockPoolState,
  type ModelPoolObserver,
} from './model-block-pool.js';
export {
  ModelSlotPool,
  type ModelSlotObserver,
  type ModelSlotPoolOptions,
  type ModelSlotPoolState,
} from './model-slot-pool.js';
export { OwnershipLedger, type WatchedRank } from './ownership-ledger.js';
export { Recorder, type RecordedEmitter, type RecordedEvent } from './recorder.js';
export { ScriptedNetwork, type TransferMatch } from './scripted-network.js';
export { ScriptedHandle, ScriptedTransfer, type TransferSide } from './scripted-transfer.js';
export { ScriptedTransport, type ScriptedTransportOptions } from './scripted-transport.js';
export { SeededRandom } from './seeded-random.js';
export { SimulatedClock, type SimulatedTimer } from './simulated-clock.js';
export { TestBatch, tokenAt, type EngineEnd, type RunningRequest } from './test-batch.js';
export { TestEngine, type PrefillRun, type TestEngineOptions } from './test-engine.js';
export {
  kvAxesDefault,
  promptMarks,
  rankPositions,
  smallShape,
  TestMemory,
  wholeModel,
  type KvAxisName,
  type StageEnds,
  type TestModelShape,
  type TestRankPosition,
} from './test-memory.js';
export {
  faults,
  seededScript,
  smoothConnect,
  smoothTransfer,
  type ConnectPlan,
  type FaultRates,
  type NetworkScript,
  type PeerDeathPlan,
  type QuietProof,
  type TransferFault,
  type TransferPlan,
} from './transfer-script.js';

// Types of the package that the test kit's own signatures speak of.
export type { Clock } from '../clock.js';
export type { InstanceFailureCode, LogRecord, RankGroup, RankReport, StepFrame } from '../control/rank-group.js';
export type {
  EngineContext,
  Fence,
  KvBuffers,
  PrefillContext,
  PrefilledRequest,
  RequestId,
  SamplingParams,
  SsmBuffers,
} from '../engine-context.js';
export {
  errorCodes,
  type HandoffError,
  type HandoffErrorCode,
  type HandoffErrorInit,
  type HandoffPhase,
} from '../errors.js';
export type { JsonValue } from '../json.js';
export type { BlockAllocator, SlotAllocator } from '../memory/allocators.js';
export type { Axis, AxisName, BufferGeometry } from '../memory/axes-geometry.js';
export type { Region } from '../memory/region.js';
export type { KvLayout } from '../memory/kv-layout.js';
export type { SsmDims, SsmLayout } from '../memory/ssm-layout.js';
export type { CopyProgram, Loop, Rectangle, Table } from '../transfer/copy-program.js';
export type { RectangleLabel } from '../transfer/program-label.js';
export type { IndexRange } from '../memory/index-range.js';
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
} from '../transfer/transport.js';
