/**
 * What an engine's memory must be like: layouts whose numbers agree, buffers that hold all of them, each byte once.
 * Layouts are plain objects that users write by hand, so nothing here trusts their makers. Every refusal names the field.
 */
import type { EngineContext } from '../engine-context.js';
import { argumentError, HandoffError, isHandoffError } from '../errors.js';
import { defaultTicketLimits, elementBytesMax } from '../limits.js';
import {
  axisSize,
  defaultContent,
  requireGeometry,
  type AxisName,
  type BufferGeometry,
} from '../memory/axes-geometry.js';
import { ownedHeads, ownedLayers, requireKvLayout } from '../memory/kv-layout.js';
import { layerCoverFault } from '../memory/layer-cover.js';
import { requireSsmLayout } from '../memory/ssm-layout.js';
import { decideMeeting, pairStepsMax } from '../transfer/program-overlap.js';
import type { Shape } from '../transfer/program-shape.js';

const { nameLengthMax } = defaultTicketLimits;

/** K and V. */
const planesMax = 2;

/** @throws `ENGINE_CONTEXT_INVALID` */
export function checkBuffers(context: EngineContext): void {
  inContext(() => requireKvLayout('engine.kv.layout', context.kv.layout));
  for (const list of ['buffers', 'layerStarts'] as const) {
    if (!Array.isArray(context.kv[list])) throw invalid(`engine.kv.${list}`, 'a list', context.kv[list]);
  }
  checkKv(context);
  checkSsm(context);
  checkBuffersApart(context);
}

function checkKv({ kv, blocks, blockSize, regions }: EngineContext): void {
  const { layout } = kv;
  if (kv.buffers.length !== kv.layerStarts.length) {
    throw invalid('engine.kv.layerStarts', `one entry for each of ${kv.buffers.length} buffers`, kv.layerStarts);
  }
  const { numKvHeadsGlobal, tpSize } = layout;
  if (numKvHeadsGlobal % tpSize !== 0 && tpSize % numKvHeadsGlobal !== 0) {
    throw invalid('engine.kv.layout.numKvHeadsGlobal', `a multiple or a divisor of tpSize ${tpSize}`, numKvHeadsGlobal);
  }
  const heads = ownedHeads(layout);
  for (const [index, buffer] of kv.buffers.entries()) {
    const path = `engine.kv.buffers[${index}]`;
    checkBuffer(path, buffer, regions);
    const isData = (buffer.content ?? defaultContent) === defaultContent;
    requireAxis(path, buffer, 'block', blocks.poolSize);
    if (isData || axisSize(buffer, 'token') !== 1) requireSize(path, buffer, 'token', blockSize);
    if (isData || axis(buffer, 'head') !== undefined) requireSize(path, buffer, 'head', heads.to - heads.from);
    if (isData) requireSize(path, buffer, 'dim', layout.headDim);
    const planes = (buffer.planeStart ?? 0) + axisSize(buffer, 'plane');
    if (planes > planesMax) throw invalid(`${path}.planeStart`, `at most ${planesMax} planes, K and V`, planes);
  }
  const fault = layerCoverFault(kv.buffers, kv.layerStarts, ownedLayers(layout));
  if (fault !== null) throw invalid(`engine.kv.${fault.field}`, fault.expected, fault.got);
}

function checkSsm({ kv, ssm, regions }: EngineContext): void {
  if (ssm === null) return;
  inContext(() => requireSsmLayout('engine.ssm.layout', ssm.layout));
  for (const field of ['nheads', 'ngroups'] as const) {
    const { tpSize, dims } = ssm.layout;
    if (dims[field] % tpSize !== 0)
      throw invalid(`engine.ssm.layout.dims.${field}`, `a multiple of tpSize ${tpSize}`, dims[field]);
  }
  const { globalRank } = kv.layout;
  if (ssm.layout.globalRank !== globalRank)
    throw invalid('engine.ssm.layout.globalRank', `${globalRank}, as in engine.kv.layout`, ssm.layout.globalRank);
  const { dims, tpSize, numLayers } = ssm.layout;
  if (numLayers === 0) return;
  for (const name of ['conv', 'recurrent'] as const) {
    const path = `engine.ssm.${name}`;
    checkBuffer(path, ssm[name], regions);
    requireAxis(path, ssm[name], 'slot', ssm.physicalSlots);
    requireSize(path, ssm[name], 'layer', numLayers);
  }
  requireSize(
    'engine.ssm.conv',
    ssm.conv,
    'channel',
    (dims.nheads * dims.headdim + 2 * dims.ngroups * dims.dState) / tpSize,
  );
  requireSize('engine.ssm.recurrent', ssm.recurrent, 'head', dims.nheads / tpSize);
}

function checkBuffer(path: string, buffer: BufferGeometry, regions: EngineContext['regions']): void {
  inContext(() => requireGeometry(path, buffer));
  const { content } = buffer;
  if (content !== undefined && (content.length < 1 || content.length > nameLengthMax))
    throw invalid(`${path}.content`, `a name of 1 to ${nameLengthMax} characters`, content);
  if (buffer.elementBytes > elementBytesMax)
    throw invalid(`${path}.elementBytes`, `at most ${elementBytesMax}`, buffer.elementBytes);
  const region = regions[buffer.region];
  if (region === undefined) throw invalid(`${path}.region`, `an index below ${regions.length}`, buffer.region);
  let end = buffer.offsetBytes + buffer.elementBytes;
  const seen = new Set<AxisName>();
  for (const { name, size, strideBytes } of buffer.axes) {
    if (seen.has(name)) throw invalid(`${path}.axes`, 'each axis once', name);
    seen.add(name);
    if (strideBytes < 1) throw invalid(`${path}.axes.${name}.strideBytes`, 'an integer of at least 1', strideBytes);
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

/** One that is left out has one index. */
function requireSize(path: string, buffer: BufferGeometry, name: AxisName, size: number): void {
  const found = axisSize(buffer, name);
  if (found !== size) throw invalid(`${path}.axes.${name}.size`, String(size), found);
}

/** One that tables run over is there, whatever its size. */
function requireAxis(path: string, buffer: BufferGeometry, name: AxisName, size: number): void {
  const found = axis(buffer, name);
  if (found?.size !== size) throw invalid(`${path}.axes.${name}.size`, String(size), found?.size);
}

function axis(buffer: BufferGeometry, name: AxisName): BufferGeometry['axes'][number] | undefined {
  return buffer.axes.find((each) => each.name === name);
}

/** What is wrong with a field is wrong with the engine. */
function inContext(check: () => void): void {
  try {
    check();
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    throw new HandoffError('ENGINE_CONTEXT_INVALID', error.message, { details: error.details, cause: error });
  }
}

function invalid(path: string, expected: string, got: unknown): HandoffError {
  return argumentError(path, expected, got, 'ENGINE_CONTEXT_INVALID');
}
