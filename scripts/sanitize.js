'use strict';
// `npm run test:sanitize [-- jest patterns]`: the native tests with the addon under AddressSanitizer and
// UndefinedBehaviorSanitizer, and the plain C++ test program under ThreadSanitizer and under the former two. Says what a
// compiler lacks and fails then: a run that sanitized nothing must not look like one that found nothing.
const { spawnSync } = require('node:child_process');
const {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} = require('node:fs');
const { tmpdir } = require('node:os');
const { dirname, join } = require('node:path');
const { buildCppProgram } = require('../test/support/cpp-program.js');
const { nodeHeadersRoot } = require('./node-headers');

const root = dirname(__dirname);
const compiler = process.env.CXX || 'g++';
const addressFlags = ['-fsanitize=address,undefined', '-fno-sanitize-recover=undefined', '-fno-omit-frame-pointer'];
const threadFlags = ['-fsanitize=thread'];
const nativeTests = ['test/native', 'test/property', 'test/lifecycle', 'test/cross-process/host-'];

function run(name, command, args, options = {}) {
  console.log(`\n== ${name}`);
  const { status, signal, error } = spawnSync(command, args, { cwd: root, stdio: 'inherit', ...options });
  if (status === 0) return true;
  console.log(`== ${name}: failed with ${error?.message ?? signal ?? status}`);
  return false;
}

/** What this compiler needs and has not, by sanitizer; empty when it has all. */
function missingSanitizers() {
  const scratch = mkdtempSync(join(tmpdir(), 'sanitize-'));
  const source = join(scratch, 'empty.cc');
  writeFileSync(source, 'int main() { return 0; }\n');
  const missing = [];
  for (const flags of [addressFlags, threadFlags]) {
    const program = join(scratch, 'empty');
    const built = spawnSync(compiler, [...flags, source, '-o', program], { encoding: 'utf8' });
    const ran = built.status === 0 ? spawnSync(program) : built;
    if (ran.status !== 0)
      missing.push(`${flags[0]}: ${(built.error?.message || built.stderr || ran.signal || '').trim()}`);
  }
  rmSync(scratch, { recursive: true });
  return missing;
}

/** The addon's sources and flags, from the one place that knows them. */
function addonRecipe() {
  const text = readFileSync(join(root, 'binding.gyp'), 'utf8');
  const sources = [...text.matchAll(/'(cuda\/[^']+\.cc)'/g)].map(([, path]) => join(root, path));
  const defines = [...text.matchAll(/'((?:NAPI|NODE)_[A-Z_]+(?:=\d+)?)'/g)].map(([, define]) => `-D${define}`);
  if (sources.length === 0 || defines.length === 0) throw new Error('sanitize: binding.gyp is not as it is read here');
  return { sources: [...new Set(sources)], defines };
}

/** Builds the addon into a copy of the package, so that no build in use changes; returns that copy's folder. */
function buildSanitizedPackage() {
  const headers = nodeHeadersRoot() ?? dirname(dirname(process.execPath));
  const include = [join(headers, 'include', 'node'), join(root, 'node_modules', 'node-addon-api'), join(root, 'cuda')];
  const folder = join(root, 'build', 'sanitized');
  const objects = join(folder, 'objects');
  const release = join(folder, 'package', 'build', 'Release');
  rmSync(join(folder, 'package'), { recursive: true, force: true });
  for (const path of [objects, release]) mkdirSync(path, { recursive: true });
  const { sources, defines } = addonRecipe();
  const flags = [
    '-std=gnu++20',
    '-O1',
    '-g',
    '-fPIC',
    ...addressFlags,
    ...defines,
    '-DNODE_ADDON_API_CPP_EXCEPTIONS_ALL',
  ];
  const built = [];
  for (const source of sources) {
    const object = join(objects, `${source.slice(root.length + 1).replace(/\W/g, '_')}.o`);
    const args = [...flags, ...include.map((path) => `-I${path}`), '-c', source, '-o', object];
    if (spawnSync(compiler, args, { stdio: 'inherit' }).status !== 0)
      throw new Error(`sanitize: ${source} does not build`);
    built.push(object);
  }
  const addon = join(release, 'state_handoff.node');
  const link = ['-shared', '-pthread', ...addressFlags, ...built, '-ldl', '-o', addon];
  if (spawnSync(compiler, link, { stdio: 'inherit' }).status !== 0)
    throw new Error('sanitize: the addon does not link');
  const copy = join(folder, 'package');
  for (const name of [
    'package.json',
    'jest.config.js',
    'tsconfig.json',
    'binding.gyp',
    'lib',
    'test',
    'cuda',
    'examples',
  ]) {
    if (existsSync(join(root, name))) cpSync(join(root, name), join(copy, name), { recursive: true });
  }
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));
  return copy;
}

function main() {
  const missing = missingSanitizers();
  if (missing.length > 0) {
    console.log(`sanitize: ${compiler} lacks what this needs, so nothing was tested:\n  ${missing.join('\n  ')}`);
    console.log('sanitize: install the sanitizer runtimes of this compiler, or set CXX to one that has them');
    process.exit(1);
  }
  // Processes that fork under ThreadSanitizer are not what it is for; the hammer runs under the others.
  const passed = [
    run('C++ program, ThreadSanitizer', buildCppProgram('thread', ['-O1', ...threadFlags]), ['-Hammer'], {
      env: { ...process.env, TSAN_OPTIONS: 'halt_on_error=1' },
    }),
    run(
      'C++ program, AddressSanitizer and UndefinedBehaviorSanitizer',
      buildCppProgram('address', ['-O1', ...addressFlags]),
      [],
    ),
  ];
  const runtime = spawnSync(compiler, ['-print-file-name=libasan.so'], { encoding: 'utf8' }).stdout.trim();
  const patterns = process.argv.slice(2);
  passed.push(
    run(
      'native tests, AddressSanitizer and UndefinedBehaviorSanitizer',
      process.execPath,
      [
        require.resolve('jest/bin/jest'),
        '--runInBand',
        '--testTimeout=300000',
        '--testPathIgnorePatterns',
        'core-program',
        '--',
        ...(patterns.length > 0 ? patterns : nativeTests),
      ],
      {
        cwd: buildSanitizedPackage(),
        env: { ...process.env, LD_PRELOAD: runtime, ASAN_OPTIONS: 'detect_leaks=0' },
      },
    ),
  );
  const failed = passed.filter((each) => !each).length;
  console.log(`\nsanitize: ${passed.length - failed} passed, ${failed} failed`);
  process.exitCode = failed === 0 ? 0 : 1;
}

main();
