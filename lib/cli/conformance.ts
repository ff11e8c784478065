#!/usr/bin/env node
/**
 * `npm run conformance -- DIR`: holds the library against a directory of vectors (spec 16). Exit status 1 when a case
 * fails, 2 when it is called wrongly.
 */
import { runDirectory } from '../conformance/run-directory.js';
import { sections } from '../conformance/sections.js';

const usage = 'usage: npm run conformance -- DIR\n  DIR holds vectors, one *.json a section';

/** @returns the exit status */
export async function conformance(args: readonly string[], write: (line: string) => void): Promise<number> {
  const [directory, ...rest] = args;
  if (directory === '--help') {
    write(usage);
    return 0;
  }
  if (directory === undefined || directory.startsWith('-') || rest.length > 0) {
    write(usage);
    return 2;
  }
  return runDirectory(directory, sections, write);
}

if (require.main === module) {
  void conformance(process.argv.slice(2), (line) => void process.stdout.write(`${line}\n`)).then((status) => {
    process.exitCode = status;
  });
}
