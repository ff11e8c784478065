/** The project's own files as the tidy tests read them: everything that is not built, installed or version control. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export const projectRoot = join(__dirname, '..', '..');

export interface SourceFile {
  /** Relative to the project root, with `/`. */
  readonly path: string;
  readonly text: string;
}

const notOurs = new Set([
  '.git',
  'node_modules',
  'dist',
  'build',
  'coverage',
  '.cache',
  '.offline',
  'docs/api',
  'examples/llama/native/build',
]);
const binary = /\.(?:node|tgz|png|o|tsbuildinfo)$/;

export function sourceFiles(folder = ''): SourceFile[] {
  return readdirSync(join(projectRoot, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = folder === '' ? entry.name : `${folder}/${entry.name}`;
    if (notOurs.has(path) || binary.test(path)) return [];
    if (entry.isDirectory()) return sourceFiles(path);
    return entry.isFile() ? [{ path, text: readFileSync(join(projectRoot, path), 'utf8') }] : [];
  });
}

export function readProjectFile(path: string): string {
  return readFileSync(join(projectRoot, path), 'utf8');
}
