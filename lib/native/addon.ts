/** The only door to the native addon. Loads it once per environment and says clearly why when it cannot. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { HandoffError } from '../errors.js';
import { ownPackage } from '../package-root.js';
import type { CudaAddon } from './cuda-types.js';
import type { MemoryAddon } from './memory-types.js';
import type { NcclAddon } from './nccl-types.js';
import type { NixlAddon } from './nixl-types.js';
import type { TransferAddon } from './transfer-types.js';

/** Everything the addon exports. */
export interface Addon extends MemoryAddon, TransferAddon, NcclAddon, NixlAddon, CudaAddon {}

let loaded: Addon | undefined;

/**
 * The addon of this environment.
 *
 * @throws `NATIVE_UNAVAILABLE` when it was not built or does not load here
 */
export function addon(): Addon {
  loaded ??= load();
  return loaded;
}

function load(): Addon {
  const root = ownPackage()?.root;
  if (root === undefined)
    throw new HandoffError('NATIVE_UNAVAILABLE', "the package root was not found above the SDK's own files");
  const path = join(root, 'build', 'Release', 'state_handoff.node');
  if (!existsSync(path)) {
    throw new HandoffError(
      'NATIVE_UNAVAILABLE',
      'the native addon was not built; run `npm rebuild state-handoff` (it needs Python 3 and a C++20 compiler)',
      { details: { path } },
    );
  }
  try {
    // eslint-disable-next-line @typescript-eslint/no-require-imports -- a .node file can only be required
    return require(path) as Addon;
  } catch (cause) {
    throw new HandoffError(
      'NATIVE_UNAVAILABLE',
      `the native addon does not load because ${(cause as Error).message}; run \`npm rebuild state-handoff\``,
      { cause, details: { path } },
    );
  }
}
