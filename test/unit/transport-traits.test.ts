/**
 * Promise: every rank of an instance knows whether its imports are pushed, also one without any state of its own, and
 * whatever rank of the source has none; a source that is waiting to be asked would wait for ever.
 */
import type { PendingImport } from '../../lib/decode/pending-import.js';
import { transportTraits } from '../../lib/setup/start-transfers.js';
import { rankPositions, smallShape, TestMemory } from '../../lib/testing/test-memory.js';
import type { PeerRank } from '../../lib/transfer/peer-pairing.js';
import { PeerPlans } from '../../lib/transfer/peer-plans.js';
import { TransportChoice } from '../../lib/transfer/transport-choice.js';
import type { Transport, TransportGrant } from '../../lib/transfer/transport.js';

const stages = { layers: [0, 2], ssmLayers: [0, 2] };
const endpoints = rankPositions(1, 2, 0, stages).map((position) => new TestMemory(smallShape, position, 9, 1).kv);
const transport = (direction: 'pull' | 'push'): Transport =>
  ({ name: 'own', capabilities: { direction, unsafeFailureIsFatal: direction === 'push' } }) as unknown as Transport;

/** A decode rank that has granted something, or nothing, and a source whose ranks offer `offers`. */
function traits(direction: 'pull' | 'push', grant: TransportGrant | null, offers: readonly PeerRank['transports'][]) {
  const kv = endpoints[grant === null ? 0 : 1]!;
  const judge = (ours: TransportGrant): string | null => (ours === 'own grant' ? null : 'of another machine');
  const choice = new TransportChoice([{ transport: transport(direction), grant, whyNot: judge }]);
  const ranks = offers.map((transports, index) => ({
    key: `peer/${index}`,
    kv: endpoints[index]!,
    ssm: null,
    transports,
  }));
  const pending = { source: { parsed: { ranks } } } as unknown as PendingImport;
  return transportTraits(new PeerPlans({ kv, ssm: null }, choice), pending);
}

const both = { twoSided: true, fatalWhenUnsafe: true };
const neither = { twoSided: false, fatalWhenUnsafe: false };
const [nothing, offer] = [{}, { own: 1 }];

test.each([
  ['every rank has state', 'own grant', [offer, offer], both],
  ['the first rank of the source has none', 'own grant', [nothing, offer], both],
  ['this rank has none', null, [offer, offer], both],
  ['neither has', null, [nothing, offer], both],
  ['the two cannot use it with each other', 'another grant', [offer, offer], neither],
  ['nobody offers anything', 'own grant', [nothing, nothing], neither],
] as const)('%s', (_, grant, offers, expected) => {
  expect(traits('push', grant, offers)).toEqual(expected);
  expect(traits('pull', grant, offers)).toEqual(neither);
});

test('the memory of a stage without layers has no buffer and no region', () => {
  const [empty, whole] = rankPositions(1, 2, 0, stages).map((position) => new TestMemory(smallShape, position, 9, 1));
  expect(empty).toMatchObject({ regions: [], kv: { buffers: [], layout: { layerStart: 0, layerEnd: 0 } } });
  expect(whole!.kv.layout).toMatchObject({ layerStart: 0, layerEnd: 2 });
});
