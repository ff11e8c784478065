/**
 * What an engine must be like before anything is built on it: its sizes, names and methods here, its memory in
 * `check-buffers.ts`. Every refusal names the field.
 */
import type { EngineContext } from '../engine-context.js';
import { argumentError, HandoffError } from '../errors.js';
import { defaultTicketLimits } from '../limits.js';
import { checkBuffers } from './check-buffers.js';

/** What an engine does in a handoff. */
export type Role = 'prefill' | 'decode';

const { nameLengthMax } = defaultTicketLimits;

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
  if (!Array.isArray(context.regions)) throw invalid('engine.regions', 'a list', context.regions);
  if (!context.blocks.prefixCaching) {
    throw new HandoffError(
      'PREFIX_CACHING_REQUIRED',
      'engine.blocks: handoffs need an allocator with prefix caching; turn it on',
    );
  }
  checkSlots(context, role);
  checkBuffers(context);
  if (role !== 'decode') return;
  if (typeof (context.growsInBlocks ?? true) !== 'boolean')
    throw invalid('engine.growsInBlocks', 'true, false or nothing', context.growsInBlocks);
  for (const method of decodeMethods) {
    if (typeof context[method] !== 'function') throw invalid(`engine.${method}`, 'a method', context[method]);
  }
}

function checkSlots({ ssm, slots, maxRequests, hasSsmSnapshotCache }: EngineContext, role: Role): void {
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
  if (slots.size > ssm.physicalSlots)
    throw invalid('engine.ssm.physicalSlots', `at least the pool's ${slots.size} slots`, ssm.physicalSlots);
  if (slots.size < maxRequests) throw invalid('engine.slots.size', `at least maxRequests, ${maxRequests}`, slots.size);
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
