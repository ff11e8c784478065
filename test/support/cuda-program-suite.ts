/** Random checked programs through the kernel, held against a copy byte by byte on the CPU. */
import fc from 'fast-check';
import { allocateCudaRegion, type CudaRegion } from '../../lib/memory/cuda-region.js';
import { checkProgram } from '../../lib/transfer/check-program.js';
import { CudaIpcTransport } from '../../lib/transfer/transports/cuda-ipc.js';
import { ended, requestOf, settled } from './host-fixture.js';
import { interleavedNests, layoutBoxes, unrelatedNests } from './program-arbitraries.js';
import { eachFragment } from './program-oracle.js';

const regionBytes = 64 << 10;
const regionCount = 4;

export function cudaProgramSuite(gpus: { readonly source: number; readonly target: number }, runs: number): void {
  test.each([
    ['nests of any strides', unrelatedNests],
    ['interleaved nests', interleavedNests],
    ["boxes of one buffer's layout", layoutBoxes],
  ])('%s: every byte of the target is what a plain copy makes of it', async (_, programs) => {
    const exporter = new CudaIpcTransport();
    const importer = new CudaIpcTransport();
    const regionsOn = (device: number): CudaRegion[] =>
      Array.from({ length: regionCount }, () => allocateCudaRegion({ bytes: regionBytes, device }));
    const [sources, targets] = [regionsOn(gpus.source), regionsOn(gpus.target)];
    const random = (seed: number): Uint8Array =>
      Uint8Array.from({ length: regionBytes }, (__, index) => Math.imul(index + seed, 2654435761) >>> 13);
    const sourceBytes = sources.map((region, index) => {
      const content = random(index * 977 + 1);
      region.write(0, content);
      exporter.register(region);
      return content;
    });
    for (const region of targets) importer.register(region);
    const peer = await settled(importer.connect(exporter.grant()));
    const sizes = Array<number>(regionCount).fill(regionBytes);
    let ran = 0;
    await fc.assert(
      fc.asyncProperty(programs, fc.nat(), async ({ program, ...needed }, seed) => {
        const fits = [...needed.sourceBytes, ...needed.targetBytes].every((bytes) => bytes <= regionBytes);
        if (!fits || needed.sourceBytes.length > regionCount || needed.targetBytes.length > regionCount) return;
        try {
          checkProgram(program, sizes, sizes);
        } catch {
          return;
        }
        ran += 1;
        const expected = targets.map((region, index) => {
          const content = random(seed + index);
          region.write(0, content);
          return content;
        });
        eachFragment(program, (from, source, to, target, bytes) =>
          expected[to]!.set(sourceBytes[from]!.subarray(source, source + bytes), target),
        );
        const handle = importer.begin(requestOf(program), peer);
        await ended(handle);
        importer.takeChanged();
        expect(handle.error).toBeNull();
        for (const [index, region] of targets.entries()) {
          const content = new Uint8Array(regionBytes);
          region.read(0, content);
          expect(Buffer.compare(content, expected[index]!)).toBe(0);
        }
      }),
      { numRuns: runs },
    );
    expect(ran).toBeGreaterThan(runs / 10);
    await importer.close();
    await exporter.close();
    for (const region of [...sources, ...targets]) region.close();
  });
}
