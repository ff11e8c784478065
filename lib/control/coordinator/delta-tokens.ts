/** How many tokens a streamed delta brings, read from its bytes without decoding what else it holds. */
import { isListForm, isMapForm } from '../protocol/wire-bytes.js';
import { WireReader } from '../protocol/wire-reader.js';
import type { Opaque } from '../protocol/wire-value.js';

/** 1 for a delta that does not say it as the protocol does (spec 1.4): something has come. */
export function deltaTokens(body: Opaque): number {
  if (!isMapForm(body[0])) return 1;
  const reader = new WireReader(body, 'delta');
  try {
    for (let left = reader.mapLength(); left > 0; left--) {
      if (reader.key() === 'new_tokens') return isListForm(reader.peek()) ? reader.listLength() : 1;
      reader.opaque(1);
    }
  } catch {
    // What it cannot be read for is the client's to refuse.
  }
  return 1;
}
