/** `npm run fuzz`: hostile frames by the million against the codec; whatever is not refused by its code is a fault. */
import { decodeMessage, encodeMessage } from '../../lib/control/protocol/codec.js';
import type { Place } from '../../lib/control/protocol/message-fields.js';
import { isHandoffError } from '../../lib/errors.js';
import { SeededRandom } from '../../lib/testing/seeded-random.js';
import { hostileInput } from './hostile-bytes.js';

export interface FuzzResult {
  readonly inputs: number;
  readonly accepted: number;
  /** The longest that one input took. */
  readonly slowestMs: number;
  /** Growth of the heap and of memory outside it between the first and the last tenth. */
  readonly growthMiB: number;
}

const places: readonly Place[] = ['coordinator', 'engine', 'client', 'ranks'];

/** @throws at the first input that is neither taken nor refused with `MESSAGE_INVALID` */
export function fuzzCodec(seed: number, inputs: number): FuzzResult {
  const random = new SeededRandom(seed);
  let accepted = 0;
  let slowestMs = 0;
  let before = 0;
  const used = (): number => {
    globalThis.gc?.();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  for (let run = 0; run < inputs; run++) {
    if (run === Math.floor(inputs / 10)) before = used();
    const { profile, frames } = hostileInput(random);
    const place = places[run % places.length]!;
    const started = performance.now();
    try {
      encodeMessage(profile, place, decodeMessage(profile, place, frames));
      accepted++;
    } catch (error) {
      if (!isHandoffError(error) || error.code !== 'MESSAGE_INVALID') {
        const bytes = frames.map((frame) => Buffer.from(frame).toString('hex')).join(' ');
        throw new Error(`input ${run} of seed ${seed} (${profile}, to the ${place}): ${bytes}`, { cause: error });
      }
    }
    slowestMs = Math.max(slowestMs, performance.now() - started);
  }
  return { inputs, accepted, slowestMs, growthMiB: (used() - before) / 2 ** 20 };
}
