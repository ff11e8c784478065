/** Promise: NIXL is looked for where users install it, the variable wins, and a wrong variable is refused by name. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { cacheFolder, nixlCandidates } from '../../lib/transfer/transports/nixl-library.js';
import { readProjectFile } from '../support/source-files.js';

const folder = mkdtempSync(join(tmpdir(), 'nixl-library-'));
afterAll(() => rmSync(folder, { recursive: true }));

const names = ['libnixl_capi.so.0', 'libnixl_capi.so'];

function place(...parts: string[]): string {
  const path = join(folder, ...parts, 'libnixl_capi.so');
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, '');
  return path;
}

// Nothing of this machine's own can be among them.
const nowhere = { HOME: join(folder, 'nobody'), PYTHONPATH: '' };
const found = (environment: Record<string, string>): string[] =>
  nixlCandidates({ ...nowhere, ...environment }).filter((path) => path.startsWith(folder));

test('the variable is the only candidate, and must be the path of a file', () => {
  const path = place('named');
  expect(nixlCandidates({ ...nowhere, STATE_HANDOFF_NIXL: path })).toEqual([path]);
  for (const wrong of [join(folder, 'missing.so'), 'libnixl_capi.so', '.']) {
    expect(() => nixlCandidates({ ...nowhere, STATE_HANDOFF_NIXL: wrong })).toThrow(
      expect.objectContaining({
        code: 'ARGUMENT_INVALID',
        message: expect.stringContaining('STATE_HANDOFF_NIXL: expected'),
      }),
    );
  }
});

test('the cache comes before site-packages, and the names that the loader knows come last', () => {
  const wheel = '.nixl_cu13.mesonpy.libs';
  const cached = place('cache', 'nixl-cu13-1.5.1', wheel);
  const venv = place('venv', 'lib', 'python3.12', 'site-packages', wheel);
  const older = place('venv', 'lib', 'python3.12', 'site-packages', '.nixl_cu12.mesonpy.libs');
  const user = place('home', '.local', 'lib', 'python3.11', 'site-packages', wheel);
  const given = place('given', wheel);
  const environment = {
    STATE_HANDOFF_CACHE: join(folder, 'cache'),
    VIRTUAL_ENV: join(folder, 'venv'),
    HOME: join(folder, 'home'),
    PYTHONPATH: join(folder, 'given'),
  };
  expect(found(environment)).toEqual([cached, given, venv, older, user]);
  expect(nixlCandidates(environment).slice(-2)).toEqual(names);
  expect(found({})).toEqual([]);
  expect(found({ STATE_HANDOFF_NIXL: '' })).toEqual([]);
});

test('the cache lies where the variables say, else under the home folder', () => {
  expect(cacheFolder({ STATE_HANDOFF_CACHE: '/c' })).toBe('/c');
  expect(cacheFolder({ XDG_CACHE_HOME: '/x', HOME: '/h' })).toBe('/x/state-handoff');
  expect(cacheFolder({ HOME: '/h' })).toBe('/h/.cache/state-handoff');
});

test('the script that fetches the wheel names the one that is looked for', () => {
  const script = readProjectFile('scripts/fetch-nixl.js');
  expect(script).toContain("name: 'nixl-cu13'");
  expect(script).toContain("version: '1.5.1'");
});
