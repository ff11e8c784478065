'use strict';
// `npm run api [-- --check]`: writes what each entry point of the package offers to docs/NAME.api.md, so that a change of
// the public interface shows in a review. `--check` writes nothing and ends with status 1 when a report is out of date.
const { Extractor, ExtractorConfig } = require('@microsoft/api-extractor');
const { spawnSync } = require('node:child_process');
const { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } = require('node:fs');
const { dirname, join } = require('node:path');

const root = dirname(__dirname);
const manifest = require('../package.json');
const check = process.argv.includes('--check');

function main() {
  // Apart from dist, so that nothing stale is reported and nobody's build is disturbed.
  const scratch = join(root, 'dist', `api-report-${process.pid}`);
  try {
    mkdirSync(scratch, { recursive: true });
    const project = join(scratch, 'tsconfig.json');
    writeFileSync(
      project,
      JSON.stringify({
        extends: join(root, 'tsconfig.build.json'),
        compilerOptions: {
          rootDir: root,
          outDir: scratch,
          emitDeclarationOnly: true,
          sourceMap: false,
          inlineSources: false,
        },
        include: [join(root, 'lib')],
      }),
    );
    const args = [require.resolve('typescript/bin/tsc'), '-p', project];
    const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit' });
    if (status !== 0) throw new Error('api: the sources do not compile');
    const stale = entryPoints().filter(({ name, types }) => !report(name, join(scratch, types), scratch));
    if (stale.length > 0) {
      throw new Error(
        `api: the public interface differs from ${stale.map(({ name }) => `docs/${name}.api.md`).join(', ')}; \`npm run api\` writes it`,
      );
    }
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

function entryPoints() {
  return Object.entries(manifest.exports).flatMap(([subpath, target]) =>
    typeof target === 'string'
      ? []
      : [
          {
            name: `${manifest.name}${subpath.slice(1).replaceAll('/', '-')}`,
            types: target.types.replace('./dist/', ''),
          },
        ],
  );
}

/** What the package's main entry exports: a subpath may speak of it without exporting it once more. */
const ofMainEntry = new Set();
const exported = /^export (?:declare )?(?:abstract )?(?:class|interface|type|const|function|enum) (\w+)/gm;

/** Makes one report; false when `--check` finds the committed one different. */
function report(name, entry, scratch) {
  const fresh = join(scratch, 'reports');
  mkdirSync(fresh, { recursive: true });
  const config = ExtractorConfig.prepare({
    packageJsonFullPath: join(root, 'package.json'),
    configObjectFullPath: undefined,
    configObject: {
      projectFolder: root,
      mainEntryPointFilePath: entry,
      newlineKind: 'lf',
      compiler: { tsconfigFilePath: join(root, 'tsconfig.build.json') },
      apiReport: {
        enabled: true,
        reportFileName: `${name}.api.md`,
        reportFolder: fresh,
        reportTempFolder: join(scratch, 'temp'),
      },
      docModel: { enabled: false },
      dtsRollup: { enabled: false },
      tsdocMetadata: { enabled: false },
      messages: {
        // Release tags are not used; what is exported is public.
        extractorMessageReporting: {
          'ae-missing-release-tag': { logLevel: 'none' },
          'ae-forgotten-export': { logLevel: 'error' },
        },
        tsdocMessageReporting: { default: { logLevel: 'none' } },
      },
    },
  });
  const messages = [];
  const { succeeded } = Extractor.invoke(config, {
    localBuild: true,
    messageCallback: (message) => {
      message.handled = true;
      const [, symbol] = /^The symbol "(\w+)" needs to be exported/.exec(message.text) ?? [];
      if (ofMainEntry.has(symbol)) message.logLevel = 'none';
      if (message.logLevel === 'error') messages.push(message.text);
    },
  });
  if (!succeeded) throw new Error(`api: ${name}:\n  ${messages.join('\n  ')}`);
  const made = readFileSync(join(fresh, `${name}.api.md`), 'utf8');
  if (name === manifest.name) for (const [, symbol] of made.matchAll(exported)) ofMainEntry.add(symbol);
  const kept = join(root, 'docs', `${name}.api.md`);
  if (check) return existsSync(kept) && readFileSync(kept, 'utf8') === made;
  mkdirSync(dirname(kept), { recursive: true });
  writeFileSync(kept, made);
  return true;
}

try {
  main();
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
