/**
 * Why something failed, as it is told to a peer: errors of engines and descriptions of what was wrong can be of any length,
 * a message's text cannot.
 */

/** Characters; far below what a message's text may have. */
const toldMax = 4_096;

/** The reason, cut where it is longer than anybody reads. */
export function toldReason(reason: string): string {
  return reason.length <= toldMax ? reason : `${reason.slice(0, toldMax)}…`;
}
