/** A choice of transports that judge no peer: the first that both ends have. */
import type { Transport } from '../../lib/transfer/transport.js';
import { TransportChoice } from '../../lib/transfer/transport-choice.js';

export function choiceOf(...transports: Transport[]): TransportChoice {
  return new TransportChoice(transports.map((each) => ({ transport: each, grant: null, whyNot: () => null })));
}
