/**
 * Promises of the nixl transport on machines without a usable NIXL: it says what was tried and why each failed, never
 * crashes, and an order of transports goes on without it.
 */
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startChild } from '../support/child-process.js';

interface Refusal {
  readonly code: string;
  readonly message: string;
}

const folder = mkdtempSync(join(tmpdir(), 'nixl-absent-'));
afterAll(() => rmSync(folder, { recursive: true }));

const open = (libraries: readonly string[]): Promise<Refusal | null> =>
  startChild('nixl-absent').ask<Refusal | null>('open', { libraries });

const compiler = process.env['CXX'] ?? 'g++';

function compiled(name: string, source: string): string {
  mkdirSync(folder, { recursive: true });
  const path = join(folder, `${name}.so`);
  writeFileSync(join(folder, `${name}.c`), source);
  const { status, stderr } = spawnSync(
    compiler,
    ['-shared', '-fPIC', '-x', 'c', '-o', path, join(folder, `${name}.c`)],
    {
      encoding: 'utf8',
    },
  );
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return path;
}

test('what does not load is named, each with the loader’s reason', async () => {
  const text = join(folder, 'text.so');
  writeFileSync(text, 'no library');
  const refusal = await open([join(folder, 'missing.so'), text]);
  expect(refusal?.code).toBe('TRANSPORT_UNAVAILABLE');
  expect(refusal?.message).toMatch(/^NIXL \(libnixl_capi\.so\) does not load: .*missing\.so.*; .*text\.so/);
  expect((await open([]))?.message).toContain('no place to look for it');
});

test('another library and a stub are refused as such', async () => {
  const other = await open([compiled('other', 'int unrelated;')]);
  expect(other).toMatchObject({ code: 'TRANSPORT_UNAVAILABLE', message: expect.stringContaining('has no nixl_capi_') });
  const stub = await open([compiled('stub', '#include <stdbool.h>\nbool nixl_capi_is_stub(void) { return true; }')]);
  expect(stub).toMatchObject({ code: 'TRANSPORT_UNAVAILABLE', message: expect.stringContaining('is a stub') });
});

/** A library that notes its environment when it is loaded, as UCX reads it then. */
const noting = `#include <stdio.h>
#include <stdlib.h>
extern char** environ;
__attribute__((constructor)) static void note(void) {
  FILE* file = fopen(getenv("NOTED"), "w");
  if (file == NULL) abort();
  for (char** each = environ; *each != NULL; ++each) fprintf(file, "%s\\n", *each);
  fclose(file);
}`;

/** What UCX must find set, or it takes signal handlers and patches the process's memory functions. */
const defaults = { UCX_ERROR_SIGNALS: '', UCX_DEBUG_SIGNO: '0', UCX_MEM_MMAP_HOOK_MODE: 'none' };

test.each<[string, Record<string, string>]>([
  ['is set before the library is loaded', {}],
  [
    'stays as the user has set it',
    { UCX_ERROR_SIGNALS: 'BUS', UCX_DEBUG_SIGNO: '10', UCX_MEM_MMAP_HOOK_MODE: 'bistro' },
  ],
])('what UCX reads of its environment %s', async (_, given) => {
  const noted = join(folder, `noted-${Object.keys(given).length}`);
  const library = compiled('noting', noting);
  const child = startChild('nixl-absent', [], { ...given, NOTED: noted });
  expect(await child.ask('open', { libraries: [library] })).toMatchObject({ code: 'TRANSPORT_UNAVAILABLE' });
  const found = Object.fromEntries(
    readFileSync(noted, 'utf8')
      .split('\n')
      .map((line) => /^([^=]*)=(.*)$/.exec(line)?.slice(1) ?? []),
  ) as Record<string, string>;
  expect(found).toMatchObject({ ...defaults, ...given });
});

test('an order of transports goes on without it; asked for by itself, it is an error', async () => {
  const broken = join(folder, 'broken.so');
  writeFileSync(broken, 'no library');
  const child = startChild('nixl-absent', [], { STATE_HANDOFF_NIXL: broken });
  const setup = (backend: string | readonly string[]): Promise<unknown> => child.ask('setup', { backend });
  expect(await setup('auto')).toEqual({ transports: ['host'] });
  expect(await setup(['nixl', 'host'])).toEqual({ transports: ['host'] });
  expect(await setup('nixl')).toMatchObject({
    code: 'TRANSPORT_UNAVAILABLE',
    message: expect.stringContaining('broken.so'),
  });
  expect(await setup(['nixl'])).toMatchObject({ code: 'TRANSPORT_UNAVAILABLE' });
  expect(await setup('no-such')).toMatchObject({ code: 'ARGUMENT_INVALID' });
  const wrong = startChild('nixl-absent', [], { STATE_HANDOFF_NIXL: join(folder, 'nowhere.so') });
  // What the user wrote down and is not there is a mistake, whatever else could be used.
  expect(await wrong.ask('setup', { backend: 'auto' })).toMatchObject({
    code: 'ARGUMENT_INVALID',
    message: expect.stringContaining('STATE_HANDOFF_NIXL'),
  });
});
