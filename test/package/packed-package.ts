/**
 * The package as a user gets it: packed from a copy of the sources (so that nobody's `dist` is touched), installed from
 * the tarball into an empty folder. Says why when the registry cannot be reached; any other fault is thrown.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { projectRoot } from '../support/source-files.js';

export interface PackedPackage {
  /** The tarball. */
  readonly tarball: string;
  /** Paths in the tarball, without its leading `package/`. */
  readonly files: readonly string[];
  /** An npm project whose one dependency is the tarball, its install scripts not run yet. */
  readonly consumer: string;
  /** Why the dependencies could not be had; null when they are installed. */
  readonly missing: string | null;
  readonly remove: () => void;
}

export interface Ran {
  readonly status: number | null;
  readonly output: string;
}

/** Runs a command to its end and keeps what it printed. */
export function runIn(cwd: string, command: string, args: readonly string[]): Ran {
  // npm hands its own settings down by environment; a user's shell has none of them.
  const env = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^npm_(?:package|lifecycle|command)/.test(name)),
  );
  const { status, stdout, stderr, error } = spawnSync(command, args, {
    cwd,
    encoding: 'utf8',
    env,
    maxBuffer: 64 * 1024 * 1024,
  });
  return { status, output: `${error?.message ?? ''}${stdout}${stderr}` };
}

const noRegistry =
  /\b(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ENOTCACHED|ERR_SOCKET_TIMEOUT|E503|E502)\b/;

export function packAndInstall(): PackedPackage {
  const folder = mkdtempSync(join(tmpdir(), 'state-handoff-package-'));
  const remove = (): void => rmSync(folder, { recursive: true, force: true });
  try {
    const stage = join(folder, 'stage');
    const consumer = join(folder, 'consumer');
    mkdirSync(stage);
    mkdirSync(consumer);
    for (const name of [
      'lib',
      'docs',
      'examples',
      'cuda',
      'scripts',
      'binding.gyp',
      'package.json',
      'tsconfig.json',
      'tsconfig.build.json',
    ]) {
      cpSync(join(projectRoot, name), join(stage, name), { recursive: true });
    }
    for (const name of ['README.md', 'LICENSE', 'CHANGELOG.md']) cpSync(join(projectRoot, name), join(stage, name));
    symlinkSync(join(projectRoot, 'node_modules'), join(stage, 'node_modules'));

    const packed = runIn(stage, 'npm', ['pack', '--foreground-scripts', `--pack-destination=${folder}`]);
    if (packed.status !== 0) throw new Error(`npm pack failed:\n${packed.output}`);
    const [name] = readdirSync(folder).filter((entry) => entry.endsWith('.tgz'));
    if (name === undefined) throw new Error(`npm pack left no tarball:\n${packed.output}`);
    const tarball = join(folder, name);
    const listed = runIn(folder, 'tar', ['-tzf', tarball]).output.trim().split('\n');

    writeFileSync(join(consumer, 'package.json'), JSON.stringify({ name: 'consumer', private: true }));
    const installed = runIn(consumer, 'npm', [
      'install',
      '--ignore-scripts',
      '--prefer-offline',
      '--no-audit',
      '--no-fund',
      '--fetch-retries=1',
      '--fetch-retry-mintimeout=1000',
      '--fetch-retry-maxtimeout=3000',
      tarball,
    ]);
    const unreachable = noRegistry.exec(installed.output);
    if (installed.status !== 0 && unreachable === null) throw new Error(`npm install failed:\n${installed.output}`);
    return {
      tarball,
      files: listed.map((path) => path.replace(/^package\//, '')),
      consumer,
      missing: installed.status === 0 ? null : `the package registry cannot be reached (${unreachable?.[0]})`,
      remove,
    };
  } catch (error) {
    remove();
    throw error;
  }
}
