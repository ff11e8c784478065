/**
 * Many messages through one coordinator with two prefill and two decode engines: what its process holds after each tenth
 * of them. Owns what counts as flat; what is left when no request is under way must be nothing.
 */
import { coordinatorLoad } from './load.js';
import { startCoordinator, type Holdings } from './processes.js';

/** What one request sends and is sent: submitted and passed on twice, three reports, two replies, a release. */
const messagesOfRequest = 8;
const inFlight = 128;
const prompts = 256;
const parts = 10;
/** The first parts fill tables and compile code. */
const warmParts = 2;
/** A request forgotten in any table would cost several times as much. */
const heapBytesOfRequestMax = 64;
/** What code, caches and a fragmented heap may still take once warm. */
const heapBytesMax = 2 * 2 ** 20;

/** What was seen. */
export interface Soak {
  readonly messages: number;
  /** After each tenth, nothing under way. */
  readonly holdings: readonly Holdings[];
  /** Of the heap, from the second tenth to the last, in bytes. */
  readonly grown: number;
  /** What that may be. */
  readonly grownMax: number;
  /** Null when memory was flat and nothing was left. */
  readonly wrong: string | null;
}

/**
 * @param messages - how many, in and out; at least ten requests are run
 * @param note - told what is held after each tenth
 */
export async function soak(messages: number, note: (part: number, held: Holdings) => void): Promise<Soak> {
  const requests = Math.max(1, Math.ceil(messages / messagesOfRequest / parts));
  const measured = await startCoordinator('disaggregated');
  try {
    const load = await coordinatorLoad(measured.address, 'disaggregated', prompts);
    try {
      const holdings: Holdings[] = [];
      for (let part = 1; part <= parts; part++) {
        await load.run(requests, inFlight);
        // The last request's release may still be on its way when its reply has come.
        let held = await measured.holdings();
        for (let tries = 0; held.requests > 0 && tries < 100; tries++) {
          await new Promise((resolve) => setTimeout(resolve, 50));
          held = await measured.holdings();
        }
        holdings.push(held);
        note(part, held);
      }
      return { messages: requests * parts * messagesOfRequest, holdings, ...judged(holdings, requests) };
    } finally {
      load.close();
    }
  } finally {
    await measured.end();
  }
}

/** @param requests - of each part */
export function judged(holdings: readonly Holdings[], requests: number): Pick<Soak, 'grown' | 'grownMax' | 'wrong'> {
  const grown = holdings.at(-1)!.heapBytes - holdings[warmParts - 1]!.heapBytes;
  const grownMax = heapBytesMax + heapBytesOfRequestMax * requests * (parts - warmParts);
  const left = holdings.findIndex(({ requests: living }) => living > 0);
  const wrong =
    left >= 0
      ? `${holdings[left]!.requests} requests and pins are left after part ${left + 1} of ${parts}`
      : grown > grownMax
        ? `the heap grew by ${grown} bytes, expected at most ${grownMax}`
        : null;
  return { grown, grownMax, wrong };
}
