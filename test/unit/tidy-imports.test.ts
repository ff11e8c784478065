/**
 * Goal: pure policy does not reach the addon, a socket or a clock through any chain of imports, and the library has no
 * cycle of imports that load. Method: the graph of imports that exist at run time (types are gone by then), read with
 * the compiler; small made-up graphs prove that each search finds what it looks for.
 */
import { posix } from 'node:path';
import ts from 'typescript';
import { sourceFiles, type SourceFile } from '../support/source-files.js';

const { isPure, worldImport, nativeImport } = jest.requireActual<{
  isPure: (path: string) => boolean;
  worldImport: string;
  nativeImport: string;
}>('../../scripts/import-arrows.js');
/** What `file` loads at run time: paths of the project for relative imports, module names for others. */
function loads({ path, text }: SourceFile): string[] {
  const found: string[] = [];
  const tree = ts.createSourceFile(path, text, ts.ScriptTarget.ES2022, true);
  for (const statement of tree.statements) {
    if (ts.isImportDeclaration(statement)) {
      const clause = statement.importClause;
      const named = clause?.namedBindings;
      const onlyTypes =
        clause?.phaseModifier === ts.SyntaxKind.TypeKeyword ||
        (clause !== undefined &&
          clause.name === undefined &&
          named !== undefined &&
          ts.isNamedImports(named) &&
          named.elements.length > 0 &&
          named.elements.every(({ isTypeOnly }) => isTypeOnly));
      if (!onlyTypes) found.push((statement.moduleSpecifier as ts.StringLiteral).text);
    } else if (ts.isExportDeclaration(statement) && statement.moduleSpecifier !== undefined && !statement.isTypeOnly) {
      found.push((statement.moduleSpecifier as ts.StringLiteral).text);
    }
  }
  return found.map((name) =>
    name.startsWith('.') ? posix.join(posix.dirname(path), name).replace(/\.js$/, '.ts') : name,
  );
}

type Graph = ReadonlyMap<string, readonly string[]>;
const graphOf = (files: readonly SourceFile[]): Graph => new Map(files.map((file) => [file.path, loads(file)]));

/** The first chain of imports from `start` to something `forbidden`, or null. */
function chainTo(
  graph: Graph,
  start: string,
  forbidden: (name: string) => boolean,
  path: string[] = [start],
  seen = new Set<string>(),
): string[] | null {
  for (const next of graph.get(start) ?? []) {
    if (forbidden(next)) return [...path, next];
    if (seen.has(next)) continue;
    seen.add(next);
    const chain = chainTo(graph, next, forbidden, [...path, next], seen);
    if (chain !== null) return chain;
  }
  return null;
}

const isWorld = (name: string): boolean =>
  new RegExp(worldImport).test(name) || new RegExp(nativeImport).test(name) || name === 'lib/clock.ts';

const library = sourceFiles('lib');
const graph = graphOf(library);

test('a chain of imports out of policy is found, and types are no import', () => {
  const made = graphOf([
    {
      path: 'lib/decode/a.ts',
      text: "import { b } from '../memory/b.js';\nimport type { n } from '../native/addon.js';\n",
    },
    { path: 'lib/memory/b.ts', text: "import { type T, c } from './c.js';\n" },
    { path: 'lib/memory/c.ts', text: "export * from '../native/addon.js';\n" },
    { path: 'lib/decode/d.ts', text: "import { type T } from '../native/addon.js';\nimport { e } from './d.js';\n" },
  ]);
  expect(chainTo(made, 'lib/decode/a.ts', isWorld)).toEqual([
    'lib/decode/a.ts',
    'lib/memory/b.ts',
    'lib/memory/c.ts',
    'lib/native/addon.ts',
  ]);
  expect(chainTo(made, 'lib/decode/d.ts', isWorld)).toBeNull();
});

test('the lists name the files they mean', () => {
  expect(
    ['lib/decode/a.ts', 'lib/control/protocol/v1/codec.ts', 'lib/memory/kv-layout.ts', 'lib/errors.ts'].filter(
      (path) => !isPure(path),
    ),
  ).toEqual([]);
  expect(['lib/memory/block-pool.ts', 'lib/errorsxts', 'lib/control/client.ts', 'lib/clock.ts'].filter(isPure)).toEqual(
    [],
  );
});

test('policy reaches no addon, socket or clock through other files', () => {
  const pure = library.map(({ path }) => path).filter(isPure);
  expect(pure.length).toBeGreaterThan(10);
  const chains = pure.map((path) => chainTo(graph, path, isWorld)).filter((chain) => chain !== null);
  expect(chains.map((chain) => chain.join(' → '))).toEqual([]);
});

test('imports that load form no cycle', () => {
  const cycleIn = (of: Graph): string[][] =>
    [...of.keys()].map((path) => chainTo(of, path, (name) => name === path)).filter((chain) => chain !== null);
  expect(
    cycleIn(
      graphOf([
        { path: 'a.ts', text: "import './b.js';" },
        { path: 'b.ts', text: "import './a.js';" },
      ]),
    ),
  ).not.toEqual([]);
  expect(cycleIn(graph)).toEqual([]);
});

test('every relative import of the library names a file of the library', () => {
  const lost = library.flatMap((file) =>
    loads(file)
      .filter((name) => name.startsWith('lib/') && !graph.has(name))
      .map((name) => `${file.path} imports ${name}`),
  );
  expect(lost).toEqual([]);
});
