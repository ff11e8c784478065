/**
 * How many bytes a model's state takes over all ranks: the same numbers on every rank, so they are computed from what
 * all ranks said of themselves; a stage without attention layers cannot know by itself.
 */
import type { EngineContext } from '../engine-context.js';
import type { WireObject } from '../json.js';

/**
 * What one block and one slot take over all ranks.
 *
 * @param kv - the attention descriptors of all ranks, as `exportKvDescriptor` makes them
 * @param ssmLayers - SSM layers of the whole model; a rank's own layout tells only its stage's.
 */
export function modelBytes(
  context: Pick<EngineContext, 'kv' | 'ssm'>,
  kv: readonly WireObject[],
  ssmLayers: number,
): { blockBytes: number; slotBytes: number } {
  const blockBytes = blockBytesOf(context.kv.layout, kv);
  if (context.ssm === null) return { blockBytes, slotBytes: 0 };
  const { nheads, headdim, dState, ngroups, dConv } = context.ssm.layout.dims;
  const conv = (nheads * headdim + 2 * ngroups * dState) * dConv * context.ssm.conv.elementBytes;
  const recurrent = nheads * headdim * dState * context.ssm.recurrent.elementBytes;
  return { blockBytes, slotBytes: ssmLayers * (conv + recurrent) };
}

/** One buffer of a descriptor. */
interface DescribedBuffer {
  readonly element_size: number;
  readonly axes: readonly (readonly [name: string, size: number, stride: number])[];
}

function buffersOf(descriptor: WireObject): readonly DescribedBuffer[] {
  return descriptor['geometry'] as unknown as readonly DescribedBuffer[];
}

/** From the first rank that holds layers, scaled to all layers and, where a buffer counts heads, all heads. */
function blockBytesOf(layout: EngineContext['kv']['layout'], kv: readonly WireObject[]): number {
  const holder = kv.find((descriptor) => buffersOf(descriptor).length > 0);
  if (holder === undefined) return 0;
  let bytes = 0;
  let layers = 0;
  const contents = new Map<string, number>();
  for (const buffer of buffersOf(holder)) {
    const sizes = new Map(buffer.axes.map(([name, size]) => [name, size]));
    const elements = buffer.axes.reduce((count, [name, size]) => (name === 'block' ? count : count * size), 1);
    const heads = sizes.get('head');
    bytes += (elements * buffer.element_size * (heads === undefined ? 1 : layout.numKvHeadsGlobal)) / (heads ?? 1);
    // Contents and planes lie over the same layers; the most that one kind of buffer holds are all.
    const { content = '', plane_start: plane = 0 } = buffer as { content?: string; plane_start?: number };
    const kind = `${content}:${plane}`;
    contents.set(kind, (contents.get(kind) ?? 0) + (sizes.get('layer') ?? 1));
    layers = Math.max(layers, contents.get(kind)!);
  }
  return (bytes * layout.numLayersGlobal) / layers;
}

/** Element size of the attention data, as the first rank that holds layers says; 1 where none does. */
export function elementBytesOf(kv: readonly WireObject[]): number {
  const holder = kv.find((descriptor) => buffersOf(descriptor).length > 0);
  return holder === undefined ? 1 : (holder['element_size'] as number);
}
