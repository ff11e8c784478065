/** The reference engine's public face. */
export { smallModel, modelIdentity, type LayerConfig, type ModelConfig, type ModelKind } from './config.js';
export { Engine, type EngineOptions, type EngineRole, type HandoffSink, type TokenEvent } from './engine.js';
export { EngineMemory, type EngineMemoryOptions } from './engine-memory.js';
export type { FinishedPrefill } from './finished-prefills.js';
export { nativeMemory, type NativeMemoryOptions } from './native-memory.js';
export { rankSlice, singleRank, type Parallelism, type RankSlice } from './rank-slice.js';
export type { FinishedExtra } from './request.js';
export { bytesOf, decode, encode, specialTokens, vocabSize } from './tokenizer.js';
