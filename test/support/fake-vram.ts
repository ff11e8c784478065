/** Builds what stands before NIXL where GPU memory is the stand-in driver's (fake_vram/nixl.cc), and makes children use it. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, renameSync, statSync } from 'node:fs';
import { dirname, isAbsolute, join } from 'node:path';
import { nixlCandidates } from '../../lib/transfer/transports/nixl-library.js';
import { useFakeCuda } from './fake-cuda.js';
import { projectRoot } from './source-files.js';

/** What `STATE_HANDOFF_NIXL` and the stand-in's variables are set to; without a NIXL, whose tests are left out, the latter. */
export function useFakeVram(): Record<string, string> {
  const cuda = useFakeCuda() as Record<string, string>;
  const behind = nixlCandidates().find((path) => isAbsolute(path));
  if (behind === undefined) return cuda;
  const folder = join(projectRoot, 'build', 'cpp', 'fake-vram');
  const library = join(folder, 'libnixl_over_host.so');
  const source = join(projectRoot, 'test', 'support', 'fake_vram', 'nixl.cc');
  mkdirSync(folder, { recursive: true });
  const newest = Math.max(statSync(source).mtimeMs, statSync(behind).mtimeMs);
  if (!existsSync(library) || statSync(library).mtimeMs < newest) {
    const unfinished = `${library}.${process.pid}`;
    const { status, stderr } = spawnSync(
      process.env['CXX'] ?? 'g++',
      [
        ...['-std=gnu++20', '-O1', '-g', '-fPIC', '-shared', source, '-o', unfinished],
        ...[
          '-Wl,--no-as-needed',
          behind,
          `-Wl,-rpath,${dirname(behind)}`,
          '-Wl,--unresolved-symbols=ignore-all',
          '-ldl',
        ],
      ],
      { encoding: 'utf8' },
    );
    if (status !== 0) throw new Error(`what stands before NIXL does not compile: ${stderr}`);
    renameSync(unfinished, library);
  }
  return { ...cuda, STATE_HANDOFF_NIXL: library };
}
