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
 *
 * One rank of several, in a process of its own:
 *
 *     const links = await openRankLinks(rankShape({ tp: 2, pp: 2 }), rank, worldName, secret);
 *     const slice = rankSlice(model, links.place.parallelism);
 *     const engine = new Engine({ ...options, memory: nativeMemory({ ...sizes, model, slice }), ranks: links });
 *     const loop = new RankLoop({ engine, handoff, place: links.place, peers: links.peers, onTicket });
 *     await runTurns(loop, handoff, links.wakeUp, links.place.isLeader); // the leader submits and ends
 */
export { smallModel, modelIdentity, type LayerConfig, type ModelConfig, type ModelKind } from './config.js';
export { CudaEngine, cudaMemory, type CudaEngineMemory } from './cuda-memory.js';
export { Engine, type EngineOptions, type EngineRole, type HandoffSink, type TokenEvent } from './engine.js';
export { EngineMemory, type EngineMemoryOptions } from './engine-memory.js';
export type { FinishedPrefill } from './finished-prefills.js';
export { nativeMemory, type NativeMemoryOptions } from './native-memory.js';
export { RankLoop, type RankLoopOptions, type TurnOutcome } from './rank-loop.js';
export { openRankLinks, type RankLinks } from './rank-links.js';
export { RankPlace, rankShape, type RankShape } from './rank-place.js';
export { rankSlice, singleRank, type Parallelism, type RankSlice } from './rank-slice.js';
export type { FinishedExtra } from './request.js';
export { runTurns } from './turn-runner.js';
export { bytesOf, decode, encode, specialTokens, vocabSize } from './tokenizer.js';
