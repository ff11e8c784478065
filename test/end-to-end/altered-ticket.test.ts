/** A ticket that lost its generations on the way is refused: it would read memory that somebody else owns by now. */
import { StateHandoff } from 'state-handoff';
import { Engine, encode, nativeMemory, smallModel } from '../../examples/engine/index.js';

function engine(role: 'prefill' | 'decode'): Engine {
  const model = smallModel('attention');
  const memory = nativeMemory({ model, blockSize: 4, poolSize: 64, maxRequests: 4 });
  return new Engine({ role, model, memory, maxRequests: 4, maxSequenceLength: 200 });
}

test.each(['block_generations', 'handoff'])('without its %s no byte is read', async (stripped) => {
  const [source, target] = [engine('prefill'), engine('decode')];
  const [prefill, decode] = [new StateHandoff(source), new StateHandoff(target)];
  source.attachHandoff(prefill);
  target.attachHandoff(decode);
  await prefill.setupKvTransfer('prefill');
  await decode.setupKvTransfer('decode');
  const prompt = Int32Array.from(encode('some words'));
  void source.addRequest({ requestId: 1, prompt, samplingParams: { do_kv_handoff: true } });
  let taken = source.takeFinishedPrefills();
  while (taken.length === 0) {
    source.step();
    taken = source.takeFinishedPrefills();
  }
  const [finished] = taken;
  const prepared = prefill.prepareHandoffMetadataBatch([
    { ...finished!, promptTokens: prompt.length, doKvHandoff: true, returnLogProbs: false },
  ]);
  const ticket = prefill.captureHandoffMeta(1, prepared);
  source.cleanupFinished();
  const handoff = { ...(ticket.kvMeta['handoff'] as object), block_generations: null };
  const kvMeta = { ...ticket.kvMeta, handoff: stripped === 'handoff' ? null : handoff };
  const result = decode.addRequestWithKvHandoff(1, prompt, { num_tokens_to_generate: 4 }, kvMeta, ticket.blockIds);
  const ended = expect(result).rejects.toMatchObject({
    code: 'PEER_REFUSED',
    message: expect.stringContaining('generations'),
  });
  for (const started = Date.now(); decode.pendingKvImportCount > 0 && Date.now() - started < 30_000;) {
    decode.pollPendingKvImports();
    await new Promise((resolve) => setImmediate(resolve));
  }
  await ended;
  expect(decode.load().blocksFree).toBe(63);
  prefill.releaseHandoffBlocks(1);
  await decode.close();
  await prefill.close();
});
