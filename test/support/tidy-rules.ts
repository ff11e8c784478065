/**
 * What the project demands of its own files beyond lint: each rule reads one file and says what is wrong with it.
 * test/unit/tidy.test.ts runs every rule over the tree, and first over a text that breaks it.
 */
import ts from 'typescript';
import type { SourceFile } from './source-files.js';

export interface TidyRule {
  readonly title: string;
  /** Files the rule is about. */
  readonly about: RegExp;
  readonly check: (file: SourceFile) => string[];
  /** A file that breaks the rule. */
  readonly bad: SourceFile;
}

const linesMax = 400;

/** Files over the alarm that are better whole, with the reason. */
export const longFiles: Readonly<Record<string, string>> = {
  'lib/testing/model-block-pool.ts': 'the whole allocator in plain words, to be read beside the native one',
  'test/unit/testing-ledger.test.ts': 'one object, one promise a test',
  'test/unit/engine-loop.test.ts': 'one object, one promise a test',
  'test/unit/testing-engine.test.ts': 'one object, one promise a test',
  'test/unit/testing-scripted-transport.test.ts': 'every fault of one transport, pulled and pushed',
  'test/simulation/sim-router.ts': 'one machine: what a router may do to a world',
  'test/simulation/sim-instance.ts': 'one machine: an instance with its ranks, its engine and its deaths',
};

// Words and paths that the rules look for are put together from pieces, so that this file does not hold them.
const unfinishedWords = ['TO' + 'DO', 'FIX' + 'ME', 'XX' + 'X', 'HA' + 'CK'];
const machineFolders = ['work', 'root', 'home', 'Users', 'farm'];
const registryNames = [
  'registry' + '\\.npm',
  'npm' + 'js\\.(?:org|com)',
  'yarn' + 'pkg\\.com',
  'py' + 'pi\\.org',
  'deb' + '\\.debian\\.org',
];

const source = /^(?:lib|cuda|examples|test|scripts)\/.*\.(?:ts|js|h|cc|cu)$/;

/** The words of a call like `describe.only.each(...)`, outermost object first; empty when it is something else. */
function callWords(expression: ts.Expression): string[] {
  if (ts.isIdentifier(expression)) return [expression.text];
  if (ts.isPropertyAccessExpression(expression)) {
    const words = callWords(expression.expression);
    return words.length === 0 ? [] : [...words, expression.name.text];
  }
  if (ts.isCallExpression(expression)) return callWords(expression.expression);
  if (ts.isTaggedTemplateExpression(expression)) return callWords(expression.tag);
  return [];
}

function switchedOff({ path, text }: SourceFile): string[] {
  const found = new Set<string>();
  const visit = (node: ts.Node): void => {
    if (ts.isPropertyAccessExpression(node) || ts.isIdentifier(node)) {
      const words = callWords(node);
      const [first = ''] = words;
      const base = /^(?:describe|test|it)$/.test(first);
      if (
        (base && words.some((word) => /^(?:only|skip|todo|failing)$/.test(word))) ||
        /^(?:x|f)(?:describe|test|it)$/.test(first)
      ) {
        found.add(words.join('.'));
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile(path, text, ts.ScriptTarget.ES2022, true));
  return [...found].map((call) => `${call}: leave tests out through test/support/optional.ts, with a reason`);
}

function matches(text: string, pattern: RegExp): string[] {
  return [...new Set([...text.matchAll(pattern)].map(([match]) => match.trim()))];
}

export const tidyRules: readonly TidyRule[] = [
  {
    title: `no file is over ${linesMax} lines without a listed reason`,
    about: source,
    check: ({ path, text }) => {
      const lines = text.split('\n').length - 1;
      if (lines > linesMax)
        return path in longFiles ? [] : [`${lines} lines: split it by noun, or list it with a reason`];
      return path in longFiles ? ['is listed as long and is not'] : [];
    },
    bad: { path: 'lib/fixture.ts', text: '\n'.repeat(linesMax + 1) },
  },
  {
    title: 'every source file opens with a comment that says what it is for',
    about: source,
    check: ({ path, text }) => {
      // A C++ source whose own header comes first is explained there.
      const noun = /([^/]+)\.cc$/.exec(path)?.[1];
      if (noun !== undefined && new RegExp(`^#include "(?:[\\w/]+/)?${noun}\\.h"`).test(text)) return [];
      return /^(?:#!.*\n)?(?:'use strict';\n)?(?:\/\/|\/\*)/.test(text) ? [] : ['opens without a comment'];
    },
    bad: { path: 'lib/fixture.ts', text: 'export const x = 1;\n' },
  },
  {
    title: 'no test is switched off, singled out or promised for later',
    about: /^test\/(?!support\/optional\.ts$).*\.ts$/,
    check: switchedOff,
    bad: { path: 'test/fixture.test.ts', text: "describe.only('x', () => { test.each([1]).skip('y', () => {}); });" },
  },
  {
    title: 'nothing is left unfinished by its own words',
    about: /^(?!package-lock\.json$|LICENSE$|test\/vectors\/|examples\/prompts\/)/,
    check: ({ text }) => matches(text, new RegExp(`\\b(?:${unfinishedWords.join('|')})\\b`, 'g')),
    bad: { path: 'cuda/core/fixture.cc', text: `// ${unfinishedWords[0]}: later\n` },
  },
  {
    title: 'no file names a package registry',
    about: /./,
    check: ({ text }) => matches(text, new RegExp(registryNames.join('|'), 'gi')),
    bad: { path: 'package-lock.json', text: `"resolved": "https://${'registry' + '.npm' + 'js.org'}/x"` },
  },
  {
    title: 'no file names a folder of one machine',
    about: /^(?!examples\/prompts\/)/,
    check: ({ text }) =>
      matches(text, new RegExp(`(?:^|[^\\w.<>}$-])/(?:${machineFolders.join('|')}|tmp/[a-z])[/\\w]`, 'gm')),
    bad: { path: 'lib/fixture.ts', text: `const path = '/${machineFolders[1]}/x';\n` },
  },
  {
    title: 'files are named after one noun, TypeScript in kebab-case and C++ in snake_case',
    about: /^(?:lib|cuda|examples|test|scripts)\/.*\.(?:ts|js|h|cc|cu|cuh)$/,
    check: ({ path }) => {
      const name = path.split('/').at(-1) ?? '';
      const form = /\.(?:ts|js)$/.test(name)
        ? /^[a-z0-9]+(?:-[a-z0-9]+)*(?:\.test|\.d)?\.(?:ts|js)$/
        : /^[a-z0-9]+(?:_[a-z0-9]+)*\.\w+$/;
      const vague = /(?:^|[-_])(?:utils?|helpers?|common|manager|misc)(?:[-_.]|$)/.test(name);
      return [...(form.test(name) ? [] : ['is named in another form']), ...(vague ? ['says nothing by its name'] : [])];
    },
    bad: { path: 'lib/blockUtils.ts', text: '' },
  },
  {
    title: 'C++ arrows: binding includes transport includes core, never back; only napi_support.h includes napi.h',
    about: /^cuda\/.*\.(?:h|cc|cu|cuh)$/,
    check: ({ path, text }) => {
      const included = [...text.matchAll(/^\s*#\s*include\s*[<"]([^>"]+)[>"]/gm)].map(([, name = '']) => name);
      const forbidden = path.startsWith('cuda/core/')
        ? /(?:^|\/)(?:binding|transport|kernels)\/|napi|node_api/
        : path.startsWith('cuda/binding/')
          ? /^(?:napi|node_api)\.h$/
          : /(?:^|\/)binding\/|napi|node_api/;
      return path === 'cuda/binding/napi_support.h'
        ? []
        : included.filter((name) => forbidden.test(name)).map((name) => `includes ${name}`);
    },
    bad: { path: 'cuda/core/fixture.h', text: '#include "../transport/host.h"\n' },
  },
];
