/** Builds the stand-in for NCCL (fake_nccl/nccl.cc) and makes this process and its children use it, and that for CUDA. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { useFakeCuda } from './fake-cuda.js';
import { projectRoot } from './source-files.js';

export function useFakeNccl(): Record<string, string> {
  const cuda = useFakeCuda() as Record<string, string>;
  const folder = join(projectRoot, 'build', 'cpp', 'fake-nccl');
  const library = join(folder, 'libfake_nccl.so');
  const source = join(projectRoot, 'test', 'support', 'fake_nccl', 'nccl.cc');
  const stallFile = join(folder, 'stall-');
  mkdirSync(folder, { recursive: true });
  if (!existsSync(library) || statSync(library).mtimeMs < statSync(source).mtimeMs) {
    const unfinished = `${library}.${process.pid}`;
    const { status, stderr } = spawnSync(
      process.env['CXX'] ?? 'g++',
      [
        ...['-std=gnu++20', '-O1', '-g', '-fPIC', '-shared', '-pthread', source, '-o', unfinished, '-ldl'],
        ...[`-DFAKE_CUDA="${cuda['STATE_HANDOFF_CUDA']}"`, `-DFAKE_NCCL_STALL=std::string("${stallFile}")`],
      ],
      { encoding: 'utf8' },
    );
    if (status !== 0) throw new Error(`the stand-in for NCCL does not compile: ${stderr}`);
    renameSync(unfinished, library);
  }
  const environment = { ...cuda, STATE_HANDOFF_NCCL: library };
  Object.assign(process.env, environment);
  return environment;
}

/** Whether this process's receives wait until they are aborted. */
export function stallNccl(stalls: boolean): void {
  const file = join(projectRoot, 'build', 'cpp', 'fake-nccl', `stall-${process.pid}`);
  if (stalls) writeFileSync(file, '');
  else rmSync(file, { force: true });
}
