/** Promise of the tests' own compiler: what it puts into `dist` can be imported by name from ES modules, as tsc's output can. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { compiledText } from '../support/global-setup.js';

const folder = mkdtempSync(join(tmpdir(), 'state-handoff-names-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test('own, renamed and passed-on exports, also from outside', () => {
  writeFileSync(join(folder, 'package.json'), '{}');
  const sources = { a: 'export const one = 1;', b: "export { one as uno } from './a.js'; export class Two {}" };
  for (const [name, text] of Object.entries(sources)) {
    writeFileSync(join(folder, `${name}.ts`), text);
    writeFileSync(join(folder, `${name}.js`), compiledText(join(folder, `${name}.ts`)));
  }
  const program = `import(${JSON.stringify(join(folder, 'b.js'))}).then(({ uno, Two }) => console.log(uno, Two.name));`;
  expect(execFileSync(process.execPath, ['-e', program], { encoding: 'utf8' })).toBe('1 Two\n');
});
