/** Promises of the command line's door: it finds the command, hands over its arguments and ends with its status. */
import { readFileSync } from 'node:fs';
import { commands, runCommand } from '../../lib/cli/state-handoff.js';

async function run(args: readonly string[], table?: Parameters<typeof runCommand>[2]) {
  const lines: string[] = [];
  const errors: string[] = [];
  const output = { write: (line: string) => lines.push(line), writeError: (line: string) => errors.push(line) };
  return { status: await runCommand(args, output, table), lines, errors };
}

test('a command gets the arguments behind its name, and its status is the status', async () => {
  const seen: (readonly string[])[] = [];
  const table = {
    probe: {
      summary: 'tells what it got',
      load: () =>
        Promise.resolve((args: readonly string[]) => {
          seen.push(args);
          return Promise.resolve(7);
        }),
    },
  };
  expect(await run(['probe', 'a', '--help'], table)).toMatchObject({ status: 7 });
  expect(seen).toEqual([['a', '--help']]);
});

test('--version is the version of the package', async () => {
  const { version } = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string };
  expect(await run(['--version'])).toEqual({ status: 0, lines: [version], errors: [] });
});

test('--help lists every command; nothing at all is an error that lists them too', async () => {
  const help = await run(['--help']);
  expect(help).toMatchObject({ status: 0, errors: [] });
  for (const name of Object.keys(commands)) expect(help.lines.join('\n')).toContain(`  ${name}`);
  expect(await run([])).toEqual({ status: 2, lines: [], errors: help.lines });
});

test.each(['toString', 'coordinate', '__proto__', '-x'])('%j is refused by name', async (name) => {
  const { status, lines, errors } = await run([name]);
  expect({ status, lines }).toEqual({ status: 2, lines: [] });
  expect(errors.join()).toContain(JSON.stringify(name));
});

test('every listed command loads and has a help of its own', async () => {
  for (const name of Object.keys(commands))
    expect(await run([name, '--help'])).toMatchObject({ status: 0, errors: [] });
});
