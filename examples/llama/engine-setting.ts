/** From a worker's setting to what its engine is made from. */
import { createHash } from 'node:crypto';
import type { EngineOptions } from './engine-options.js';
import { loadModel } from './llama.js';
import type { EngineSetting } from './messages.js';

/** Loads the model. @throws Error when it does not load */
export function engineOptions(setting: EngineSetting): EngineOptions {
  const { libraryFolder, modelFile, model, dtype, blockTokens, blocks, lanes, shared, maxSequenceLength, chunk } =
    setting;
  const llama = loadModel(libraryFolder, modelFile);
  return { llama, model, dtype, blockTokens, blocks, lanes, shared, maxSequenceLength, chunk };
}

/** For the way to a coordinator: a busy machine may take its time. */
export const connectMs = 60_000;

/** Equal digests mean equal bits. */
export function digestOf(logits: Float32Array): string {
  return createHash('sha256')
    .update(new Uint8Array(logits.buffer, logits.byteOffset, logits.byteLength))
    .digest('hex');
}

/** Of this process, after its garbage was collected where Node lets us (`--expose-gc`). */
export function residentBytes(): number {
  globalThis.gc?.();
  return process.memoryUsage.rss();
}
