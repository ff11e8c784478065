/** What readers of a prefill engine's state depend on: a block that gets another owner is another generation in the next ticket. */
import { decodeTicket, encodeTicket, StateHandoff, type Ticket } from 'state-handoff';
import { engineOptions } from '../../examples/llama/engine-setting.js';
import { LlamaPrefillEngine } from '../../examples/llama/prefill-engine.js';
import { loadedModel, promptOf, settingOf } from '../support/llama-pair.js';

/** Generation of each of a ticket's blocks. */
function generationsOf(ticket: Ticket): Map<number, bigint> {
  const { blockIds, kvMeta } = decodeTicket(encodeTicket(ticket));
  const generations = (kvMeta['handoff'] as { block_generations: Iterable<bigint> }).block_generations;
  return new Map([...generations].map((generation, index) => [blockIds[index]!, generation]));
}

test('blocks that are reused for another prompt, and those that are not, are told apart in the tickets', async () => {
  const llama = await loadedModel();
  const engine = new LlamaPrefillEngine(engineOptions(await settingOf({ blocks: 4 })));
  const handoff = new StateHandoff(engine);
  engine.attachHandoff(handoff);
  await handoff.setupKvTransfer('prefill', 'host');
  const tickets: Map<number, bigint>[] = [];
  // Three blocks in all, and each prompt needs all three; the last one is the one before again.
  for (const [index, word] of ['A ', 'B ', 'B '].entries()) {
    const { ticket } = await engine.prefill(`r${index}`, promptOf(llama, 48, word));
    tickets.push(generationsOf(ticket));
    expect(handoff.releaseHandoffBlocks(`r${index}`)).toBe(true);
  }
  const [first, other, again] = tickets as [Map<number, bigint>, Map<number, bigint>, Map<number, bigint>];
  expect([...other.keys()].sort()).toEqual([...first.keys()].sort());
  for (const [block, generation] of other) expect(generation).toBeGreaterThan(first.get(block)!);
  expect(again).toEqual(other);
  await handoff.close();
  engine.close();
});
