/** Section `headers_gen_b`: the reference's header values and their categories. */
import { headerOf, referenceHeaders } from '../control/protocol/headers.js';
import { expectEqual } from './mismatch.js';
import { integerOf, objectOf, type Section } from './section.js';

export const headersSection: Section = {
  name: 'headers_gen_b',
  keys: ['categories'],
  groups: {
    values(value, document) {
      const tables = Object.entries(referenceHeaders);
      expectEqual('values', value, Object.assign({}, ...tables.map(([, table]) => table)));
      for (const [name, number] of Object.entries(objectOf(value, 'values')))
        expectEqual(`values.${name}`, name, headerOf(integerOf(number, name)));
      expectEqual(
        'categories',
        objectOf(document['categories'], 'categories'),
        Object.fromEntries(tables.map(([category, table]) => [category, Object.keys(table)])),
      );
    },
  },
};
