/** Both engines of the llama.cpp example in one process, handing over through host memory; they end with the test. */
import { decodeTicket, encodeTicket, StateHandoff, type Finished } from 'state-handoff';
import { LlamaDecodeEngine } from '../../examples/llama/decode-engine.js';
import { engineOptions } from '../../examples/llama/engine-setting.js';
import type { EngineSetting } from '../../examples/llama/messages.js';
import { LlamaPrefillEngine } from '../../examples/llama/prefill-engine.js';

const opened: LlamaEngines[] = [];
afterEach(async () => {
  for (const engines of opened.splice(0)) await engines.close();
});

export class LlamaEngines {
  readonly source: StateHandoff;
  readonly target: StateHandoff;

  private constructor(
    readonly prefill: LlamaPrefillEngine,
    readonly decode: LlamaDecodeEngine,
  ) {
    [this.source, this.target] = [new StateHandoff(prefill), new StateHandoff(decode)];
  }

  /** @param loadBlocksMax - blocks that decode puts into a lane at a step */
  static async open(prefill: EngineSetting, decode: EngineSetting, loadBlocksMax: number): Promise<LlamaEngines> {
    const engines = new LlamaEngines(
      new LlamaPrefillEngine(engineOptions(prefill)),
      new LlamaDecodeEngine({
        ...engineOptions(decode),
        loadBlocksMax,
        onToken: () => undefined,
        onOperation: null,
      }),
    );
    opened.push(engines);
    const { source, target } = engines;
    engines.prefill.attachHandoff(source);
    engines.decode.attachHandoff(target);
    await source.setupKvTransfer('prefill', 'host');
    await target.setupKvTransfer('decode', 'host');
    target.on('kvReadDone', (notice) => source.releaseHandoffBlocks(notice.source!));
    return engines;
  }

  /** Prefills a prompt and gives its ticket to decode; what becomes of it there. */
  async handOver(id: string, prompt: Int32Array, limit: number): Promise<{ readonly result: Promise<Finished> }> {
    const { ticket } = await this.prefill.prefill(id, prompt);
    const { kvMeta, blockIds } = decodeTicket(encodeTicket(ticket));
    const sampling = { num_tokens_to_generate: limit };
    return { result: this.target.addRequestWithKvHandoff(id, prompt, sampling, kvMeta, blockIds) };
  }

  async close(): Promise<void> {
    await this.source.close();
    await this.target.close();
    this.prefill.close();
    this.decode.close();
  }
}
