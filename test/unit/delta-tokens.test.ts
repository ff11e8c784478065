/** How many tokens a delta brings, whatever a peer sends as one. */
import { deltaTokens } from '../../lib/control/coordinator/delta-tokens.js';
import { encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import type { Wire } from '../../lib/control/protocol/wire-value.js';

const body = (entries: Readonly<Record<string, Wire>>): Uint8Array => encodeValue(wireMap(entries));

test.each<[string, Uint8Array, number]>([
  ['three tokens behind other parts', body({ request_id: 1, nested: [[1], 'a'], new_tokens: [4, 5, 6] }), 3],
  ['a thousand', body({ new_tokens: Array.from({ length: 1_000 }, (_, at) => at) }), 1_000],
  ['none', body({ new_tokens: [] }), 0],
  ['no word of tokens', body({ request_id: 1 }), 1],
  ['tokens that are no list', body({ new_tokens: 'three' }), 1],
  ['no map', encodeValue([1, 2]), 1],
  ['keys that are no text', Uint8Array.of(0x81, 0x01, 0x91, 0x01), 1],
  ['an end in the middle', body({ request_id: 1, new_tokens: [4, 5, 6] }).subarray(0, 8), 1],
  ['nothing', new Uint8Array(0), 1],
])('%s', (_name, bytes, tokens) => {
  expect(deltaTokens(bytes)).toBe(tokens);
});
