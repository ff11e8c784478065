/** `state-handoff/coordinator`: the control plane that ships with the package. Needs the package `zeromq`. */
export { Coordinator } from './control/coordinator/coordinator.js';
export type { CoordinatorLimits, CoordinatorOptions } from './control/coordinator/coordinator-options.js';
export { expectedEngines, type ExpectedEngine } from './control/coordinator/expected-engines.js';
export type {
  CoordinatorCore,
  CoordinatorSnapshot,
  Effect,
  EngineSnapshot,
  LogLevel,
  PeerId,
  PinSnapshot,
  Registration,
} from './control/coordinator/interface.js';
export type { RoutingPolicy } from './control/routing/engine-chooser.js';
export type { Behaviour } from './control/routing/scoring.js';
export {
  decodeMessage,
  encodeMessage,
  type Frames,
  type PlaceMessages,
  type WireProfile,
} from './control/protocol/codec.js';
export type { Place } from './control/protocol/message-fields.js';
export type {
  Bare,
  ControlSignal,
  EngineExtension,
  EngineStatus,
  HeldHandoff,
  PartialEntry,
  PlainSignal,
  RegisterRole,
  ReleaseKv,
  ReplyEntry,
  RequestAborted,
  RequestError,
  RequestRef,
  SubmitRequest,
  SubmitRequestWithKv,
  ToClient,
  ToCoordinator,
  ToEngine,
  ToRanks,
} from './control/protocol/messages.js';
export { decodeValue, encodeValue, mapParts, replaceParts, wireMap } from './control/protocol/wire-bytes.js';
export { Float64, type Opaque, type Wire, type WireMap } from './control/protocol/wire-value.js';
export {
  CoordinatorServer,
  type CoordinatorServerOptions,
  type WireCounters,
} from './control/zeromq/coordinator-server.js';
export type { LogWriter } from './control/zeromq/deliveries.js';
export { registerCoordinatorMetrics } from './control/zeromq/coordinator-metrics.js';
export type { RequestTimingsSnapshot } from './control/coordinator/request-timings.js';
export type { HistogramSnapshot } from './observe/metrics.js';
export type { PrometheusRegistry } from './observe/prometheus.js';
export type { AllowedPeer, AllowList, CurvePeer, CurveRole, CurveServer } from './control/zeromq/curve-peers.js';
export { makeKeyPair as makeCurveKeyPair, type CurveKeyPair } from './control/zeromq/curve-key.js';
export type { OutboxLimits } from './control/zeromq/outboxes.js';
export {
  CoordinatorClient,
  type CoordinatorClientOptions,
  type ClientRequestOptions,
} from './control/client/coordinator-client.js';
export { ClientRequest, type ClientEvent } from './control/client/client-request.js';
export {
  spawnCoordinator,
  SpawnedCoordinator,
  type CoordinatorSettings,
  type SpawnCoordinatorOptions,
} from './control/spawn-coordinator.js';
export { CoordinatedEngine } from './control/coordinated-engine.js';
export type { CoordinatedEngineOptions, DecodeOrder, PrefillOrder } from './control/coordinated-engine-options.js';
export {
  errorCodes,
  type HandoffError,
  type HandoffErrorCode,
  type HandoffErrorInit,
  type HandoffPhase,
} from './errors.js';
export type { Clock } from './clock.js';
