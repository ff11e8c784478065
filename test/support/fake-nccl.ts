/** Builds the stand-in for NCCL (fake_nccl/nccl.cc) and makes this process and its children use it, and that for CUDA. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { useFakeCuda } from './fake-cuda.js';
import { projectRoot } from './source-files.js';

const folder = join(projectRoot, 'build', 'cpp', 'fake-nccl');
const fileOf = (what: string, process: number | '' = ''): string => join(folder, `${what}-${process}`);

export function useFakeNccl(): Record<string, string> {
  const cuda = useFakeCuda() as Record<string, string>;
  const library = join(folder, 'libfake_nccl.so');
  const source = join(projectRoot, 'test', 'support', 'fake_nccl', 'nccl.cc');
  mkdirSync(folder, { recursive: true });
  if (!existsSync(library) || statSync(library).mtimeMs < statSync(source).mtimeMs) {
    const unfinished = `${library}.${process.pid}`;
    const { status, stderr } = spawnSync(
      process.env['CXX'] ?? 'g++',
      [
        ...['-std=gnu++20', '-O1', '-g', '-fPIC', '-shared', '-pthread', source, '-o', unfinished, '-ldl'],
        ...[`-DFAKE_CUDA="${cuda['STATE_HANDOFF_CUDA']}"`, `-DFAKE_NCCL_STALL=std::string("${fileOf('stall')}")`],
        `-DFAKE_NCCL_SENT=std::string("${fileOf('sent')}")`,
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

/** Whether the receives of a process, this one by default, wait until they are aborted. */
export function stallNccl(stalls: boolean, processId: number = process.pid): void {
  const file = fileOf('stall', processId);
  if (stalls) writeFileSync(file, '');
  else rmSync(file, { force: true });
}

/** Notes what a process sends from now on; the function gives every message. */
export function noteSent(processId: number): () => Uint8Array[] {
  const file = fileOf('sent', processId);
  writeFileSync(file, '');
  return () => {
    const noted = readFileSync(file);
    rmSync(file);
    const messages: Uint8Array[] = [];
    for (let at = 0; at < noted.length;) {
      const end = at + 8 + Number(noted.readBigUInt64LE(at));
      messages.push(noted.subarray(at + 8, end));
      at = end;
    }
    return messages;
  };
}
