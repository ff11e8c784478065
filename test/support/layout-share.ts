/**
 * The tests of random layout pairs: 3,000 in `npm test`, 20,000 in `npm run test:layouts`, half of them in each of two test
 * files. STATE_HANDOFF_LAYOUT_PAIR=number runs that pair alone.
 */
import { LayoutRig } from './layout-rig.js';

const one = process.env['STATE_HANDOFF_LAYOUT_PAIR'];
const all = process.env['STATE_HANDOFF_LAYOUTS'] === 'all' ? 20_000 : 3_000;
const chunk = 500;

export function testLayouts(half: 'first' | 'second'): void {
  const share = one === undefined ? all / 2 : 1;
  const from = one === undefined ? (half === 'first' ? 1 : 1 + share) : Number(one);
  const seeds = Array.from({ length: Math.ceil(share / chunk) }, (_, index) => from + index * chunk);
  test.each(seeds)(
    'pairs of layouts from %i on',
    async (seed) => {
      const rig = await LayoutRig.open();
      try {
        await rig.run(seed, Math.min(chunk, share));
      } finally {
        await rig.close();
      }
      const { pairs, refused, wrong, bytesMoved } = rig.tally;
      expect(pairs).toBe(Math.min(chunk, share));
      if (one !== undefined) return;
      expect(bytesMoved).toBeGreaterThan(0);
      // Some changes change nothing; most are caught.
      expect(refused + wrong).toBeGreaterThan(pairs / 2);
    },
    600_000,
  );
}
