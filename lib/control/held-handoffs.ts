/**
 * What an engine still holds, as it tells a coordinator when it registers: pins, imports that are or will be read, and
 * memory in quarantine. Requests under labels that no coordinator can have minted are left out.
 */
import type { ImportView, Inspection } from '../observe/inspection.js';
import type { HeldHandoff } from './protocol/messages.js';

/** Admitted imports are not among them: nothing of theirs is read or written by a transfer any more. */
export function heldHandoffs({ pins, imports, quarantine }: Inspection): HeldHandoff[] {
  const held: HeldHandoff[] = [];
  for (const { requestId, owner, ageMs, blocks } of pins) {
    if (!isMintedLabel(requestId)) continue;
    const cut = owner?.lastIndexOf('/') ?? -1;
    // Owners that are no decode instance have a name and no incarnation.
    const peerInstance = owner === null ? null : cut > 0 ? owner.slice(0, cut) : owner;
    const peerIncarnation = owner !== null && cut > 0 ? owner.slice(cut + 1) || null : null;
    held.push({ requestId, state: 'pinned', peerInstance, peerIncarnation, ageMs, blocks: blocks.length });
  }
  for (const view of imports) if (view.state !== 'admitted') add(held, view, 'importing');
  for (const view of quarantine) add(held, view, 'quarantined');
  return held;
}

/** Whether a request's label may be a coordinator's number. */
export function isMintedLabel(label: unknown): label is number {
  return typeof label === 'number' && Number.isSafeInteger(label) && label >= 0;
}

function add(held: HeldHandoff[], view: ImportView, state: HeldHandoff['state']): void {
  const { requestId, source, ageMs, blocks, continuationBlocks } = view;
  if (!isMintedLabel(requestId)) return;
  const peer = { peerInstance: source?.instance ?? null, peerIncarnation: source?.incarnation ?? null };
  held.push({ requestId, state, ...peer, ageMs, blocks: blocks.length + continuationBlocks.length });
}
