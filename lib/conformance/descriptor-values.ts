/** From a plan between two ranks to the READs that the vectors list: `[address, length, device_id]`, local and remote. */
import type { CopyProgram } from '../transfer/copy-program.js';
import { lowerToDescriptors } from '../transfer/program-descriptors.js';
import type { RectangleTemplate } from '../transfer/rectangle.js';
import type { ExactObject } from './exact-json.js';
import { columnsOf } from './ssm-reshard.js';

/** The program of one pair of ranks over whole blocks (or one slot). */
export function programOf(
  templates: readonly RectangleTemplate[],
  source: readonly number[],
  target: readonly number[],
): CopyProgram {
  return {
    rectangles: templates.map(({ rectangle }, table) => ({
      ...rectangle,
      ...{ table, tableFrom: 0, tableCount: source.length },
    })),
    tables: templates.map(({ tableStrides }) => ({
      source: Int32Array.from(source),
      target: Int32Array.from(target),
      strides: { sourceBlock: tableStrides.source, targetBlock: tableStrides.target, sourceSub: 0, targetSub: 0 },
    })),
  };
}

/** Where a buffer lies. */
export interface Place {
  readonly address: bigint;
  readonly deviceId: number;
}

/** The READs of one pair of ranks, tuples in the order of the document's `columns`. */
export function readsOf(document: ExactObject, program: CopyProgram, local: Place, remote: Place): unknown[] {
  const columns = columnsOf(document, ['address', 'length', 'device_id']);
  return lowerToDescriptors(program, 'nixl').map(({ source, target, bytes }) => {
    const tuples = (offsets: Float64Array, { address, deviceId }: Place): unknown[] =>
      Array.from(offsets, (offset) => {
        const tuple: Record<string, unknown> = {
          address: address + BigInt(offset),
          length: bytes,
          device_id: deviceId,
        };
        return columns.map((column) => tuple[column]);
      });
    return { local: tuples(target, local), remote: tuples(source, remote) };
  });
}
