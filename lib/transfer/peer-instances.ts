/**
 * Whether two instances fit, and who gives what to whom, before any request: for a control plane that pairs instances
 * by what they registered (spec 1.5.2). Pairs that cannot work are refused with both sides in the error.
 */
import { argumentError, isHandoffError } from '../errors.js';
import { checkTicketLimits, defaultTicketLimits, type TicketLimits } from '../limits.js';
import { parseInstanceMeta } from './peer-description.js';
import { planPull, requireWholeTarget, type Balance } from './peer-pairing.js';
import { labelInWords, type RectangleLabel } from './program-label.js';

/** What one source rank gives one target rank. */
export interface RankExchange {
  readonly sourceRank: number;
  readonly targetRank: number;
  /** One for each pair of buffers, and for each band of SSM state. */
  readonly parts: readonly RectangleLabel[];
  /** The parts in words: `layers 0-15, heads 0-3 of rank 2 go to heads 4-7 of rank 0`. */
  readonly words: readonly string[];
}

/**
 * The plan between two instances as they registered, by target rank, for each its sources.
 *
 * @param source - the registered descriptors of the prefill instance, `target` those of the decode instance
 * @throws `INCOMPATIBLE` with both sides, when the source cannot fill one of the targets, or the targets are not the
 *   whole instance; `TICKET_INVALID`, `SSM_METADATA_INVALID` for what is no instance
 */
export function planInstances(
  source: unknown,
  target: unknown,
  balance: Balance = 'first',
  limits: TicketLimits = defaultTicketLimits,
): readonly RankExchange[] {
  if (balance !== 'first' && balance !== 'spread') throw argumentError('balance', '"first" or "spread"', balance);
  checkTicketLimits(limits);
  const sources = named('source', () => parseInstanceMeta(source, 'source', limits));
  const targets = named('target', () => parseInstanceMeta(target, 'target', limits));
  const exchanges = targets.flatMap((own) =>
    planPull(own, sources, balance).flatMap((plan, index) => {
      if (plan === null) return [];
      const parts = [...plan.kv, ...plan.ssm].map(({ rectangle }) => rectangle.label as RectangleLabel);
      return [
        {
          ...{ sourceRank: sources[index]!.globalRank, targetRank: own.globalRank },
          ...{ parts, words: parts.map(labelInWords) },
        },
      ];
    }),
  );
  requireWholeTarget(sources, targets);
  return exchanges;
}

/** Says which of the two descriptions was wrong. */
function named<T>(side: string, parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    if (isHandoffError(error)) error.message = `${side}: ${error.message}`;
    throw error;
  }
}
