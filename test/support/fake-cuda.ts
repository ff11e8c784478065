/** Builds the stand-in for the CUDA driver (fake_cuda/driver.cc) and makes this process and its children use it. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { projectRoot } from './source-files.js';

/** What `STATE_HANDOFF_CUDA` and `STATE_HANDOFF_CUDA_KERNELS` are set to; the stand-in takes anything for kernels. */
export function useFakeCuda(): NodeJS.ProcessEnv {
  const folder = join(projectRoot, 'build', 'cpp', 'fake-cuda');
  const library = join(folder, 'libfake_cuda.so');
  const sources = ['test/support/fake_cuda/driver.cc', 'test/cpp/device_copy.h', 'cuda/core/device_walk.h'];
  const newest = Math.max(...sources.map((path) => statSync(join(projectRoot, path)).mtimeMs));
  mkdirSync(folder, { recursive: true });
  if (!existsSync(library) || statSync(library).mtimeMs < newest) {
    const unfinished = `${library}.${process.pid}`;
    const { status, stderr } = spawnSync(
      process.env['CXX'] ?? 'g++',
      ['-std=gnu++20', '-O1', '-g', '-fPIC', '-shared', '-pthread', join(projectRoot, sources[0]!), '-o', unfinished],
      { encoding: 'utf8' },
    );
    if (status !== 0) throw new Error(`the stand-in for the CUDA driver does not compile: ${stderr}`);
    renameSync(unfinished, library);
  }
  const kernels = join(folder, 'kernels.txt');
  writeFileSync(kernels, 'taken for kernels\0');
  const environment = { STATE_HANDOFF_CUDA: library, STATE_HANDOFF_CUDA_KERNELS: kernels };
  Object.assign(process.env, environment);
  return environment;
}
