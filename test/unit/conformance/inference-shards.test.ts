/** Section `inference_shards`: the vectors pass whole, and whatever one of them promises, changing it fails. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { runDocument } from '../../../lib/conformance/run-document.js';
import { sections } from '../../../lib/conformance/sections.js';

interface Accepted {
  spec: string;
  world_size: number;
  shards: Record<string, number | string>[];
  declares_disagg: boolean;
}
interface Vectors {
  accepted: Accepted[];
  rejected: { spec: string; world_size: number; error: { type: string } }[];
}

const text = readFileSync(join(__dirname, '..', '..', 'vectors', 'inference_shards.json'), 'utf8');
const vectors = JSON.parse(text) as Vectors;
const failuresOf = async (changed: object): Promise<readonly unknown[]> =>
  (await runDocument(JSON.stringify({ section: 'inference_shards', kind: 'ref', ...changed }), 'file', sections))
    .failures;

test('the vectors pass whole', async () => {
  const result = await runDocument(text, 'file', sections);
  expect(result.failures).toEqual([]);
  expect(result.passed).toBe(vectors.accepted.length + vectors.rejected.length);
});

test('any other value fails', async () => {
  for (const given of vectors.accepted) {
    const fails = async (change: Partial<Accepted>) =>
      expect(await failuresOf({ accepted: [{ ...given, ...change }] })).toHaveLength(1);
    await fails({ world_size: given.world_size + 1 });
    await fails({ declares_disagg: !given.declares_disagg });
    await fails({ shards: given.shards.slice(1) });
    for (const [index, shard] of given.shards.entries()) {
      for (const [key, value] of Object.entries(shard)) {
        const other = typeof value === 'number' ? value + 1 : value === 'prefill' ? 'decode' : 'prefill';
        await fails({ shards: given.shards.with(index, { ...shard, [key]: other }) });
      }
    }
    // What is accepted is not refused.
    const { spec, world_size } = given;
    expect(await failuresOf({ rejected: [{ spec, world_size, error: { type: 'ValueError' } }] })).toHaveLength(1);
  }
  for (const { spec, world_size } of vectors.rejected) {
    expect(await failuresOf({ accepted: [{ spec, world_size, shards: [], declares_disagg: false }] })).toHaveLength(1);
    expect(await failuresOf({ rejected: [{ spec, world_size, error: { type: 'OSError' } }] })).toHaveLength(1);
  }
});
