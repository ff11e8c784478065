/** Programs, fences and regions over a stand-in for the CUDA driver, in one process with two GPUs. */
import { allocateCudaRegion, importCudaRegion } from '../../lib/memory/cuda-region.js';
import { cudaFenceSuite } from '../support/cuda-fence-suite.js';
import { cudaProgramSuite } from '../support/cuda-program-suite.js';
import { useFakeCuda } from '../support/fake-cuda.js';

useFakeCuda();

describe('programs', () => cudaProgramSuite({ source: 0, target: 1 }, 25));
describe('fences', () => cudaFenceSuite({ source: 0, target: 1 }));

describe("the engine's own memory", () => {
  test('is used and not freed, and must be as large as it is said to be', () => {
    const owned = allocateCudaRegion({ bytes: 4096 });
    const owner = {};
    const lent = importCudaRegion({ address: owned.address + 1024n, byteLength: 1024, owner });
    lent.write(0, new Uint8Array(1024).fill(3));
    lent.close();
    const content = new Uint8Array(4096);
    owned.read(0, content);
    expect(content.reduce((sum, byte) => sum + byte, 0)).toBe(3 * 1024);
    const refused = expect.objectContaining({ code: 'ARGUMENT_INVALID' });
    expect(() => importCudaRegion({ address: owned.address + 1024n, byteLength: 4096, owner })).toThrow(refused);
    expect(() => importCudaRegion({ address: 16n, byteLength: 16, owner })).toThrow(refused);
    expect(() => importCudaRegion({ address: owned.address + 8n, byteLength: 16, owner })).toThrow(refused);
    owned.close();
  });

  test.each([
    ['bytes', { bytes: 0 }],
    ['device', { bytes: 1, device: -1 }],
    ['device', { bytes: 1, device: 2 }],
  ])('refuses a wrong %s by name', (name, options) => {
    expect(() => allocateCudaRegion(options)).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID', message: expect.stringContaining(name) }),
    );
  });
});
