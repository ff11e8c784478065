/**
 * Promises of building transports: one that moves other memory than the engine has is not even built, and what cannot be
 * used is left out without harm to those that were opened before it.
 */
import type { EngineContext } from '../../lib/engine-context.js';
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import { buildTransports } from '../../lib/setup/build-transports.js';

const region = allocateHostRegion({ bytes: 4096 });
const context = { regions: [region], blocks: null, slots: null } as unknown as EngineContext;

afterAll(() => region.close());

test('a GPU transport is refused for host memory before anything asks for a GPU', async () => {
  await expect(buildTransports('cuda-ipc', context, 'decode')).rejects.toMatchObject({
    code: 'TRANSPORT_UNAVAILABLE',
    message: 'the cuda-ipc transport moves cuda memory, and the engine has a region of host memory',
  });
});

test.each([[['cuda-ipc', 'host']], [['host', 'cuda-ipc']]])(
  'with %j only what fits is opened, and stays open',
  async (order) => {
    const { open, missing } = await buildTransports(order, context, 'prefill');
    expect(open.map(({ transport }) => transport.name)).toEqual(['host']);
    expect(missing).toEqual({ 'cuda-ipc': expect.stringContaining('moves cuda memory') as string });
    for (const { transport, grant } of open) {
      expect(transport.grant()).toEqual(grant);
      await transport.close();
    }
  },
);
