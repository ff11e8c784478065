/** Messages through a coordinator process leave nothing in it; `npm run soak` sends a million. */
import { judged, soak } from '../bench/coordinator/soak.js';

const flat = Array.from({ length: 10 }, () => ({ heapBytes: 40_000_000, residentBytes: 90_000_000, requests: 0 }));

test('40,000 messages leave no request, no pin and a heap as it was', async () => {
  const seen = await soak(40_000, () => undefined);
  expect(seen.wrong).toBeNull();
  expect(seen.messages).toBe(40_000);
  expect(seen.holdings.map(({ requests }) => requests)).toEqual(Array(10).fill(0));
}, 300_000);

test('a heap that keeps a kilobyte a request, and a request that is left, are told', () => {
  const growing = flat.map((held, part) => ({ ...held, heapBytes: held.heapBytes + part * 1024 * 12_500 }));
  expect(judged(flat, 12_500).wrong).toBeNull();
  expect(judged(growing, 12_500).wrong).toMatch(/^the heap grew by 102400000 bytes, expected at most/);
  const left = flat.map((held, part) => ({ ...held, requests: part === 9 ? 1 : 0 }));
  expect(judged(left, 12_500).wrong).toBe('1 requests and pins are left after part 10 of 10');
});
