/**
 * Whether the ranks of a source hold every layer and head that one target rank wants, each once; and whether the
 * rectangles that follow write every byte of every target buffer once. What is missing or doubled is told by name.
 */
import { HandoffError, isHandoffError } from '../errors.js';
import { axisSize, defaultContent, type BufferGeometry } from '../memory/axes-geometry.js';
import { intersection, rangeSize, type IndexRange } from '../memory/index-range.js';
import { checkProgram } from './check-program.js';
import { programBytes, regionBytesMax, type CopyProgram } from './copy-program.js';
import { pairBlocks, programOver } from './program-table.js';
import type { RectangleTemplate } from './rectangle.js';

/** Layers × heads (or a band's channels) that one rank holds. */
export interface HeldCells {
  readonly rank: number;
  readonly layers: IndexRange;
  readonly units: IndexRange;
}

/** What is wrong with `sources` as the sources of `wanted`, in words, or null. */
export function coverFault(sources: readonly HeldCells[], wanted: Omit<HeldCells, 'rank'>): string | null {
  const held = sources.flatMap(({ rank, layers, units }) => {
    const shared = { layers: intersection(layers, wanted.layers), units: intersection(units, wanted.units) };
    return shared.layers === null || shared.units === null
      ? []
      : [{ rank, layers: shared.layers, units: shared.units }];
  });
  for (const [index, a] of held.entries()) {
    for (const b of held.slice(index + 1)) {
      const [layers, units] = [intersection(a.layers, b.layers), intersection(a.units, b.units)];
      if (layers !== null && units !== null) {
        return `ranks ${a.rank} and ${b.rank} both hold ${cellsInWords({ layers, units })}`;
      }
    }
  }
  let missing: Omit<HeldCells, 'rank'>[] = rangeSize(wanted.layers) > 0 && rangeSize(wanted.units) > 0 ? [wanted] : [];
  for (const cells of held) missing = missing.flatMap((left) => without(left, cells));
  return missing[0] === undefined ? null : `no rank holds ${cellsInWords(missing[0])}`;
}

/** `layers 0-3, heads 2-3` */
export function cellsInWords({ layers, units }: Omit<HeldCells, 'rank'>): string {
  const words = (noun: string, { from, to }: IndexRange): string =>
    to - from === 1 ? `${noun} ${from}` : to === from ? `no ${noun}` : `${noun}s ${from}-${to - 1}`;
  return `${words('layer', layers)}, ${words('head', units)}`;
}

/** The at most four rectangles that are left of one when another is taken away. */
function without(left: Omit<HeldCells, 'rank'>, taken: Omit<HeldCells, 'rank'>): Omit<HeldCells, 'rank'>[] {
  const layers = intersection(left.layers, taken.layers);
  const units = intersection(left.units, taken.units);
  if (layers === null || units === null) return [left];
  return [
    { layers: { from: left.layers.from, to: layers.from }, units: left.units },
    { layers: { from: layers.to, to: left.layers.to }, units: left.units },
    { layers, units: { from: left.units.from, to: units.from } },
    { layers, units: { from: units.to, to: left.units.to } },
  ].filter((rest) => rangeSize(rest.layers) > 0 && rangeSize(rest.units) > 0);
}

/**
 * The proof for one block (or slot) of the target: with the rectangles of all sources every byte of it is written once.
 * What holds for one holds for all, since tables name each block once.
 *
 * @param plans - by source rank
 * @param targets - the buffers that must be written whole
 * @throws `INCOMPATIBLE` naming the buffer
 */
export function requireWhole(
  plans: readonly (readonly RectangleTemplate[])[],
  targets: readonly BufferGeometry[],
  tableAxis: 'block' | 'slot',
  tokens: { readonly source: number; readonly target: number },
): void {
  const rows = pairBlocks({
    source: Int32Array.from({ length: Math.ceil(tokens.target / tokens.source) }, (_, block) => block),
    target: Int32Array.of(0),
    ...{ sourceTokens: tokens.source, targetTokens: tokens.target, skipTargetBlocks: 0 },
  });
  const program = programOver(plans.flat(), rows);
  const wanted = targets.reduce((sum, buffer) => sum + bytesOfOne(buffer, tableAxis), 0);
  const written = programBytes(program);
  if (written !== wanted) {
    throw new HandoffError(
      'INCOMPATIBLE',
      `the source's buffers write ${written} of the ${wanted} bytes of a ${tableAxis}; ` +
        'both sides must have buffers of the same contents, planes and layers',
      { details: { written, wanted } },
    );
  }
  try {
    checkProgram(program, ...regionSizes(program));
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    throw new HandoffError('INCOMPATIBLE', `the source's buffers do not make one plan: ${error.message}`, {
      cause: error,
    });
  }
}

/**
 * Both sides hold the same contents and planes. More on the source would stay behind unseen: scales, and the data that
 * came would mean nothing; values, and half of the state would be gone.
 *
 * @throws `INCOMPATIBLE`
 */
export function requireSameContents(source: readonly BufferGeometry[], target: readonly BufferGeometry[]): void {
  const [theirs, ours] = [contentsInWords(source), contentsInWords(target)];
  if (theirs === ours) return;
  throw new HandoffError('INCOMPATIBLE', `contents: the source has ${theirs} and the target ${ours}`, {
    details: { field: 'contents', source: theirs, target: ours },
  });
}

/** Ranks describe their buffers once, and are paired with many. */
const knownContents = new WeakMap<readonly BufferGeometry[], string>();

/** `kv (planes 0 and 1), scale (plane 0)` */
function contentsInWords(buffers: readonly BufferGeometry[]): string {
  const known = knownContents.get(buffers) ?? describeContents(buffers);
  knownContents.set(buffers, known);
  return known;
}

function describeContents(buffers: readonly BufferGeometry[]): string {
  const planesOf = new Map<string, Set<number>>();
  for (const buffer of buffers) {
    const { content = defaultContent, planeStart = 0 } = buffer;
    const planes = planesOf.get(content) ?? new Set();
    planesOf.set(content, planes);
    for (let plane = 0; plane < axisSize(buffer, 'plane'); plane += 1) planes.add(planeStart + plane);
  }
  const words = [...planesOf].map(([content, planes]) => {
    const sorted = [...planes].sort();
    return `${content} (${sorted.length === 1 ? 'plane' : 'planes'} ${sorted.join(' and ')})`;
  });
  return words.sort().join(', ');
}

/** Bytes of one block or slot. */
function bytesOfOne({ axes, elementBytes }: BufferGeometry, tableAxis: 'block' | 'slot'): number {
  return axes.filter(({ name }) => name !== tableAxis).reduce((bytes, { size }) => bytes * size, elementBytes);
}

/** As large as regions may be: where they end is each transport's own question. */
function regionSizes({ rectangles }: CopyProgram): [number[], number[]] {
  const sizes = (regions: readonly number[]): number[] =>
    new Array<number>(Math.max(0, ...regions) + 1).fill(regionBytesMax);
  return [
    sizes(rectangles.map(({ sourceRegion }) => sourceRegion)),
    sizes(rectangles.map(({ targetRegion }) => targetRegion)),
  ];
}
