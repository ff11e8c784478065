/** How many bytes a model's state takes over all ranks: the same numbers on every rank. */
import type { EngineContext } from '../engine-context.js';

/**
 * What one block and one slot take over all ranks, from the model's own figures.
 *
 * @param ssmLayers - SSM layers of the whole model; a rank's own layout tells only its stage's.
 */
export function modelBytes(
  { kv, ssm, blockSize }: EngineContext,
  ssmLayers: number,
): { blockBytes: number; slotBytes: number } {
  const { layout, buffers } = kv;
  const planes = buffers[0]?.axes.find(({ name }) => name === 'plane')?.size ?? 1;
  const blockBytes =
    planes *
    layout.numLayersGlobal *
    layout.numKvHeadsGlobal *
    layout.headDim *
    blockSize *
    (buffers[0]?.elementBytes ?? 1);
  if (ssm === null) return { blockBytes, slotBytes: 0 };
  const { nheads, headdim, dState, ngroups, dConv } = ssm.layout.dims;
  const conv = (nheads * headdim + 2 * ngroups * dState) * dConv * ssm.conv.elementBytes;
  return { blockBytes, slotBytes: ssmLayers * (conv + nheads * headdim * dState * ssm.recurrent.elementBytes) };
}
