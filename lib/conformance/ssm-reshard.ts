/** Section `ssm_reshard`: which conv bands and recurrent heads of which layers move between which ranks. */
import { planSsmReshard, type SsmTransfer } from '../transfer/plan-ssm.js';
import type { ExactObject, ExactValue } from './exact-json.js';
import { ssmLayoutOf } from './layout-values.js';
import { expectEqual, Mismatch, render } from './mismatch.js';
import { expectedPlan, fieldsOf, listOf, planKeys, type Section } from './section.js';

export const ssmReshardSection: Section = {
  name: 'ssm_reshard',
  keys: ['columns', 'order'],
  groups: {
    cases(value, document) {
      const fields = fieldsOf(value, '', ['src', 'dst', 'plan'], ['name', ...planKeys]);
      const { path, plan } = expectedPlan(fields);
      const layouts = (key: string) =>
        listOf(fields[key], key).map((each, index) => ssmLayoutOf(each, `${key}[${index}]`));
      const rows = planSsmReshard(layouts('src'), layouts('dst')).flatMap(perLayer);
      const columns = columnsOf(document, Object.keys(perLayer(example)[0] as object));
      expectEqual(
        path,
        plan as ExactValue,
        rows.map((row) => columns.map((column) => row[column])),
      );
    },
  },
};

const nothing = { from: 0, to: 1 };
const example: SsmTransfer = {
  ...{ sourceRank: 0, targetRank: 0, band: 'x', layers: nothing, sourceLayers: nothing, targetLayers: nothing },
  ...{ sourceUnits: nothing, targetUnits: nothing },
};

/** The reference has one entry a layer. */
function perLayer(transfer: SsmTransfer): Record<string, number | string>[] {
  const { layers, sourceLayers, targetLayers, sourceUnits, targetUnits } = transfer;
  return Array.from({ length: layers.to - layers.from }, (_, index) => ({
    src_rank: transfer.sourceRank,
    dst_rank: transfer.targetRank,
    band: transfer.band,
    global_layer: layers.from + index,
    src_layer: sourceLayers.from + index,
    dst_layer: targetLayers.from + index,
    src_lo: sourceUnits.from,
    src_hi: sourceUnits.to,
    dst_lo: targetUnits.from,
    dst_hi: targetUnits.to,
  }));
}

/** In the order that the file gives. @throws {@link Mismatch} unless it names each column once */
export function columnsOf(document: ExactObject, known: readonly string[]): string[] {
  const columns = listOf(document['columns'], 'columns') as readonly string[];
  if ([...columns].sort().join() !== [...known].sort().join()) {
    throw new Mismatch('columns', `${known.join(', ')} in some order`, render(columns));
  }
  return [...columns];
}
