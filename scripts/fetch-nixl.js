'use strict';
// `npm run fetch:nixl`: brings the NIXL wheel that this release is tested with into the SDK's cache, where the nixl
// transport finds it. Pinned by version and SHA-256; does nothing when it is there. Needs Python 3 with pip, and unzips
// with it; nothing of the wheel is installed or run.
const { spawnSync } = require('node:child_process');
const { createHash } = require('node:crypto');
const { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } = require('node:fs');
const { homedir } = require('node:os');
const { join } = require('node:path');

const wheel = {
  name: 'nixl-cu13',
  version: '1.5.1',
  file: 'nixl_cu13-1.5.1-cp311-cp311-manylinux_2_28_x86_64.whl',
  sha256: '6279834382eeabab60bfc2fe62c2363cda3bf520278bbd4a007932cc76073de5',
};

/** The same folder as `cacheFolder` in lib/transfer/transports/nixl-library.ts. */
function cacheFolder() {
  const base = process.env.XDG_CACHE_HOME || join(process.env.HOME || homedir(), '.cache');
  return process.env.STATE_HANDOFF_CACHE || join(base, 'state-handoff');
}

function python(args, what) {
  const { status, error, stderr } = spawnSync('python3', args, { encoding: 'utf8' });
  if (status === 0) return;
  throw new Error(`${what} failed: ${error?.message ?? stderr.trim().split('\n').slice(-3).join(' ')}`);
}

function fetchWheel() {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new Error(`the pinned wheel is for x86-64 Linux, this is ${process.platform} on ${process.arch}`);
  }
  const folder = join(cacheFolder(), `${wheel.name}-${wheel.version}`);
  if (existsSync(join(folder, '.nixl_cu13.mesonpy.libs', 'libnixl_capi.so'))) return `is there: ${folder}`;
  mkdirSync(cacheFolder(), { recursive: true });
  const scratch = mkdtempSync(join(cacheFolder(), 'fetch-'));
  try {
    const platform = ['--python-version', '3.11', '--implementation', 'cp', '--platform', 'manylinux_2_28_x86_64'];
    const wanted = ['--no-deps', '--only-binary=:all:', ...platform, `${wheel.name}==${wheel.version}`];
    python(['-m', 'pip', 'download', '--quiet', '--dest', scratch, ...wanted], 'the download');
    const path = join(scratch, wheel.file);
    const sum = createHash('sha256').update(readFileSync(path)).digest('hex');
    if (sum !== wheel.sha256) throw new Error(`${wheel.file}: expected SHA-256 ${wheel.sha256}, got ${sum}`);
    const unpacked = join(scratch, 'unpacked');
    python(['-m', 'zipfile', '-e', path, unpacked], 'unzipping');
    // Whole or not at all, also when two fetch at a time: who comes second finds the first one's.
    if (!existsSync(folder)) renameSync(unpacked, folder);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
  return `fetched into ${folder}`;
}

if (require.main === module) {
  try {
    console.log(`${wheel.name} ${wheel.version} ${fetchWheel()}`);
  } catch (error) {
    console.error(`fetch:nixl: ${error.message}`);
    process.exitCode = 1;
  }
}

module.exports = { wheel };
