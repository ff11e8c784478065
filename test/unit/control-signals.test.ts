/** The two signal machines of spec 1.8, row by row. */
import {
  coordinatorSignals,
  engineBarriers,
  engineSignals,
  type EngineState,
} from '../../lib/control/coordinator/control-signals.js';

test('the coordinator follows only the moves of the protocol', () => {
  const moves = Object.entries(coordinatorSignals).flatMap(([state, row]) =>
    Object.entries(row).map(([signal, next]) => `${state} ${signal} ${next}`),
  );
  expect(moves.sort()).toEqual([
    'PAUSED STOP STOPPING',
    'PAUSED SUSPEND SUSPENDED',
    'PAUSED UNPAUSE RUNNING',
    'RUNNING PAUSE PAUSED',
    'SUSPENDED RESUME PAUSED',
    'SUSPENDED STOP STOPPING',
  ]);
});

test('whatever a signal starts in an engine ends with its barrier, and nothing else does', () => {
  const started = new Set(Object.values(engineSignals).flatMap((row) => Object.values(row)));
  expect([...started].sort()).toEqual(Object.keys(engineBarriers).sort());
  for (const state of started) expect(engineSignals[state]).toEqual({});
  const walk = (state: EngineState, signal: 'PAUSE' | 'UNPAUSE' | 'SUSPEND' | 'RESUME' | 'STOP'): EngineState =>
    engineBarriers[engineSignals[state][signal]!]!;
  let state = walk('RUNNING', 'PAUSE');
  expect(walk(state, 'UNPAUSE')).toBe('RUNNING');
  state = walk(state, 'SUSPEND');
  expect(state).toBe('SUSPENDED');
  expect(walk(walk(state, 'RESUME'), 'STOP')).toBe('STOPPED');
  expect(walk(state, 'STOP')).toBe('STOPPED');
});
