/** Who reads what a command prints may have seen enough before it is through: `state-handoff status … | head -1`. */
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CoordinatorClient } from '../../lib/coordinator.js';

const command = join(__dirname, '..', '..', 'dist', 'lib', 'cli', 'state-handoff.js');

it.each([[['--help']], [['coordinator', '--help']], [['keys']]])('%j is no failure when nobody reads on', (args) => {
  const line = 'set -o pipefail; program=$1; shift; "$0" "$program" "$@" 2>&1 | true';
  const { status, stderr } = spawnSync('bash', ['-c', line, process.execPath, command, ...args], { encoding: 'utf8' });
  expect({ status, stderr }).toEqual({ status: args[0] === 'keys' ? 2 : 0, stderr: '' });
});

it('a coordinator whose first line nobody reads serves all the same', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'closed-output-'));
  const address = `ipc://${folder}/coordinator`;
  const child = spawn(process.execPath, [command, 'coordinator', '--address', address], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  try {
    child.stdout.destroy();
    const client = await CoordinatorClient.connect({ address, connectMs: 30_000 });
    client.close();
    child.kill('SIGTERM');
    expect(await ended).toBe(0);
  } finally {
    child.kill('SIGKILL');
    rmSync(folder, { recursive: true });
  }
});
