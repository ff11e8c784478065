/** What an engine must be like before anything is built on it. Every refusal names the field. */
import type { EngineContext } from '../engine-context.js';
import { argumentError, HandoffError } from '../errors.js';
import { defaultContent, type AxisName, type BufferGeometry } from '../memory/axes-geometry.js';
import { defaultTicketLimits } from '../limits.js';
import { ownedHeads } from '../memory/kv-layout.js';
import { decideMeeting, pairStepsMax } from '../transfer/program-overlap.js';
import type { Shape } from '../transfer/program-shape.js';

/** What an engine does in a handoff. */
export type Role = 'prefill' | 'decode';

const { nameLengthMax } = defaultTicketLimits;

const axisNames: ReadonlySet<string> = new Set<AxisName>([
  'plane',
  'layer',
  'block',
  'token',
  'head',
  'dim',
  'slot',
  'channel',
]);

/** K and V. */
const planesMax = 2;

const decodeMethods = [
  'canAdmitPrefilledDecode',
  'admitPrefilledDecode',
  'abortRequest',
  'isComplete',
  'growthReserve',
  'targetQuiescent',
] as const;

/** @throws `ENGINE_CONTEXT_INVALID`, `PREFIX_CACHING_REQUIRED`, `SSM_CACHE_ON_DECODE` */
export function checkContext(context: EngineContext, role: Role): void {
  for (const field of ['blockSize', 'maxRequests', 'maxSequenceLength'] as const) {
    requireCount(`engine.${field}`, context[field], 1);
  }
  requireCount('engine.numSpeculativeTokens', context.numSpeculativeTokens, 0);
  for (const field of ['model', 'dtype'] as const) {
    const name: unknown = context[field];
    if (typeof name !== 'string' || name.length < 1 || name.length > nameLengthMax)
      throw invalid(`engine.${field}`, `a name of 1 to ${nameLengthMax} characters`, name);
  }
  for (const field of ['kv', 'blocks'] as const) {
    if (typeof context[field] !== 'object' || context[field] === null)
      throw invalid(`engine.${field}`, 'an object', context[field]);
  }
  if (typeof context.kv.layout !== 'object') throw invalid('engine.kv.layout', 'an object', context.kv.layout);
  if (!Array.isArray(context.kv.buffers)) throw invalid('engine.kv.buffers', 'a list', context.kv.buffers);
  if (!context.blocks.prefixCaching) {
    throw new HandoffError(
      'PREFIX_CACHING_REQUIRED',
      'engine.blocks: handoffs need an allocator with prefix caching; turn it on',
    );
  }
  checkKv(context);
  checkSsm(context, role);
  checkBuffersApart(context);
  if (role !== 'decode') return;
  if (typeof (context.growsInBlocks ?? true) !== 'boolean')
    throw invalid('engine.growsInBlocks', 'true, false or nothing', context.growsInBlocks);
  for (const method of decodeMethods) {
    if (typeof context[method] !== 'function') throw invalid(`engine.${method}`, 'a method', context[method]);
  }
}

function checkKv({ kv, blocks, blockSize, regions }: EngineContext): void {
  const { layout } = kv;
  if (kv.buffers.length !== kv.layerStarts.length) {
    throw invalid('engine.kv.layerStarts', `one entry for each of ${kv.buffers.length} buffers`, kv.layerStarts);
  }
  const heads = ownedHeads(layout);
  for (const [index, buffer] of kv.buffers.entries()) {
    const path = `engine.kv.buffers[${index}]`;
    checkBuffer(path, buffer, regions);
    const isData = (buffer.content ?? defaultContent) === defaultContent;
    requireAxis(path, buffer, 'block', blocks.poolSize);
    if (isData || (axis(buffer, 'token')?.size ?? 1) !== 1) requireAxis(path, buffer, 'token', blockSize);
    if (axis(buffer, 'head') !== undefined) requireAxis(path, buffer, 'head', heads.to - heads.from);
    if (isData && axis(buffer, 'dim') !== undefined) requireAxis(path, buffer, 'dim', layout.headDim);
    const planes = (buffer.planeStart ?? 0) + (axis(buffer, 'plane')?.size ?? 1);
    if (planes > planesMax) throw invalid(`${path}.planeStart`, `at most ${planesMax} planes, K and V`, planes);
  }
  checkLayerCover(kv);
}

/** Every layer of the layout lies in exactly one buffer of each content and plane; what lies in none would never move. */
function checkLayerCover(kv: EngineContext['kv']): void {
  const kinds = new Map<string, LayerRange[]>();
  if (kv.layout.layerEnd > kv.layout.layerStart) kinds.set(`${defaultContent} 0`, []);
  for (const [index, buffer] of kv.buffers.entries()) {
    const from = kv.layerStarts[index] as number;
    const planeStart = buffer.planeStart ?? 0;
    for (let plane = planeStart; plane < planeStart + (axis(buffer, 'plane')?.size ?? 1); plane += 1) {
      const kind = `${buffer.content ?? defaultContent} ${plane}`;
      const ranges = kinds.get(kind) ?? [];
      ranges.push({ from, to: from + (axis(buffer, 'layer')?.size ?? 1) });
      kinds.set(kind, ranges);
    }
  }
  for (const ranges of kinds.values()) checkLayerRanges(kv, ranges);
}

interface LayerRange {
  readonly from: number;
  readonly to: number;
}

function checkLayerRanges({ layout, layerStarts }: EngineContext['kv'], ranges: LayerRange[]): void {
  let next = layout.layerStart;
  for (const { from, to } of ranges.sort((a, b) => a.from - b.from)) {
    if (from !== next)
      throw invalid('engine.kv.layerStarts', `a buffer that holds layer ${next}, and each layer once`, layerStarts);
    next = to;
  }
  if (next !== layout.layerEnd)
    throw invalid('engine.kv.buffers', `layers up to ${layout.layerEnd}, the layout's end`, next);
}

function checkSsm({ ssm, slots, maxRequests, regions, hasSsmSnapshotCache }: EngineContext, role: Role): void {
  if (ssm === undefined) throw invalid('engine.ssm', 'buffers, or null for a model without SSM state', ssm);
  if ((ssm === null) !== (slots === null)) {
    throw invalid(
      'engine.slots',
      ssm === null ? 'null for a model without SSM state' : 'a slot allocator for a model with SSM state',
      slots,
    );
  }
  if (ssm === null || slots === null) return;
  if (role === 'decode' && hasSsmSnapshotCache) {
    throw new HandoffError(
      'SSM_CACHE_ON_DECODE',
      'a hybrid decode engine imports directly into live SSM state and cannot keep a durable snapshot cache; turn it off on decode',
    );
  }
  const { dims, tpSize, numLayers } = ssm.layout;
  if (slots.size > ssm.physicalSlots)
    throw invalid('engine.ssm.physicalSlots', `at least the pool's ${slots.size} slots`, ssm.physicalSlots);
  if (slots.size < maxRequests) throw invalid('engine.slots.size', `at least maxRequests, ${maxRequests}`, slots.size);
  if (numLayers === 0) return;
  for (const name of ['conv', 'recurrent'] as const) {
    const path = `engine.ssm.${name}`;
    checkBuffer(path, ssm[name], regions);
    requireAxis(path, ssm[name], 'slot', ssm.physicalSlots);
    requireAxis(path, ssm[name], 'layer', numLayers);
  }
  requireAxis(
    'engine.ssm.conv',
    ssm.conv,
    'channel',
    (dims.nheads * dims.headdim + 2 * dims.ngroups * dims.dState) / tpSize,
  );
  requireAxis('engine.ssm.recurrent', ssm.recurrent, 'head', dims.nheads / tpSize);
}

function checkBuffer(path: string, buffer: BufferGeometry, regions: EngineContext['regions']): void {
  const region = regions[buffer.region];
  if (region === undefined) throw invalid(`${path}.region`, `an index below ${regions.length}`, buffer.region);
  requireCount(`${path}.elementBytes`, buffer.elementBytes, 1);
  requireCount(`${path}.offsetBytes`, buffer.offsetBytes, 0);
  let end = buffer.offsetBytes + buffer.elementBytes;
  for (const { name, size, strideBytes } of buffer.axes) {
    if (!axisNames.has(name)) throw invalid(`${path}.axes`, `axes named ${[...axisNames].join(', ')}`, name);
    requireCount(`${path}.axes.${name}.size`, size, 1);
    requireCount(`${path}.axes.${name}.strideBytes`, strideBytes, 1);
    end += (size - 1) * strideBytes;
  }
  checkApart(path, buffer);
  if (end > region.byteLength) throw invalid(path, `an end within the region's ${region.byteLength} bytes`, end);
}

/** No two indices share a byte: each stride reaches over all that lies inside it. */
function checkApart(path: string, { axes, elementBytes }: BufferGeometry): void {
  let extent = elementBytes;
  for (const { name, size, strideBytes } of [...axes].sort((a, b) => a.strideBytes - b.strideBytes)) {
    if (size === 1) continue;
    if (strideBytes < extent)
      throw invalid(`${path}.axes.${name}.strideBytes`, `at least ${extent}, what lies inside it`, strideBytes);
    extent += (size - 1) * strideBytes;
  }
}

/** No two buffers share a byte: what is written through one would be read through the other. */
function checkBuffersApart({ kv, ssm }: EngineContext): void {
  const named: [string, BufferGeometry][] = kv.buffers.map((buffer, index) => [`engine.kv.buffers[${index}]`, buffer]);
  if (ssm !== null && ssm.layout.numLayers > 0)
    named.push(['engine.ssm.conv', ssm.conv], ['engine.ssm.recurrent', ssm.recurrent]);
  const shapes = named.map(([, buffer]) => shapeOf(buffer));
  for (let later = 1; later < shapes.length; later += 1) {
    for (let earlier = 0; earlier < later; earlier += 1) {
      const [a, b] = [shapes[earlier]!, shapes[later]!];
      if (a.region !== b.region || decideMeeting(a, b, { left: pairStepsMax }) !== 'meet') continue;
      throw invalid(named[later]![0], `bytes that ${named[earlier]![0]} does not have`, named[later]![1].offsetBytes);
    }
  }
}

function shapeOf({ region, offsetBytes, elementBytes, axes }: BufferGeometry): Shape {
  const turning = axes.filter(({ size }) => size > 1).sort((a, b) => b.strideBytes - a.strideBytes);
  return {
    ...{ rectangle: 0, region, base: offsetBytes, fragmentBytes: elementBytes, rows: null },
    extent: turning.reduce((bytes, { size, strideBytes }) => bytes + (size - 1) * strideBytes, elementBytes),
    axes: turning.map(({ size, strideBytes }) => ({ stride: strideBytes, count: size, column: null })),
  };
}

function requireAxis(path: string, buffer: BufferGeometry, name: AxisName, size: number): void {
  const found = axis(buffer, name);
  if (found?.size !== size) throw invalid(`${path}.axes.${name}.size`, String(size), found?.size);
}

function axis(buffer: BufferGeometry, name: AxisName): BufferGeometry['axes'][number] | undefined {
  return buffer.axes.find((each) => each.name === name);
}

function requireCount(path: string, value: unknown, minimum: number): void {
  if (!Number.isSafeInteger(value) || (value as number) < minimum) {
    throw invalid(path, `an integer of at least ${minimum}`, value);
  }
}

function invalid(path: string, expected: string, got: unknown): HandoffError {
  return argumentError(path, expected, got, 'ENGINE_CONTEXT_INVALID');
}

/** Blocks that requests can have: all but the dummy block. @throws `ENGINE_CONTEXT_INVALID` */
export function usableBlocks(engine: EngineContext): number {
  const poolSize = (engine as Partial<EngineContext> | null)?.blocks?.poolSize;
  if (!Number.isSafeInteger(poolSize) || (poolSize as number) < 2)
    throw argumentError(
      'engine.blocks.poolSize',
      'at least 2 blocks, the dummy block included',
      poolSize,
      'ENGINE_CONTEXT_INVALID',
    );
  return (poolSize as number) - 1;
}
