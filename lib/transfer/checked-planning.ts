/**
 * Planning as an engine's author or a tool calls it: what comes in is checked field by field, and then planned as the
 * SDK plans for itself. Inside the SDK layouts, buffers and programs were checked when they came; nothing there calls
 * these.
 */
import { requireList, requireObject, requireText } from '../argument-shape.js';
import { argumentError } from '../errors.js';
import { requireGeometry, type AxisName, type BufferGeometry } from '../memory/axes-geometry.js';
import { requireInteger } from '../memory/integer-field.js';
import { requireKvLayout, type KvLayout } from '../memory/kv-layout.js';
import { requireSsmLayout, type SsmLayout } from '../memory/ssm-layout.js';
import * as program from './copy-program.js';
import type { CopyProgram } from './copy-program.js';
import * as kv from './plan-kv.js';
import type { KvEndpoint, KvTransfer } from './plan-kv.js';
import * as ssm from './plan-ssm.js';
import type { SsmEndpoint, SsmTransfer } from './plan-ssm.js';
import * as descriptors from './program-descriptors.js';
import type { DescriptorList, DescriptorOrder } from './program-descriptors.js';
import { checkValues } from './program-values.js';
import * as rectangle from './rectangle.js';
import type { AxisRange, RectangleOptions, RectangleTemplate } from './rectangle.js';

/**
 * The program in words, for logs and for people: one sentence a rectangle, the first three of them.
 *
 * @throws `ARGUMENT_INVALID` naming the value that no program has
 */
export function describeProgram(given: CopyProgram): string {
  checkValues(given);
  return program.describe(given);
}

/**
 * Bytes that a program moves.
 *
 * @throws `ARGUMENT_INVALID` naming the value that no program has
 */
export function programBytes(given: CopyProgram): number {
  checkValues(given);
  return program.programBytes(given);
}

/**
 * The lists of one (source rank, target rank) pair, rectangles in the order of the program (spec 7.3, 7.4).
 *
 * `nixl`: one list a rectangle, or one for each turn of its label's `requests` loop; inside, rows of the table first.
 * `nccl`: one list for each row, SSM state one for each layer and row.
 *
 * @throws `ARGUMENT_INVALID` for a value that no program has, for a row or a table that does not exist
 */
export function lowerToDescriptors(given: CopyProgram, order: DescriptorOrder): DescriptorList[] {
  checkValues(given);
  if (order !== 'nixl' && order !== 'nccl') throw argumentError('order', '"nixl" or "nccl"', order);
  return descriptors.lowerToDescriptors(given, order);
}

/**
 * The whole plan between two instances: targets in the order of their list, for each the sources in the order of
 * theirs, each pair at most once (spec 7.1).
 *
 * @throws `ARGUMENT_INVALID` naming the field; `INCOMPATIBLE` when two of the layouts describe different models
 */
export function planKvReshard(sources: readonly KvLayout[], targets: readonly KvLayout[]): readonly KvTransfer[] {
  for (const [path, layouts] of Object.entries({ sources, targets })) {
    requireList(path, layouts, 'a list of layouts');
    layouts.forEach((layout, index) => requireKvLayout(`${path}[${index}]`, layout));
  }
  return kv.planKvReshard(sources, targets);
}

/**
 * Rectangles from `source` to `target`, one for each pair of buffers that overlap; empty when the ranks share nothing.
 *
 * @throws `ARGUMENT_INVALID` naming the field; `INCOMPATIBLE` when the two describe different models
 */
export function planKv(source: KvEndpoint, target: KvEndpoint): readonly RectangleTemplate[] {
  for (const [path, endpoint] of Object.entries({ source, target })) {
    requireObject(path, endpoint);
    const { layout, buffers, layerStarts } = endpoint;
    requireKvLayout(`${path}.layout`, layout);
    requireList(`${path}.buffers`, buffers, 'a list of buffers');
    buffers.forEach((buffer, index) => requireGeometry(`${path}.buffers[${index}]`, buffer));
    requireList(`${path}.layerStarts`, layerStarts);
    if (layerStarts.length !== buffers.length) {
      throw argumentError(`${path}.layerStarts`, `one layer for each of ${buffers.length} buffers`, layerStarts);
    }
    layerStarts.forEach((layer, index) => requireInteger(`${path}.layerStarts[${index}]`, layer, 0));
  }
  return kv.planKv(source, target);
}

/**
 * The whole plan between two instances: sources in the order of their list, for each the targets in the order of
 * theirs, bands x, B, C, recurrent (spec 7.2). The reference has one entry a layer; here a range of layers is one.
 *
 * @throws `ARGUMENT_INVALID` naming the field; `INCOMPATIBLE` when two of the layouts describe different models
 */
export function planSsmReshard(sources: readonly SsmLayout[], targets: readonly SsmLayout[]): readonly SsmTransfer[] {
  for (const [path, layouts] of Object.entries({ sources, targets })) {
    requireList(path, layouts, 'a list of layouts');
    layouts.forEach((layout, index) => requireSsmLayout(`${path}[${index}]`, layout));
  }
  return ssm.planSsmReshard(sources, targets);
}

/**
 * Rectangles of conv and recurrent state from `source` to `target`; empty when the ranks share nothing.
 *
 * @throws `ARGUMENT_INVALID` naming the field; `INCOMPATIBLE` when the two describe different models
 */
export function planSsm(source: SsmEndpoint, target: SsmEndpoint): readonly RectangleTemplate[] {
  for (const [path, endpoint] of Object.entries({ source, target })) {
    requireObject(path, endpoint);
    requireSsmLayout(`${path}.layout`, endpoint.layout);
    requireGeometry(`${path}.conv`, endpoint.conv);
    requireGeometry(`${path}.recurrent`, endpoint.recurrent);
  }
  return ssm.planSsm(source, target);
}

/**
 * The rectangle that copies `ranges` of the axes they name, and every other axis whole, except `tableAxis`, over which
 * the block table runs. An axis that one side leaves out has one index there.
 *
 * @throws `ARGUMENT_INVALID` naming the field; `INCOMPATIBLE` naming the axis when the two buffers do not have the same
 *   axes, sizes or element size
 */
export function rectangleBetween(
  source: BufferGeometry,
  target: BufferGeometry,
  ranges: Readonly<Partial<Record<AxisName, AxisRange>>>,
  tableAxis: AxisName,
  options: RectangleOptions = {},
): RectangleTemplate {
  requireGeometry('source', source);
  requireGeometry('target', target);
  requireObject('ranges', ranges);
  for (const [axis, range] of Object.entries(ranges)) {
    requireObject(`ranges.${axis}`, range);
    requireInteger(`ranges.${axis}.source`, range.source, 0);
    requireInteger(`ranges.${axis}.target`, range.target, 0);
    requireInteger(`ranges.${axis}.count`, range.count, 1);
  }
  requireText('tableAxis', tableAxis);
  requireObject('options', options);
  if ((options.unit ?? null) !== null) {
    requireObject('options.unit', options.unit);
    requireText('options.unit.axis', options.unit?.axis);
    requireInteger('options.unit.count', options.unit?.count, 1);
  }
  if ((options.apart ?? null) !== null) requireText('options.apart', options.apart);
  if (options.label !== undefined) requireObject('options.label', options.label);
  return rectangle.rectangleBetween(source, target, ranges, tableAxis, options);
}
