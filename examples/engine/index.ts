/**
 * The reference engine's public face. A whole engine on one rank:
 *
 *     const model = smallModel('hybrid', { numSpeculativeTokens: 2 });
 *     const memory = nativeMemory({ model, blockSize: 16, poolSize: 256, maxRequests: 8 });
 *     const engine = new Engine({ role: 'prefill', model, memory, maxRequests: 8, maxSequenceLength: 2048 });
 *     void engine.addRequest({ requestId: 1, prompt: encode(text), samplingParams: { do_kv_handoff: true } });
 *     while (engine.hasWork) {
 *       engine.step();
 *       for (const prefill of engine.takeFinishedPrefills()) handOn(prefill); // pin its blocks, take its slot
 *       engine.cleanupFinished();
 *     }
 */
export { smallModel, modelIdentity, type LayerConfig, type ModelConfig, type ModelKind } from './config.js';
export { Engine, type EngineOptions, type EngineRole, type HandoffSink, type TokenEvent } from './engine.js';
export { EngineMemory, type EngineMemoryOptions } from './engine-memory.js';
export type { FinishedPrefill } from './finished-prefills.js';
export { nativeMemory, type NativeMemoryOptions } from './native-memory.js';
export { rankSlice, singleRank, type Parallelism, type RankSlice } from './rank-slice.js';
export type { FinishedExtra } from './request.js';
export { bytesOf, decode, encode, specialTokens, vocabSize } from './tokenizer.js';
