/**
 * Goal: the documents say what is so. Method: the error table is made anew from the codes, the scripts named are looked
 * up, and code blocks marked as tested are run against the compiled package; made-up documents prove each check.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join, posix } from 'node:path';
import ts from 'typescript';
import { errorCodes } from '../../lib/errors.js';
import { betweenMarkers, testedBlocks } from '../support/readme-blocks.js';
import { projectRoot, readProjectFile } from '../support/source-files.js';

const readme = readProjectFile('README.md');
const { withErrorTable } = jest.requireActual<{
  withErrorTable: (document: string, codes: Record<string, { phase: string; retryable: boolean }>) => string;
}>('../../scripts/readme-errors.js');

const documents = ['README.md', 'CONTRIBUTING.md'];
const pages = readdirSync(join(projectRoot, 'docs'))
  .filter((name) => name.endsWith('.md') && !name.endsWith('.api.md'))
  .map((name) => `docs/${name}`);

/** Scripts that a document tells its reader to run. */
function scriptsIn(document: string): string[] {
  const named = [...document.matchAll(/\bnpm (?:run ([\w:-]+)|(test|start)\b)/g)].map(
    ([, run, word]) => run ?? word ?? '',
  );
  return [...new Set(named)];
}

/** Relative links and images of a document. */
function linksIn(document: string): string[] {
  return [...document.matchAll(/\]\((?!https?:|#)([^)#\s]+)/g)].map(([, target = '']) => target);
}

describe('the error table of the README', () => {
  test('lists every code with its phase and whether a retry can succeed', () => {
    expect(readme).toBe(withErrorTable(readme, errorCodes));
    expect(betweenMarkers(readme, 'errors').match(/^\| `/gm)).toHaveLength(Object.keys(errorCodes).length);
  });

  test('does not stand when a code is added, removed or changed', () => {
    const [first = '', ...others] = Object.keys(errorCodes);
    expect(() => withErrorTable(readme, { ...errorCodes, NEW_CODE: { phase: 'setup', retryable: false } })).toThrow(
      'NEW_CODE has no meaning',
    );
    expect(
      withErrorTable(
        readme,
        Object.fromEntries(others.map((code) => [code, errorCodes[code as keyof typeof errorCodes]])),
      ),
    ).not.toBe(readme);
    expect(withErrorTable(readme, { ...errorCodes, [first]: { phase: 'transfer', retryable: true } })).not.toBe(readme);
  });
});

describe.each([...documents, ...pages])('%s', (path) => {
  const document = readProjectFile(path);
  const { scripts } = JSON.parse(readProjectFile('package.json')) as { scripts: Record<string, string> };

  test('names only scripts that exist', () => {
    expect(scriptsIn('`npm run absent-one` and npm test').filter((name) => !(name in scripts))).toEqual(['absent-one']);
    expect(scriptsIn(document).filter((name) => !(name in scripts))).toEqual([]);
  });

  test('links only to files that exist', () => {
    const absent = (text: string): string[] =>
      linksIn(text).filter((target) => !existsSync(join(projectRoot, posix.join(posix.dirname(path), target))));
    expect(absent('[x](absent.md)')).toEqual(['absent.md']);
    expect(absent(document)).toEqual([]);
  });
});

test('every script of the manifest that runs a file of ours names one that exists', () => {
  const { scripts } = JSON.parse(readProjectFile('package.json')) as { scripts: Record<string, string> };
  const named = Object.values(scripts).flatMap((command) =>
    [...command.matchAll(/\b(?:scripts|test)\/[\w/.-]+/g)].map(([file]) => file),
  );
  expect(named.length).toBeGreaterThan(3);
  expect(named.filter((file) => !existsSync(join(projectRoot, file)))).toEqual([]);
});

test('the changelog opens with what is not released yet', () => {
  const [first] = [...readProjectFile('CHANGELOG.md').matchAll(/^## (.*)$/gm)].map(([, heading]) => heading);
  expect(first).toBe('[Unreleased]');
});

describe('tested blocks', () => {
  /** Runs a block as a user's CommonJS file would run; the folder lies inside the package, so its name resolves. */
  function runBlock(name: string, code: string): { status: number | null; output: string } {
    const folder = join(projectRoot, 'dist', 'readme');
    mkdirSync(folder, { recursive: true });
    const { outputText } = ts.transpileModule(code, {
      compilerOptions: { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2022, esModuleInterop: true },
    });
    // Top-level await of the original needs a function around it in CommonJS.
    const file = join(folder, `${name}-${process.pid}.cjs`);
    writeFileSync(
      file,
      `(async () => {\n${outputText}\n})().catch((error) => { console.error(error); process.exit(1); });\n`,
    );
    try {
      const { status, stdout, stderr } = spawnSync(process.execPath, [file], { encoding: 'utf8', timeout: 30_000 });
      return { status, output: stdout + stderr };
    } finally {
      rmSync(file);
    }
  }

  const example = [
    '<!-- tested: sum -->',
    '',
    '```ts',
    "import { basename } from 'node:path';",
    'const sum: number = await Promise.resolve(1 + 1);',
    "console.log(basename('a/b'), sum);",
    '```',
    '',
    '<!-- output of: sum -->',
    '',
    '```',
    'b 2',
    '```',
    '',
  ].join('\n');

  test('are found by their markers, with the output promised', () => {
    expect(testedBlocks(example)).toEqual([
      { name: 'sum', code: expect.stringContaining('const sum') as string, output: 'b 2\n' },
    ]);
    expect(testedBlocks('```ts\nnot marked\n```\n')).toEqual([]);
  });

  test.each([
    ['before no block', '<!-- tested: a -->\n\ntext\n'],
    ['with one name twice', example + example],
    ['before another language', '<!-- tested: a -->\n\n```sh\nx\n```\n'],
    ['for the output of nothing', '<!-- output of: a -->\n\n```\nx\n```\n'],
  ])('refuse a marker %s', (_, document) => {
    expect(() => testedBlocks(document)).toThrow();
  });

  test('run, and fail when what they do fails', () => {
    const [block] = testedBlocks(example);
    expect(runBlock('fixture', block?.code ?? '')).toEqual({ status: 0, output: 'b 2\n' });
    expect(runBlock('fixture', "throw new Error('no');").status).toBe(1);
  });

  test('of the documents do what the documents say', () => {
    for (const { name, code, output } of [...documents, ...pages].flatMap((path) =>
      testedBlocks(readProjectFile(path)),
    )) {
      const ran = runBlock(name, code);
      expect({ name, status: ran.status, output: ran.status === 0 ? '' : ran.output }).toEqual({
        name,
        status: 0,
        output: '',
      });
      if (output !== null) expect({ name, output: ran.output }).toEqual({ name, output });
    }
  });
});
