/** What a worker still holds at its end, so that the router can say whether all memory came back. */
import type { StateHandoff } from 'state-handoff';
import type { Message, decodeAnswers } from './messages.js';

/** The worker's last message; nothing is under way any more when all is well. */
export function remains(handoff: StateHandoff): Extract<Message<typeof decodeAnswers>, { kind: 'stopped' }> {
  const { pins, imports, quarantine } = handoff.inspect();
  const { blocksFree, blocksEvictable, blocksUsable, slotsFree, slotsTotal } = handoff.load();
  const leftovers = [
    ...pins.map(({ requestId }) => `the pin of ${requestId}`),
    ...imports.map(({ requestId, state }) => `the import of ${requestId} (${state})`),
    ...quarantine.map(({ requestId }) => `quarantined memory of ${requestId}`),
  ];
  if (slotsFree !== slotsTotal) leftovers.push(`${Number(slotsTotal) - Number(slotsFree)} SSM slots`);
  return {
    kind: 'stopped',
    leftovers,
    blocksFree: blocksFree + blocksEvictable,
    blocksUsable,
    counters: Object.entries(handoff.metrics().counters).map(([name, value]) => ({ name, value })),
  };
}
