/**
 * Promise: what a source has let go of is never delivered, however the rewriting and the reading fall together; a read
 * that comes too late fails with `HANDOFF_EXPIRED` and touches nothing. Real processes; test/cpp has the same hammer with
 * either comparison taken away.
 */
import type { JsonObject } from '../../lib/json.js';
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import type { Region } from '../../lib/memory/region.js';
import { HostTransport } from '../../lib/transfer/transports/host.js';
import type { Peer, SourceGenerations, TransferHandle } from '../../lib/transfer/transport.js';
import { startChild, type Child } from '../support/child-process.js';
import { blockProgram, ended, patientMs, requestOf, settled } from '../support/host-fixture.js';

const count = 12;
const blockBytes = 256 << 10;
const pulled = 4;
const canary = 0xc0ffee00;

interface Ticket {
  readonly generations: BigUint64Array;
  readonly words: readonly number[];
}

let child: Child;
let region: Region;
let words: Uint32Array;
let transport: HostTransport;
let peer: Peer;

async function open(rewritesPerTurn: number): Promise<void> {
  child = startChild('host-rewriter');
  const { grant, detectsLateReads } = await child.ask<{ grant: JsonObject; detectsLateReads: boolean }>('open', {
    ...{ count, blockBytes, rewritesPerTurn },
  });
  expect(detectsLateReads).toBe(true);
  expect(grant).toMatchObject({ block_generations: count, slot_generations: 2 });
  region = allocateHostRegion({ bytes: pulled * blockBytes });
  words = new Uint32Array(region.buffer as ArrayBuffer);
  transport = new HostTransport({ handshakeMs: patientMs });
  transport.register(region);
  peer = await settled(transport.connect(grant));
}

afterEach(async () => {
  await transport.close();
  region.close();
  await child.kill();
});

const targets = Int32Array.from({ length: pulled }, (_, at) => at);

async function pull(ids: Int32Array, claimed: Partial<SourceGenerations>): Promise<TransferHandle> {
  words.fill(canary);
  const generations: SourceGenerations = {
    ...{ blocks: ids, blockGenerations: new BigUint64Array(0), slots: new Int32Array(0) },
    ...{ slotGenerations: new BigUint64Array(0), ...claimed },
  };
  const handle = await ended(transport.begin(requestOf(blockProgram(ids, targets, blockBytes), generations), peer));
  transport.takeChanged();
  return handle;
}

/** How many words are not those of the ticket's blocks. */
function foreign(ticket: Ticket): number {
  const perBlock = blockBytes / 4;
  let wrong = 0;
  for (let at = 0; at < words.length; at += 1) if (words[at] !== ticket.words[(at / perBlock) | 0]) wrong += 1;
  return wrong;
}

function untouched(): boolean {
  for (let at = 0; at < words.length; at += 1) if (words[at] !== canary) return false;
  return true;
}

test('while the source rewrites its blocks, only whole blocks of the ticket are delivered', async () => {
  await open(3);
  const outcomes = { done: 0, expired: 0 };
  for (let round = 0; round < 400 || outcomes.done < 20 || outcomes.expired < 20; round += 1) {
    const ids = Int32Array.from({ length: pulled }, (_, at) => (round * 5 + at * 3) % count);
    const ticket = await child.ask<Ticket>('ticket', { ids });
    const handle = await pull(ids, { blockGenerations: ticket.generations });
    if (handle.poll() === 'done') {
      outcomes.done += 1;
      expect(foreign(ticket)).toBe(0);
    } else {
      outcomes.expired += 1;
      expect(handle.error).toMatchObject({ code: 'HANDOFF_EXPIRED', retryable: true, targetSafe: true });
      expect(handle.bytesDone).toBe(0);
    }
  }
}, 120_000);

test('what was released, reused and rewritten before the read began is refused, with the target untouched', async () => {
  await open(0);
  const ids = Int32Array.of(3, 1, 4, 2);
  const ticket = await child.ask<Ticket>('ticket', { ids });
  const good = await pull(ids, { blockGenerations: ticket.generations });
  expect(good).toMatchObject({ error: null, bytesDone: pulled * blockBytes });
  expect(foreign(ticket)).toBe(0);

  await child.ask('advance', { ids: [4] });
  const late = await pull(ids, { blockGenerations: ticket.generations });
  expect(late.poll()).toBe('failed-quiet');
  expect(late.error).toMatchObject({
    code: 'HANDOFF_EXPIRED',
    message:
      'the source let go of what this handoff reads before it was copied (generations.blocks[2], id 4, generation 1, ' +
      'now 2); compute the prompt again',
  });
  expect(untouched()).toBe(true);
});

test('slots expire like blocks', async () => {
  await open(0);
  const ids = Int32Array.of(0, 1, 2, 3);
  const { generations } = await child.ask<Ticket>('ticket', { ids });
  const claimed = { blockGenerations: generations, slots: Int32Array.of(1), slotGenerations: BigUint64Array.of(1n) };
  expect((await pull(ids, claimed)).poll()).toBe('done');
  await child.ask('advanceSlot', { slot: 1 });
  const late = await pull(ids, claimed);
  expect(late.error).toMatchObject({
    code: 'HANDOFF_EXPIRED',
    message: expect.stringContaining('generations.slots[0]'),
  });
  expect(untouched()).toBe(true);
});

test.each([
  ['a block beyond the table', { blocks: Int32Array.of(count), blockGenerations: BigUint64Array.of(1n) }],
  ['a negative block', { blocks: Int32Array.of(-1), blockGenerations: BigUint64Array.of(1n) }],
  ['a slot beyond the table', { slots: Int32Array.of(2), slotGenerations: BigUint64Array.of(1n) }],
])('%s is refused, with the target untouched', async (_, claimed) => {
  await open(0);
  const none = { blocks: new Int32Array(0), blockGenerations: new BigUint64Array(0) };
  const handle = await pull(Int32Array.of(0, 1, 2, 3), { ...none, ...claimed });
  expect(handle.error).toMatchObject({
    code: 'ARGUMENT_INVALID',
    message: expect.stringMatching(/expected an id below/),
  });
  expect(untouched()).toBe(true);
});

test('a ticket with more blocks than generations is a mistake of the caller', async () => {
  await open(0);
  await expect(pull(Int32Array.of(0, 1, 2, 3), { blockGenerations: BigUint64Array.of(1n) })).rejects.toMatchObject({
    code: 'ARGUMENT_INVALID',
    message: 'generations.blockGenerations: expected 4 values, one an id, got 1',
  });
});
