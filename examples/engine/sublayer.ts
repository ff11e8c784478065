/** Half a layer: attention, SSM, or feed-forward. */
import type { Batch } from './batch.js';

export interface Sublayer {
  /**
   * Norms the residual stream and writes what this rank's shards (and experts) contribute to `batch.partials`, sets
   * `batch.terms` and `batch.gates`, and changes nothing else but state. Ranks of one stage exchange `batch.partials`
   * after it; {@link absorb} then finishes the sublayer on each of them alike.
   */
  computePartials(batch: Batch): void;
}
