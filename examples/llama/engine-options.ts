/** What both engines of the example are made from. */
import type { LanesOptions } from './lanes.js';
import type { LlamaModel } from './llama.js';

export interface EngineOptions extends LanesOptions {
  readonly llama: LlamaModel;
  /** Identity of the model: two engines work together only if it is the same. */
  readonly model: string;
  readonly blockTokens: number;
  /** Blocks of registered memory, the dummy block included. */
  readonly blocks: number;
}
