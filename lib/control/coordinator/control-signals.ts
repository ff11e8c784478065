/**
 * The two state machines of spec 1.8: what a control signal does to the coordinator and to an engine. What is absent is
 * ignored (coordinator) or an error of who sent it (engine).
 */
import type { PlainSignal } from '../protocol/messages.js';

/** The coordinator's own state. */
export type CoordinatorState = 'RUNNING' | 'PAUSED' | 'SUSPENDED' | 'STOPPING';

/** Signals that move the coordinator. Profiler signals and epochs do not. */
export type StateSignal = Exclude<PlainSignal, 'START_CUDA_PROFILER' | 'STOP_CUDA_PROFILER'>;

/** Where a signal takes the coordinator; it is broadcast when it takes it anywhere. */
export const coordinatorSignals: Readonly<
  Record<CoordinatorState, Readonly<Partial<Record<StateSignal, CoordinatorState>>>>
> = {
  RUNNING: { PAUSE: 'PAUSED' },
  PAUSED: { UNPAUSE: 'RUNNING', SUSPEND: 'SUSPENDED', STOP: 'STOPPING' },
  SUSPENDED: { RESUME: 'PAUSED', STOP: 'STOPPING' },
  // Only while STOP is broadcast: then the coordinator takes new engines again.
  STOPPING: {},
};

/** An engine's state; those that end in -ING end with a barrier of its ranks. */
export type EngineState =
  'RUNNING' | 'PAUSING' | 'PAUSED' | 'UNPAUSING' | 'SUSPENDING' | 'SUSPENDED' | 'RESUMING' | 'STOPPING' | 'STOPPED';

/** Where a signal takes an engine. */
export const engineSignals: Readonly<Record<EngineState, Readonly<Partial<Record<StateSignal, EngineState>>>>> = {
  RUNNING: { PAUSE: 'PAUSING' },
  PAUSING: {},
  PAUSED: { UNPAUSE: 'UNPAUSING', SUSPEND: 'SUSPENDING', STOP: 'STOPPING' },
  UNPAUSING: {},
  SUSPENDING: {},
  SUSPENDED: { RESUME: 'RESUMING', STOP: 'STOPPING' },
  RESUMING: {},
  STOPPING: {},
  STOPPED: {},
};

/** Where the barrier takes an engine that waits for one. */
export const engineBarriers: Readonly<Partial<Record<EngineState, EngineState>>> = {
  PAUSING: 'PAUSED',
  UNPAUSING: 'RUNNING',
  SUSPENDING: 'SUSPENDED',
  RESUMING: 'PAUSED',
  STOPPING: 'STOPPED',
};
