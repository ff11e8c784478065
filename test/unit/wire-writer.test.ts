/** Values that do not fit what the writer has room for: it grows at any byte of any form. */
import { decodeValue, encodeValue } from '../../lib/control/protocol/wire-bytes.js';
import { Float64, type Wire } from '../../lib/control/protocol/wire-value.js';

const values: readonly (readonly [string, Wire])[] = [
  ['one byte', 200],
  ['two bytes', 60_000],
  ['four bytes', 2 ** 31],
  ['eight bytes', 2 ** 40],
  ['a negative byte', -100],
  ['eight negative bytes', -(2 ** 40)],
  ['a large integer', 2n ** 63n],
  ['a float', new Float64(1.5)],
  ['bytes', new Uint8Array(40)],
  ['a list', Array.from({ length: 20 }, () => 1)],
];

// The room doubles and is kept, so each form meets an end of its own.
test.each(values.map(([name, value], index) => [name, value, 256 << index] as const))(
  '%s, at every place around the end of the room',
  (_name, value, room) => {
    for (let before = room - 25; before < room; before++) {
      const list = [...new Array<Wire>(before).fill(1), value, value];
      const decoded = decodeValue(encodeValue(list)) as readonly Wire[];
      expect(decoded.length).toBe(list.length);
      expect(decoded.slice(-2)).toEqual([value, value]);
    }
  },
);
