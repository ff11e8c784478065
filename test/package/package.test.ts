/**
 * Goal: what `npm publish` would send installs into an empty folder, builds there, loads as CommonJS and as an ES module
 * and brings types for both. Method: pack, install the tarball, and be a user of it, the README's examples included.
 */
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describeOptional } from '../support/optional.js';
import { testedBlocks } from '../support/readme-blocks.js';
import { projectRoot, readProjectFile } from '../support/source-files.js';
import { packAndInstall, runIn } from './packed-package.js';

interface Manifest {
  readonly exports: Readonly<Record<string, string | { readonly types: string; readonly default: string }>>;
}

const manifest = JSON.parse(readProjectFile('package.json')) as Manifest;
const entries = Object.entries(manifest.exports).flatMap(([subpath, target]) =>
  typeof target === 'string' ? [] : [{ specifier: `state-handoff${subpath.slice(1)}`, ...target }],
);

const packed = packAndInstall();
afterAll(packed.remove);
const installedRoot = join(packed.consumer, 'node_modules', 'state-handoff');
const typescript = join(projectRoot, 'node_modules', 'typescript', 'bin', 'tsc');

test('the tarball holds the library, what builds the addon, and nothing else', () => {
  const expected =
    /^(?:dist\/lib\/.+\.(?:js|js\.map|d\.ts)|cuda\/.+\.(?:h|cc|cu|cuh)|binding\.gyp|scripts\/(?:install|node-headers|build-kernels)\.js|docs\/[a-z-]+\.(?:md|svg)|examples\/custom-[a-z-]+\.ts|package\.json|README\.md|LICENSE|CHANGELOG\.md)$/;
  expect(packed.files.filter((path) => !expected.test(path))).toEqual([]);
  for (const file of [
    'LICENSE',
    'README.md',
    'CHANGELOG.md',
    'binding.gyp',
    'cuda/core/error_codes.h',
    'dist/lib/index.js',
  ]) {
    expect(packed.files).toContain(file);
  }
});

test('what the README tells its reader to look at is in the tarball, CONTRIBUTING aside', () => {
  const readme = readProjectFile('README.md');
  const named = [
    ...[...readme.matchAll(/\]\((?!https?:|#)([^)#\s]+)/g)].map(([, target = '']) => target),
    ...[...readme.matchAll(/`(examples\/[\w./-]+\.ts)`/g)].map(([, path = '']) => path),
  ];
  expect(named.length).toBeGreaterThan(5);
  expect(named.filter((path) => path !== 'CONTRIBUTING.md' && !packed.files.includes(path))).toEqual([]);
});

test('every entry point of the manifest is in the tarball', () => {
  expect(entries.length).toBeGreaterThan(0);
  for (const entry of entries) {
    expect(packed.files).toContain(entry.default.replace(/^\.\//, ''));
    expect(packed.files).toContain(entry.types.replace(/^\.\//, ''));
  }
});

test('publint finds nothing to say', () => {
  const publint = join(projectRoot, 'node_modules', 'publint', 'src', 'cli.js');
  const { status, output } = runIn(packed.consumer, process.execPath, [publint, 'run', packed.tarball, '--strict']);
  expect({ status, output: status === 0 ? '' : output }).toEqual({ status: 0, output: '' });
});

describeOptional('package', packed.missing, 'the installed package', () => {
  test('builds its addon where it is installed', () => {
    const { status, output } = runIn(packed.consumer, 'npm', ['rebuild', '--foreground-scripts', 'state-handoff']);
    expect({ status, output: status === 0 ? '' : output }).toEqual({ status: 0, output: '' });
    expect(output).toContain('state-handoff: native addon built');
    const binary = join(installedRoot, 'build', 'Release', 'state_handoff.node');
    expect(existsSync(binary)).toBe(true);
    const { status: loads, output: why } = runIn(packed.consumer, process.execPath, [
      '-e',
      `require(${JSON.stringify(binary)})`,
    ]);
    expect({ loads, why }).toEqual({ loads: 0, why: '' });
  });

  test.each(entries)('$specifier gives the same names to require and to import', ({ specifier }) => {
    const names = `Object.keys(entry).filter((name) => !['default', 'module.exports', '__esModule'].includes(name)).sort()`;
    writeFileSync(
      join(packed.consumer, 'names.cjs'),
      `const entry = require('${specifier}'); console.log(JSON.stringify(${names}));`,
    );
    writeFileSync(
      join(packed.consumer, 'names.mjs'),
      `import * as entry from '${specifier}'; console.log(JSON.stringify(${names}));`,
    );
    const required = runIn(packed.consumer, process.execPath, ['names.cjs']);
    const imported = runIn(packed.consumer, process.execPath, ['names.mjs']);
    expect(required.status).toBe(0);
    expect((JSON.parse(required.output) as string[]).length).toBeGreaterThan(0);
    expect(imported).toEqual(required);
  });

  test.each(['cts', 'mts'])('types resolve for a consumer written as .%s', (extension) => {
    const lines = entries.flatMap(({ specifier }, index) => [
      `import * as entry${index} from '${specifier}';`,
      `export const names${index}: string[] = Object.keys(entry${index});`,
      '// @ts-expect-error -- a name that is not there is an error, so the types were found',
      `export const absent${index}: unknown = entry${index}.noSuchName;`,
    ]);
    writeFileSync(join(packed.consumer, `consumer.${extension}`), `${lines.join('\n')}\n`);
    expect(compile(`consumer.${extension}`)).toEqual({ status: 0, output: '' });
  });

  test('the examples of the README compile and run against it', () => {
    for (const { name, code } of ['README.md', 'docs/testing.md', 'docs/parallel-layouts.md'].flatMap((path) =>
      testedBlocks(readProjectFile(path)),
    )) {
      writeFileSync(join(packed.consumer, `${name}.mts`), code);
      expect({ name, ...compile(`${name}.mts`) }).toEqual({ name, status: 0, output: '' });
      const { status, output } = runIn(packed.consumer, process.execPath, [`${name}.mjs`]);
      expect({ name, status, output: status === 0 ? '' : output }).toEqual({ name, status: 0, output: '' });
    }
  });
});

/** Compiles one file of the consumer as strictly as a user may, beside it. */
function compile(file: string): { status: number | null; output: string } {
  const options = {
    compilerOptions: {
      target: 'es2022',
      lib: ['es2023'],
      module: 'nodenext',
      strict: true,
      exactOptionalPropertyTypes: true,
      noUncheckedIndexedAccess: true,
      skipLibCheck: false,
      types: ['node'],
      typeRoots: [join(projectRoot, 'node_modules', '@types')],
    },
    files: [file],
  };
  writeFileSync(join(packed.consumer, 'tsconfig.json'), JSON.stringify(options));
  return runIn(packed.consumer, process.execPath, [typescript, '-p', 'tsconfig.json']);
}
