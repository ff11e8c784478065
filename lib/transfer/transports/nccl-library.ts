/**
 * Where NCCL is looked for, in this order: `STATE_HANDOFF_NCCL`, Python's site-packages, the loader's own paths. Looks at
 * folders only and loads nothing; refuses a variable that names no file.
 */
import { existsSync } from 'node:fs';
import { isAbsolute, join } from 'node:path';
import { argumentError } from '../../errors.js';
import { sitePackages, type Environment } from './nixl-library.js';

const libraryName = 'libnccl.so.2';

/**
 * Paths and names to try, best first.
 *
 * @throws `ARGUMENT_INVALID` when `STATE_HANDOFF_NCCL` is not the path of a file
 */
export function ncclCandidates(environment: Environment = process.env): string[] {
  const named = environment['STATE_HANDOFF_NCCL'];
  if (named !== undefined && named !== '') {
    if (!isAbsolute(named) || !existsSync(named)) {
      throw argumentError('STATE_HANDOFF_NCCL', `the absolute path of ${libraryName}`, named);
    }
    return [named];
  }
  const found = sitePackages(environment)
    .map((folder) => join(folder, 'nvidia', 'nccl', 'lib', libraryName))
    .filter((path) => existsSync(path));
  return [...new Set(found), libraryName];
}
