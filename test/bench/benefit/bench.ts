/**
 * `npm run bench:benefit`: the same engines on the same cores, aggregated and split, under two mixes at several rates. The
 * rates are shares of what the aggregated engines can do on this machine, which is measured first.
 */
import { engineSize } from './engine-setting.js';
import { capacityOf, measure, mixes, type Mix, type Point } from './measure.js';
import { Router, splitName, type Split } from './router.js';

export { lossLines, resultTable } from './result.js';
export { drawing } from './drawing.js';

/** How much is run. */
export interface BenefitOptions {
  /** Engines of each setting, as many processes. */
  readonly engines: number;
  /** Arrivals of one point. */
  readonly seconds: number;
  /** Of the capacity of the aggregated engines. */
  readonly rateShares: readonly number[];
  /** Requests with which the capacity is measured. */
  readonly calibration: number;
  /** Requests of one point, at least. */
  readonly requestsMin: number;
  readonly mixes: readonly Mix[];
}

export const wholeRun: BenefitOptions = {
  engines: 2,
  seconds: 12,
  rateShares: [0.3, 0.6, 0.9],
  calibration: 24,
  requestsMin: 8,
  mixes,
};
export const quickRun: BenefitOptions = { ...wholeRun, seconds: 1, rateShares: [0.5], calibration: 4, requestsMin: 3 };

/** Every split of so many engines, aggregated first. */
export function splitsOf(engines: number): Split[] {
  const split = Array.from({ length: engines - 1 }, (_, index) => {
    return { both: 0, prefill: index + 1, decode: engines - index - 1 };
  });
  return [{ both: engines, prefill: 0, decode: 0 }, ...split];
}

/** @param note - told what is being measured, and what came out */
export async function run(
  { engines, seconds, rateShares, calibration, requestsMin, mixes: asked }: BenefitOptions,
  note: (what: string) => void,
): Promise<Point[]> {
  const points: Point[] = [];
  const splits = splitsOf(engines);
  const total = splits.length * asked.length * rateShares.length;
  const rates = new Map<string, number[]>();
  for (const split of splits) {
    const name = splitName(split);
    note(`${name}: starting`);
    const router = await Router.open(split, engineSize);
    try {
      for (const mix of asked) {
        if (!rates.has(mix.name)) {
          const capacity = await capacityOf(router, mix, calibration);
          rates.set(
            mix.name,
            rateShares.map((share) => share * capacity),
          );
          note(`${mix.name}: ${name} can do ${capacity.toFixed(1)} requests a second`);
        } else await capacityOf(router, mix, Math.ceil(calibration / 3));
        for (const rate of rates.get(mix.name)!) {
          const count = Math.max(requestsMin, Math.round(rate * seconds));
          const which = `${points.length + 1} of ${total}: ${name}, ${mix.name}`;
          note(`${which}, ${count} requests at ${rate.toFixed(1)} a second`);
          points.push(await measure(router, name, mix, rate, count));
        }
      }
    } finally {
      await router.close();
    }
  }
  return points;
}
