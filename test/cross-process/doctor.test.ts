/**
 * Promises of `state-handoff doctor`: it says what each transport lacks and what mends it, asks another doctor for the
 * same, compares the two, and takes nothing from a peer that is not a report.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type AddressInfo, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gpuNotes, wheelVersion, type MachineReport, type TransportReport } from '../../lib/cli/machine-report.js';
import { comparePair, parseMachineReport } from '../../lib/cli/pair-report.js';
import { fetchReport, parseAddress, portOf, serveReport } from '../../lib/cli/report-exchange.js';
import type { JsonObject, JsonValue } from '../../lib/json.js';
import { useFakeCuda } from '../support/fake-cuda.js';
import { projectRoot } from '../support/source-files.js';

const folder = mkdtempSync(join(tmpdir(), 'doctor-'));
const servers: Server[] = [];
afterAll(() => {
  for (const server of servers) server.close();
  rmSync(folder, { recursive: true });
});

const transport = (name: string, changes: Partial<TransportReport> = {}): TransportReport => ({
  ...{ name, usable: true, found: [], version: null, lacks: null, fix: null, notes: [] },
  ...changes,
});
const machine = (name: string | null, ...transports: TransportReport[]): MachineReport => ({
  ...{ format: 1, sdk: '0.1.0', node: '20.20.2', platform: 'linux x64', machine: name, transports },
});
const broken = join(folder, 'broken.so');
writeFileSync(broken, 'no library');

interface Ran {
  readonly status: number | null;
  readonly output: string;
  readonly errors: string;
}

function run(
  args: readonly string[],
  env: Record<string, string> = {},
  onOutput?: (text: string) => void,
): Promise<Ran> {
  const cli = join(projectRoot, 'dist', 'lib', 'cli', 'state-handoff.js');
  const child = spawn(process.execPath, [cli, 'doctor', ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, STATE_HANDOFF_NIXL: broken, ...env },
  });
  let output = '';
  let errors = '';
  child.stdout.on('data', (text: Buffer) => {
    output += text.toString();
    onOutput?.(output);
  });
  child.stderr.on('data', (text: Buffer) => (errors += text.toString()));
  stopLast = () => void child.kill('SIGTERM');
  return new Promise((resolve) => child.on('close', (status) => resolve({ status, output, errors })));
}
let stopLast: () => void = () => undefined;

describe('a pair', () => {
  const here = machine('a', transport('host'), transport('nixl', { version: '1.5.1' }));

  test('takes what both can use, in this machine’s order', () => {
    expect(comparePair(here, machine('a', transport('nixl', { version: '1.5.1' }), transport('host')))).toEqual([
      { name: 'host', usable: true, why: null, fix: null },
      { name: 'nixl', usable: true, why: null, fix: null },
    ]);
  });

  test.each<[string, MachineReport, MachineReport, string, RegExp, string | null]>([
    ['another machine', here, machine('b', transport('host')), 'host', /another machine/, null],
    ['nothing of the kind there', here, machine('a'), 'nixl', /the peer does not have it/, null],
    [
      'a fault there',
      here,
      machine('a', transport('nixl', { usable: false, lacks: 'no library', fix: 'install' })),
      'nixl',
      /^the peer: no library$/,
      'install',
    ],
    [
      'a fault here',
      machine('a', transport('nixl', { usable: false, lacks: 'no library', fix: 'install' })),
      machine('a', transport('nixl')),
      'nixl',
      /^this machine: no library$/,
      'install',
    ],
    [
      'two versions',
      here,
      machine('a', transport('nixl', { version: '1.4.0' })),
      'nixl',
      /1\.5\.1 here and 1\.4\.0 there/,
      'install one version on both',
    ],
  ])('is told of %s', (_, ours, theirs, name, why, fix) => {
    const found = comparePair(ours, theirs).find((each) => each.name === name);
    expect(found).toMatchObject({ usable: false, why: expect.stringMatching(why), fix });
  });
});

test('says of each GPU what it is, and how it reaches the others', async () => {
  const fakeCuda = useFakeCuda() as Record<string, string>;
  // Only that one doctor has GPUs.
  for (const name of Object.keys(fakeCuda)) delete process.env[name];
  const { output } = await run(['--json'], { ...fakeCuda, FAKE_CUDA_DEVICES: '3' });
  const report = parseMachineReport(JSON.parse(output) as JsonValue);
  expect(report.transports.find(({ name }) => name === 'cuda-ipc')).toMatchObject({
    usable: true,
    notes: [
      'GPU 0: stand-in, 1 GiB, sm 9.9, reads GPU 1 over NVLink, reads GPU 2 over PCIe',
      'GPU 1: stand-in, 1 GiB, sm 9.9, reads GPU 0 over NVLink, reads GPU 2 over PCIe',
      'GPU 2: stand-in, 1 GiB, sm 9.9, reads GPU 0 over PCIe, reads GPU 1 over PCIe',
    ],
  });
  expect(
    gpuNotes([{ ordinal: 0, name: 'A', uuid: '', bytes: 2 ** 31, capability: '9.0', reads: [0], links: [] }]),
  ).toEqual(['GPU 0: A, 2 GiB, sm 9.0']);
  const apart = { name: 'A', uuid: '', bytes: 2 ** 31, capability: '9.0', links: [] };
  expect(
    gpuNotes([
      { ...apart, ordinal: 0, reads: [0] },
      { ...apart, ordinal: 1, reads: [1] },
    ])[1],
  ).toBe('GPU 1: A, 2 GiB, sm 9.0, cannot read GPU 0');
});

test('a report comes over a connection as it is, again and again', async () => {
  const report = machine('m', transport('host', { notes: ['ü'] })) as unknown as JsonValue;
  const server = await serveReport(report, { host: '127.0.0.1', port: 0 });
  servers.push(server);
  const address = { host: '127.0.0.1', port: portOf(server) };
  for (let round = 0; round < 3; round += 1) expect(parseMachineReport(await fetchReport(address))).toEqual(report);
  await expect(serveReport(report, address)).rejects.toMatchObject({ code: 'NATIVE_SYSTEM' });
});

test.each<[string, string, string]>([
  ['no JSON', 'hello\n', 'PEER_REFUSED'],
  ['without end', 'x'.repeat(300_000), 'PEER_REFUSED'],
])('a peer that says something %s is hung up on', async (_, said, code) => {
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.end(said);
  }).listen(0, '127.0.0.1');
  servers.push(server);
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as AddressInfo;
  await expect(fetchReport({ host: '127.0.0.1', port })).rejects.toMatchObject({ code });
});

test.each<[string, JsonValue, string]>([
  ['a list', [], 'report: expected a map'],
  ['another format', { format: 2 }, 'report.format: '],
  ['no transports', { ...report({}), transports: 'x' }, 'report.transports: '],
  ['a transport that is text', report('x'), 'report.transports[0]: '],
  ['a transport without a name', report({ usable: true }), 'report.transports[0].name: '],
  ['usable as text', report({ usable: 'yes' }), 'report.transports[0].usable: '],
  ['a note without end', report({ name: 'x', notes: ['x'.repeat(5000)] }), 'report.transports[0].notes[0]: '],
])('%s is refused by name', (_, value, message) => {
  expect(() => parseMachineReport(value)).toThrow(
    expect.objectContaining({ code: 'ARGUMENT_INVALID', message: expect.stringContaining(message) }),
  );
});

function report(changes: JsonObject | string): JsonObject {
  const base = { usable: true, found: [], version: null, lacks: null, fix: null, notes: [] };
  const first = typeof changes === 'string' ? changes : { ...base, ...changes };
  return { format: 1, sdk: '1', node: '20', platform: 'linux', machine: null, transports: [first] };
}

test('addresses', () => {
  expect(parseAddress('7000', '--peer')).toEqual({ host: '127.0.0.1', port: 7000 });
  expect(parseAddress('node-3:7000', '--peer')).toEqual({ host: 'node-3', port: 7000 });
  expect(parseAddress('[::1]:7000', '--peer')).toEqual({ host: '::1', port: 7000 });
  for (const wrong of ['', 'x', '70000', 'a:b:7', ':7'])
    expect(() => parseAddress(wrong, '--peer')).toThrow('--peer: expected');
});

test('versions of libraries come from the wheel beside them', () => {
  expect(wheelVersion('/usr/lib/libnixl_capi.so')).toBeNull();
});

test('field report 109: says what it lacks and what mends it, as text and as JSON', async () => {
  const text = await run([]);
  expect(text).toMatchObject({ status: 0, errors: '' });
  expect(text.output).toMatch(/host +can be used/);
  expect(text.output).toMatch(
    /nixl +cannot be used\n +found: .*broken\.so\n +lacks: NIXL .*broken\.so.*\n +fix: +pip install/,
  );
  const json = await run(['--json']);
  const told = parseMachineReport(JSON.parse(json.output) as JsonValue);
  expect(told.transports.find(({ name }) => name === 'nixl')).toMatchObject({ usable: false, found: [broken] });
  const wrong = await run(['--json'], { STATE_HANDOFF_NIXL: join(folder, 'nowhere.so') });
  expect(JSON.parse(wrong.output)).toMatchObject({
    transports: expect.arrayContaining([
      expect.objectContaining({ name: 'nixl', fix: expect.stringContaining('unset STATE_HANDOFF_NIXL') }),
    ]),
  });
});

test('asks a doctor that serves, a file, or a card, and says what auto takes', async () => {
  const served = await new Promise<{ port: number; over: Promise<Ran> }>((resolve) => {
    const over: Promise<Ran> = run(['--serve', '0'], {}, (output) => {
      const port = /telling this report on 127\.0\.0\.1:(\d+)/.exec(output)?.[1];
      if (port !== undefined) resolve({ port: Number(port), over });
    });
  });
  const stopServing = stopLast;
  const asked = await run(['--peer', `127.0.0.1:${served.port}`]);
  stopServing();
  expect((await served.over).status).toBe(0);
  expect(asked).toMatchObject({ status: 0, errors: '' });
  expect(asked.output).toContain("'auto' takes host");

  const file = join(folder, 'peer.json');
  writeFileSync(file, JSON.stringify(machine('elsewhere', transport('host'))));
  const far = await run(['--peer', file, '--json']);
  expect(far.status).toBe(1);
  expect(JSON.parse(far.output)).toMatchObject({
    pair: expect.arrayContaining([expect.objectContaining({ name: 'host', usable: false })]),
  });
});

test.each<[readonly string[], string]>([
  [['--what'], 'flag: expected one of'],
  [['--peer'], '--peer: expected a value'],
  [['--peer', 'no such thing'], '--peer: expected PORT or HOST:PORT'],
  [['--peer', '/nowhere/at/all.json'], '--peer: expected a file that can be read'],
  [['--serve', '70000'], '--serve: expected PORT'],
])('%j is a wrong call', async (args, message) => {
  const { status, output, errors } = await run(args);
  expect({ status, output }).toEqual({ status: 2, output: '' });
  expect(errors).toContain(message);
});
