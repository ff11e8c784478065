/**
 * A handoff between two engines over NIXL: what decode generates is what one engine alone generates, and the source keeps
 * its pin until the control plane releases it: that the bytes were read, which NIXL could tell, releases nothing.
 */
import { decodeTicket, encodeTicket, StateHandoff, type Finished, type HandoffRef } from 'state-handoff';
import { Engine, encode, nativeMemory, smallModel, type EngineRole } from '../../examples/engine/index.js';
import { NixlTransport } from '../../lib/transfer/transports/nixl.js';
import { layoutCases } from '../support/layout-cases.js';
import { runLayoutCase } from '../support/layout-handoff.js';
import { nixlMissing } from '../support/nixl-fixture.js';
import { describeOptional } from '../support/optional.js';

function engine(role: EngineRole): Engine {
  const model = smallModel('hybrid');
  const memory = nativeMemory({ model, blockSize: 4, poolSize: 64, maxRequests: 4 });
  return new Engine({ role, model, memory, maxRequests: 4, maxSequenceLength: 200, prefillChunk: 8 });
}

describeOptional('nixl', nixlMissing(), 'a handoff over NIXL', () => {
  test('continues as without one, and ends its pin by a release and nothing else', async () => {
    const prompt = Int32Array.from(encode('The quick brown fox jumps over the lazy dog.'));
    const samplingParams = { num_tokens_to_generate: 12 };
    const [prefillEngine, decodeEngine, single] = [engine('prefill'), engine('decode'), engine('both')];
    const prefill = new StateHandoff(prefillEngine);
    const decode = new StateHandoff(decodeEngine);
    prefillEngine.attachHandoff(prefill);
    decodeEngine.attachHandoff(decode);
    await prefill.setupKvTransfer('prefill', 'nixl');
    await decode.setupKvTransfer('decode', ['nixl', 'host']);
    const read: HandoffRef[] = [];
    decode.on('kvReadDone', ({ source }) => read.push(source!));

    void prefillEngine.addRequest({
      requestId: 7,
      prompt,
      samplingParams: { ...samplingParams, do_kv_handoff: true },
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
    const result = decode.addRequestWithKvHandoff(7, prompt, samplingParams, kvMeta, blockIds);
    const movers = new Set<string>();
    let finished: Finished | null = null;
    void result.then((value) => (finished = value));
    for (const started = Date.now(); finished === null && Date.now() - started < 40_000;) {
      for (const { transports } of decode.inspect().imports) for (const name of transports) movers.add(name);
      decode.pollPendingKvImports();
      decode.scheduleWaitingRequests(0);
      decodeEngine.step();
      prefill.pollPendingKvPushes();
      await new Promise((resolve) => setImmediate(resolve));
    }
    const alone = single.addRequest({ requestId: 'alone', prompt, samplingParams });
    while (single.hasWork) single.step();
    expect(finished!.generatedTokens).toEqual((await alone).generatedTokens);
    expect([...movers]).toEqual(['nixl']);

    expect(prefill.inspect().pins).toHaveLength(1);
    expect(read).toHaveLength(1);
    prefill.releaseHandoffBlocks(read[0]!);
    expect(prefill.inspect().pins).toEqual([]);
    await decode.close();
    await prefill.close();
  });

  const cases = layoutCases([
    ['TP4', 'TP2'],
    ['TP1', 'TP2.PP2'],
  ]).filter(({ kind, situation }) => kind === 'hybrid' && situation === 'cached prefix');

  test.each(cases)(
    '$source to $target: every rank gets its part of every slice, packed by several sources',
    async (each) => {
      const outcome = await runLayoutCase(each, (role) => {
        // Everything travels packed, however small.
        return new NixlTransport({ exports: role === 'prefill', packedBytesMin: 0, packPatienceMs: 60_000 });
      });
      expect(outcome.warnings).toEqual([]);
      expect(outcome.bits).toBe(outcome.expected);
      expect(outcome.logProbs).toEqual(outcome.expectedLogProbs);
      expect(outcome.missing).toEqual(outcome.missing.map(() => 0));
    },
  );
});
