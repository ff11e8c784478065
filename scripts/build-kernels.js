'use strict';
// Compiles the CUDA kernels for the addon: `node build-kernels.js KERNELS.cu OUTPUT.inc`, called by binding.gyp. Without
// nvcc it writes an empty image that says so, and the addon builds all the same. NVCC or CUDA_HOME name a toolkit.
const { spawnSync } = require('node:child_process');
const { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } = require('node:fs');
const { tmpdir } = require('node:os');
const { dirname, join } = require('node:path');

const wanted = ['80', '90', '100'];

function candidates() {
  const { NVCC, CUDA_HOME, CUDA_PATH, PATH = '' } = process.env;
  const folders = [CUDA_HOME, CUDA_PATH].filter(Boolean).map((home) => join(home, 'bin'));
  const standard = join('/', 'usr', 'local', 'cuda', 'bin');
  return [NVCC, ...[...folders, ...PATH.split(':'), standard].map((folder) => join(folder, 'nvcc'))].filter(
    (path) => path !== undefined && existsSync(path),
  );
}

function run(nvcc, args) {
  const { status, stdout, stderr, error } = spawnSync(nvcc, args, { encoding: 'utf8' });
  return { ok: status === 0, text: status === 0 ? stdout : (error?.message ?? stderr).trim() };
}

/** A fat binary, or why there is none. */
function compile(source) {
  const [nvcc] = candidates();
  if (nvcc === undefined) return { why: 'nvcc was not found when the addon was built' };
  const known = run(nvcc, ['--list-gpu-code']);
  const codes = wanted.filter((code) => known.text.split(/\s+/).includes(`sm_${code}`));
  if (!known.ok || codes.length === 0) return { why: `${nvcc} does not compile for sm_${wanted.join(', sm_')}` };
  const scratch = mkdtempSync(join(tmpdir(), 'state-handoff-kernels-'));
  try {
    const output = join(scratch, 'kernels.fatbin');
    const targets = codes.flatMap((code) => ['-gencode', `arch=compute_${code},code=sm_${code}`]);
    // Other and newer devices compile this when it is loaded.
    const text = ['-gencode', `arch=compute_${codes[0]},code=compute_${codes[0]}`];
    const built = run(nvcc, ['-std=c++17', '-O3', '-fatbin', ...targets, ...text, '-o', output, source]);
    if (!built.ok) return { why: `${nvcc} failed when the addon was built: ${built.text.slice(0, 2000)}` };
    return { image: readFileSync(output) };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

const [, , source, output] = process.argv;
const { image = Buffer.alloc(0), why = '' } = compile(source);
if (why !== '') console.log(`state-handoff: no CUDA kernels: ${why}`);
const words = [];
for (let at = 0; at < image.length; at += 8) {
  const word = Buffer.alloc(8);
  image.copy(word, 0, at, Math.min(at + 8, image.length));
  words.push(`0x${word.readBigUInt64LE().toString(16)}`);
}
mkdirSync(dirname(output), { recursive: true });
writeFileSync(
  output,
  `alignas(64) static const uint64_t kKernelImage[] = {${[...words, '0'].join(',')}};\n` +
    `static const char kKernelImageMissing[] = ${JSON.stringify(why)};\n`,
);
