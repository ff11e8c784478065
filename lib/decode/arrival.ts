/** A request on its way into the log: taken from the caller, not yet a record. `DecodeSide` moves it. */
import type { Finished, RequestId, SamplingParams } from '../engine-context.js';
import type { HandoffError } from '../errors.js';
import type { ImportSource } from './pending-import.js';

/** One request for an import, before it has a place in the log. */
export interface ImportRequest {
  readonly requestId: RequestId;
  readonly prompt: Int32Array;
  readonly samplingParams: SamplingParams;
  readonly kvMeta: Readonly<Record<string, unknown>>;
  readonly sourceBlockIds: readonly number[];
}

export interface Waiter {
  readonly resolve: (finished: Finished) => void;
  readonly reject: (error: HandoffError) => void;
}

/** The same waiter; `settled` is called first. */
export function telling(settled: () => void, { resolve, reject }: Waiter): Waiter {
  return {
    resolve: (finished) => {
      settled();
      resolve(finished);
    },
    reject: (error) => {
      settled();
      reject(error);
    },
  };
}

export interface Arrival {
  readonly request: ImportRequest;
  readonly source: ImportSource;
  readonly waiter: Waiter;
  /** Null while the hashes are being computed off the event loop. */
  hashes: BigInt64Array | null;
  cancelled: boolean;
}
