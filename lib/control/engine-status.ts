/** How an engine is, for its coordinator's `status` and metrics: how often it says so, and what it says. Sends nothing. */
import { argumentError, isHandoffError } from '../errors.js';
import type { StateHandoff } from '../state-handoff.js';
import type { CoordinatedEngineOptions } from './coordinated-engine-options.js';

/** @throws `OPTION_INVALID` */
export function statusInterval({ profile, statusMs }: CoordinatedEngineOptions): number | null {
  if (statusMs === undefined) return profile === 'single-frame' ? null : 1_000;
  if (statusMs === null || (Number.isInteger(statusMs) && statusMs >= 10 && statusMs <= 3_600_000)) return statusMs;
  throw argumentError('options.statusMs', 'null or an integer in [10, 3600000]', statusMs, 'OPTION_INVALID');
}

/** Of a handoff that was closed there is nothing to tell. */
export function loadNumbers(handoff: StateHandoff): Record<string, number> {
  let load: Record<string, number> = {};
  try {
    const numbers = Object.entries(handoff.load()).filter(
      (entry): entry is [string, number] => typeof entry[1] === 'number',
    );
    load = { ...Object.fromEntries(numbers), importsQuarantined: handoff.inspect().quarantine.length };
  } catch (error) {
    if (!isHandoffError(error)) throw error;
  }
  return load;
}
