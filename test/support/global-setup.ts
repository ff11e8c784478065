/**
 * Runs once before the tests: brings `dist/` up to date, so that child processes and worker threads can run the sources
 * of today.
 *
 * How a test starts another process or thread: the child is a plain `test/support/NAME-child.js` that requires
 * `dist/lib/...` (as an application requires the package), started with `startChild` of test/support/child-process.ts
 * or with `new Worker`. The compiler here is the one that Jest runs the sources through: no type checks
 * (`npm run typecheck` does those), and only files that changed, each replaced in one step, so that runs side by side
 * do not disturb each other.
 */
import { transformFileSync } from '@swc/core';
import { existsSync, mkdirSync, readdirSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';

const root = dirname(dirname(__dirname));
const compiled = ['lib', 'examples'];

function sourcesBelow(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return sourcesBelow(path);
    return path.endsWith('.ts') && !path.endsWith('.d.ts') ? [path] : [];
  });
}

function isStale(source: string, target: string): boolean {
  return !existsSync(target) || statSync(target).mtimeMs < statSync(source).mtimeMs;
}

/** A source as `dist` has it. The names of what it exports stand where `import()` of ES modules looks for them. */
export function compiledText(source: string): string {
  const module = { type: 'commonjs' as const, exportInteropAnnotation: true };
  const jsc = { parser: { syntax: 'typescript' as const }, target: 'es2022' as const };
  return transformFileSync(source, { jsc, module, sourceMaps: 'inline' }).code;
}

export default function buildDist(): void {
  for (const source of compiled.flatMap((folder) => sourcesBelow(join(root, folder)))) {
    const target = join(root, 'dist', relative(root, source)).replace(/\.ts$/, '.js');
    if (!isStale(source, target)) continue;
    const code = compiledText(source);
    mkdirSync(dirname(target), { recursive: true });
    const fresh = `${target}.${process.pid}`;
    writeFileSync(fresh, code);
    renameSync(fresh, target);
  }
}
