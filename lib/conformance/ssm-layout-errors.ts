/** Section `ssm_layout_errors`: heads and groups that tensor parallelism does not divide. */
import { makeSsmLayout } from '../memory/ssm-layout.js';
import { layoutErrors, ssmDimsOf } from './layout-values.js';
import { expectError, fieldsOf, integerOf, type Section } from './section.js';

export const ssmLayoutErrorsSection: Section = {
  name: 'ssm_layout_errors',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['tp_size', 'dims', 'error'], ['name']);
      const tpSize = integerOf(fields['tp_size'], 'tp_size');
      const dims = ssmDimsOf(fields['dims'], 'dims');
      expectError(fields['error'], 'error', layoutErrors, () =>
        makeSsmLayout({ globalRank: 0, tpSize, tpRank: 0, layerStart: 0, numLayers: 1, dims }),
      );
    },
  },
};
