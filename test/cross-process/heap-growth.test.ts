/** The one flag that router processes set of V8's: V8 has it, and the command sets it before it listens. */
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { heapGrowthFlag } from '../../lib/cli/heap-growth.js';

const command = join(__dirname, '..', '..', 'dist', 'lib', 'cli', 'state-handoff.js');

test('V8 knows the flag', () => {
  const { stdout } = spawnSync(process.execPath, ['--v8-options'], { encoding: 'utf8', maxBuffer: 2 ** 24 });
  expect(stdout).toContain(`${heapGrowthFlag.split('=')[0]} (`);
});

test('the coordinator sets it before it listens', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'heap-growth-'));
  try {
    const hook = join(folder, 'hook.js');
    writeFileSync(
      hook,
      "const v8 = require('node:v8'); const set = v8.setFlagsFromString;\n" +
        "v8.setFlagsFromString = (flag) => { console.log('flag ' + flag); set(flag); };\n",
    );
    const child = spawn(
      process.execPath,
      ['-r', hook, command, 'coordinator', '--address', 'tcp://127.0.0.1:0', '--log-level', 'error'],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    );
    let text = '';
    const ended = new Promise((resolve) => child.once('exit', resolve));
    await new Promise<void>((resolve) => {
      void ended.then(() => resolve());
      child.stdout.on('data', (chunk: Buffer) => {
        text += chunk.toString();
        if (text.includes('"listening"')) resolve();
      });
    });
    child.kill('SIGTERM');
    await ended;
    expect(text.split('\n')[0]).toBe(`flag ${heapGrowthFlag}`);
    expect(text).toContain('"event":"listening"');
  } finally {
    rmSync(folder, { recursive: true });
  }
});
