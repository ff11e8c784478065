/**
 * A handoff between two engines of one process over the host transport: what decode generates is what one engine alone
 * generates, token for token and logit bit for logit bit.
 */
import { decodeTicket, encodeTicket, StateHandoff, type Finished } from 'state-handoff';
import { Engine, encode, nativeMemory, smallModel, type ModelKind } from '../../examples/engine/index.js';

function engine(role: 'prefill' | 'decode' | 'both', kind: ModelKind, blockSize = 4): Engine {
  const model = smallModel(kind);
  return new Engine({
    role,
    model,
    memory: nativeMemory({ model, blockSize, poolSize: 64, maxRequests: 4 }),
    maxRequests: 4,
    maxSequenceLength: 200,
    recordLogits: true,
    prefillChunk: 8,
  });
}

async function alone(kind: ModelKind, prompt: Int32Array, count: number): Promise<Finished> {
  const single = engine('both', kind);
  const done = single.addRequest({ requestId: 'alone', prompt, samplingParams: { num_tokens_to_generate: count } });
  while (single.hasWork) single.step();
  return done;
}

const tick = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe.each<ModelKind>(['attention', 'hybrid'])('%s model', (kind) => {
  test('continues from the handoff exactly as without one', async () => {
    const prompt = Int32Array.from(encode('The quick brown fox jumps over the lazy dog.'));
    const prefillEngine = engine('prefill', kind);
    const decodeEngine = engine('decode', kind);
    const prefill = new StateHandoff(prefillEngine);
    const decode = new StateHandoff(decodeEngine);
    prefillEngine.attachHandoff(prefill);
    decodeEngine.attachHandoff(decode);
    await prefill.setupKvTransfer('prefill');
    await decode.setupKvTransfer('decode');
    const warnings: unknown[] = [];
    decode.on('warning', (warning) => warnings.push(warning));
    decode.on('kvReadDone', ({ source }) => prefill.releaseHandoffBlocks(source!));

    void prefillEngine.addRequest({
      requestId: 7,
      prompt,
      samplingParams: { do_kv_handoff: true, num_tokens_to_generate: 12 },
    });
    let ticket = '';
    while (prefillEngine.hasWork && ticket === '') {
      prefillEngine.step();
      const finished = prefillEngine.takeFinishedPrefills();
      const prepared = prefill.prepareHandoffMetadataBatch(
        finished.map((each) => ({
          ...each,
          promptTokens: each.prompt.length,
          doKvHandoff: true,
          returnLogProbs: false,
        })),
      );
      for (const each of finished) ticket = encodeTicket(prefill.captureHandoffMeta(each, prepared));
      prefillEngine.cleanupFinished();
    }
    const { kvMeta, blockIds } = decodeTicket(ticket);
    const result = decode.addRequestWithKvHandoff(7, prompt, { num_tokens_to_generate: 12 }, kvMeta, blockIds);
    let finished: Finished | null = null;
    void result.then((value) => (finished = value));
    for (const started = Date.now(); finished === null && Date.now() - started < 30_000;) {
      decode.pollPendingKvImports();
      decode.scheduleWaitingRequests(0);
      decodeEngine.step();
      await tick();
    }
    const expected = await alone(kind, prompt, 12);
    expect(warnings).toEqual([]);
    expect(finished!.generatedTokens).toEqual(expected.generatedTokens);
    expect(prefill.inspect().pins).toEqual([]);
    await decode.close();
    await prefill.close();
  });
});
