/** Section `message_bytes`: values of the wire, written and read byte for byte; whole messages through the codec too. */
import { decodeMessage, encodeMessage } from '../control/protocol/codec.js';
import type { Place } from '../control/protocol/message-fields.js';
import { headerValues } from '../control/protocol/headers.js';
import { decodeValue, encodeValue } from '../control/protocol/wire-bytes.js';
import { isHandoffError } from '../errors.js';
import { expectEqual, Mismatch } from './mismatch.js';
import { fieldsOf, integerOf, listOf, stringOf, type Section } from './section.js';
import { wireOf } from './wire-exact.js';

const places: readonly Place[] = ['coordinator', 'engine', 'client', 'ranks'];

export const messageBytesSection: Section = {
  name: 'message_bytes',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['value', 'hex'], ['name']);
      const hex = stringOf(fields['hex'], 'hex');
      if (!/^([\da-f]{2})*$/.test(hex)) throw new Mismatch('hex', 'pairs of lower-case hex digits', hex);
      const header = integerOf(listOf(fields['value'], 'value')[0], 'value[0]');
      if (!Object.values<number>(headerValues).includes(header))
        throw new Mismatch('value[0]', 'a header', `${header}`);
      const bytes = Uint8Array.from(Buffer.from(hex, 'hex'));
      let decoded;
      try {
        decoded = decodeValue(bytes);
      } catch (error) {
        if (!isHandoffError(error)) throw error;
        throw new Mismatch('hex', 'msgpack', error.message);
      }
      expectEqual('hex', hex, hexOf(encodeValue(wireOf(fields['value']!, decoded))));
      expectEqual('hex, read and written again', hex, hexOf(encodeValue(decoded)));
      for (const place of places) {
        let message;
        try {
          message = decodeMessage('single-frame', place, [bytes]);
        } catch (error) {
          if (!isHandoffError(error)) throw error;
          continue; // No message of this place, or a value that only shows a form.
        }
        const [frame] = encodeMessage('single-frame', place, message);
        expectEqual(`hex, as a message to the ${place}`, hex, hexOf(frame!));
      }
    },
  },
};

function hexOf(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}
