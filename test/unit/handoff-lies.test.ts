/** A ticket that is right but for one thing: refused by name, also by a decode that has believed the peer before. */
import { parseKvMeta } from '../../lib/decode/handoff-parser.js';
import { PeerDescriptorCache } from '../../lib/transfer/peer-descriptor-cache.js';
import { changedKvMeta, sampleBlocks, sampleKvMeta } from '../support/described-instance.js';
import { ticketLies } from '../support/ticket-lies.js';

describe('parseKvMeta', () => {
  it.each(ticketLies)('refuses a lie about %s', (_what, shape, lie, code, message) => {
    const meta = changedKvMeta(shape, lie);
    expect(() => parseKvMeta(meta, sampleBlocks)).toThrow(
      expect.objectContaining({ code, message: expect.stringContaining(message) as string }),
    );
    // A peer that was believed before is not believed now.
    const cache = new PeerDescriptorCache();
    parseKvMeta(sampleKvMeta(shape), sampleBlocks, { cache });
    expect(() => parseKvMeta(meta, sampleBlocks, { cache })).toThrow(expect.objectContaining({ code }));
  });
});
