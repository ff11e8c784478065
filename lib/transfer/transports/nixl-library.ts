/**
 * Where NIXL is looked for, in this order: `STATE_HANDOFF_NIXL`, the SDK's cache, Python's site-packages, the loader's
 * own paths. Looks at folders only and loads nothing; refuses a variable that names no file.
 */
import { existsSync, readdirSync } from 'node:fs';
import { homedir } from 'node:os';
import { delimiter, isAbsolute, join } from 'node:path';
import { argumentError } from '../../errors.js';

/** The environment that is asked; `process.env` but for tests. */
export type Environment = Readonly<Record<string, string | undefined>>;

/** The wheel that this release is tested with, and where its library lies in a site-packages folder. */
export const nixlWheel = { name: 'nixl-cu13', version: '1.5.1' } as const;

const libraryName = 'libnixl_capi.so';
const wheelFolders = ['.nixl_cu13.mesonpy.libs', '.nixl_cu12.mesonpy.libs', '.nixl.mesonpy.libs'];

/**
 * Paths and names to try, best first.
 *
 * @throws `ARGUMENT_INVALID` when `STATE_HANDOFF_NIXL` is not the path of a file
 */
export function nixlCandidates(environment: Environment = process.env): string[] {
  const named = environment['STATE_HANDOFF_NIXL'];
  if (named !== undefined && named !== '') {
    if (!isAbsolute(named) || !existsSync(named)) {
      throw argumentError('STATE_HANDOFF_NIXL', `the absolute path of ${libraryName}`, named);
    }
    return [named];
  }
  const found = [...cacheFolders(environment), ...sitePackages(environment)].flatMap((folder) =>
    wheelFolders.map((wheel) => join(folder, wheel, libraryName)).filter((path) => existsSync(path)),
  );
  return [...new Set(found), `${libraryName}.0`, libraryName];
}

/** The folder in which the SDK keeps what it downloads. */
export function cacheFolder(environment: Environment = process.env): string {
  const named = environment['STATE_HANDOFF_CACHE'];
  if (named !== undefined && named !== '') return named;
  const base = environment['XDG_CACHE_HOME'];
  return join(base !== undefined && base !== '' ? base : join(homeOf(environment), '.cache'), 'state-handoff');
}

function homeOf(environment: Environment): string {
  const named = environment['HOME'];
  return named !== undefined && named !== '' ? named : homedir();
}

function cacheFolders(environment: Environment): string[] {
  return [join(cacheFolder(environment), `${nixlWheel.name}-${nixlWheel.version}`)];
}

/** Folders in which Python packages may lie, whether they exist or not. */
export function sitePackages(environment: Environment): string[] {
  const prefixes = [environment['VIRTUAL_ENV'], environment['CONDA_PREFIX'], join(homeOf(environment), '.local')];
  const given = (environment['PYTHONPATH'] ?? '').split(delimiter).filter((folder) => folder !== '');
  return [
    ...given,
    ...[...prefixes, '/usr/local', '/usr'].flatMap((prefix) =>
      prefix === undefined || prefix === '' ? [] : packagesUnder(join(prefix, 'lib')),
    ),
  ];
}

function packagesUnder(lib: string): string[] {
  return entriesOf(lib)
    .filter((name) => /^python3(?:\.\d+)?$/.test(name))
    .sort()
    .flatMap((name) => [join(lib, name, 'site-packages'), join(lib, name, 'dist-packages')]);
}

function entriesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
