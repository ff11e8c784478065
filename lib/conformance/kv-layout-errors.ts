/** Section `kv_layout_errors`: layouts that cannot be, and pairs that do not describe one model. */
import { makeKvLayout } from '../memory/kv-layout.js';
import { planKvReshard } from '../transfer/plan-kv.js';
import { kvLayoutInput, layoutErrors } from './layout-values.js';
import { expectError, fieldsOf, objectOf, type Section } from './section.js';

export const kvLayoutErrorsSection: Section = {
  name: 'kv_layout_errors',
  groups: {
    cases(value) {
      const isPair = Object.hasOwn(objectOf(value, ''), 'src');
      const fields = fieldsOf(value, '', [...(isPair ? ['src', 'dst'] : ['layout']), 'error'], ['name']);
      const inputs = (isPair ? ['src', 'dst'] : ['layout']).map((key) => kvLayoutInput(fields[key], key).input);
      expectError(fields['error'], 'error', layoutErrors, () => {
        const [source, target] = inputs.map(makeKvLayout);
        return target === undefined ? source : planKvReshard([source!], [target]);
      });
    },
  },
};
