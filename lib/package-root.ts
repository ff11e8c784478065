/** Where the package lies and which version it is: sources and compiled files lie at different depths below its manifest. */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** The package's folder and version; null when these files were copied out of it. */
export function ownPackage(): { readonly root: string; readonly version: string } | null {
  for (let folder = __dirname; ; folder = dirname(folder)) {
    const manifest = join(folder, 'package.json');
    if (existsSync(manifest)) {
      const { name, version } = JSON.parse(readFileSync(manifest, 'utf8')) as { name?: string; version?: string };
      if (name === 'state-handoff') return { root: folder, version: version ?? 'unknown' };
    }
    if (dirname(folder) === folder) return null;
  }
}
