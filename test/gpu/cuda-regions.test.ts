/** Programs, fences and regions on real GPUs: one, or two with `STATE_HANDOFF_GPUS=0,1`. */
import { allocateCudaRegion } from '../../lib/memory/cuda-region.js';
import { CudaIpcTransport } from '../../lib/transfer/transports/cuda-ipc.js';
import { cudaFenceSuite } from '../support/cuda-fence-suite.js';
import { cudaProgramSuite } from '../support/cuda-program-suite.js';
import { gpuMissing, testGpus } from '../support/gpu-missing.js';
import { describeOptional } from '../support/optional.js';

const missing = gpuMissing();

describeOptional('gpu', missing, 'programs on a GPU', () => cudaProgramSuite(testGpus(), 200));
describeOptional('gpu', missing, 'fences on a GPU', () => cudaFenceSuite(testGpus()));
describeOptional('gpu', missing, 'virtual memory', () => {
  test('field report 107: is allocated, zeroed and written, and cuda-ipc says that it cannot export it', async () => {
    const region = allocateCudaRegion({ bytes: 1000, virtualMemory: true });
    const content = new Uint8Array(1000).fill(1);
    region.read(0, content);
    expect(content.every((byte) => byte === 0)).toBe(true);
    const transport = new CudaIpcTransport();
    expect(() => transport.register(region)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID' }));
    await transport.close();
    region.close();
  });
});
