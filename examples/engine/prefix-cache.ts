/**
 * Which blocks of a prompt are in the pool already, and which computed ones are offered to later prompts. Either role;
 * without prefix caching it finds and offers nothing.
 */
import type { BlockAllocator } from 'state-handoff';
import type { EngineMemory } from './engine-memory.js';
import type { Request } from './request.js';

export class PrefixCache {
  private readonly blocks: BlockAllocator;
  private readonly blockSize: number;

  constructor(private readonly memory: EngineMemory) {
    this.blocks = memory.blocks;
    this.blockSize = memory.blockSize;
  }

  hashPrompt(prompt: Int32Array, salt: string | null): BigInt64Array {
    if (!this.blocks.prefixCaching) return new BigInt64Array(0);
    return this.memory.hashBlocks(prompt, this.blockSize, salt);
  }

  /**
   * Leading blocks of the prompt that need not be computed; nobody's reference is taken. The last token is always
   * computed, for its logits. SSM state cannot start in the middle of a prompt without a snapshot of it there, and this
   * engine keeps none: a hybrid model computes its whole prompt.
   */
  find(request: Request): Int32Array {
    if (this.memory.ssm !== null) return new Int32Array(0);
    const reusable = Math.floor((request.prompt.length - 1) / this.blockSize);
    return this.blocks.matchPrefix(request.hashes.subarray(0, reusable));
  }

  /**
   * Names the blocks that `request` has completed since the last time. Where another block has the same name already,
   * its content is the same to the bit: the request takes that block and gives its own back. So the parent of a named
   * block is always held by whoever holds the block, and a cached block without references can always be evicted.
   */
  offer(request: Request): void {
    const complete = Math.min(request.hashes.length, Math.floor(request.computed / this.blockSize));
    const from = request.registered;
    if (complete <= from) return;
    const parents = new BigInt64Array(complete - from);
    for (let i = from; i < complete; i++) {
      parents[i - from] = i === 0 ? 0n : request.hashes[i - 1]!;
      const own = request.blocks[i]!;
      const holder = this.blocks.lookup(request.hashes[i]!);
      if (holder < 0 || holder === own) continue;
      this.blocks.retain(Int32Array.of(holder));
      this.blocks.release(Int32Array.of(own));
      request.blocks[i] = holder;
    }
    this.blocks.register(request.blocks.slice(from, complete), request.hashes.slice(from, complete), parents);
    request.registered = complete;
  }
}
