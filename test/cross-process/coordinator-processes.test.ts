/**
 * A coordinator and its engines as processes, and signals to them: who is stopped is shown and kept, who is killed is found
 * although nothing was asked of it, and what outlives a coordinator that is killed is released by proof alone.
 */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { CoordinatorClient, wireMap, type ClientRequest } from 'state-handoff/coordinator';
import { startChild, type Child } from '../support/child-process.js';
import { prompt, usableBlocks } from '../support/toy-handoffs.js';

const command = join(__dirname, '..', '..', 'dist', 'lib', 'cli', 'state-handoff.js');
/** Only a fault waits that long. */
const waitingMs = 60_000;

interface Router {
  readonly child: ChildProcess;
  readonly address: string;
  readonly metrics: string;
  readonly ended: Promise<number | null>;
  readonly log: () => string;
}

interface EngineState {
  readonly isRegistered: boolean;
  readonly pins: readonly number[];
  readonly imports: number;
  readonly quarantine: number;
  readonly free: number;
}

const routers: ChildProcess[] = [];
const clients: CoordinatorClient[] = [];
afterEach(() => {
  for (const client of clients.splice(0)) client.close();
  for (const child of routers.splice(0)) if (child.exitCode === null) child.kill('SIGKILL');
});

async function route(address = 'tcp://127.0.0.1:0'): Promise<Router> {
  const args = [command, 'coordinator', '--address', address, '--metrics-port', '0', '--heartbeat-ms', '1000'];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  routers.push(child);
  let log = '';
  child.stderr.on('data', (chunk: Buffer) => (log += chunk.toString()));
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
  const line = await new Promise<string>((resolve, reject) => {
    let text = '';
    child.stdout.on('data', (chunk: Buffer) => {
      text += chunk.toString();
      if (text.includes('\n')) resolve(text);
    });
    void ended.then((code) => reject(new Error(`ended with ${code}: ${log}`)));
  });
  return { child, ended, log: () => log, ...(JSON.parse(line) as { address: string; metrics: string }) };
}

async function engine(role: 'prefill' | 'decode', address: string, hold = false): Promise<Child> {
  const child = startChild('coordinated-end');
  await child.ask('connect', { role, address, hold });
  return child;
}

async function connect(address: string): Promise<CoordinatorClient> {
  const client = await CoordinatorClient.connect({ address, connectMs: waitingMs });
  clients.push(client);
  return client;
}

const ask = (client: CoordinatorClient): ClientRequest =>
  client.addRequest(prompt, wireMap({ num_tokens_to_generate: 4, temperature: 0 }));

async function answered(request: ClientRequest): Promise<void> {
  const kinds: string[] = [];
  for await (const { kind } of request) kinds.push(kind);
  expect(kinds.at(-1)).toBe('final');
}

/** Looks at the coordinator's metrics until they are as wanted. */
async function shown(router: Router, what: string, holds: (page: string) => boolean): Promise<string> {
  for (const end = Date.now() + waitingMs; ;) {
    const page = await (await fetch(router.metrics)).text();
    if (holds(page)) return page;
    if (Date.now() > end) throw new Error(`was never shown: ${what}\n${page}\n${router.log()}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function comes(child: Child, what: string, holds: (state: EngineState) => boolean): Promise<EngineState> {
  for (const end = Date.now() + waitingMs; ;) {
    const state = await child.ask<EngineState>('state');
    if (holds(state)) return state;
    if (Date.now() > end) throw new Error(`did not come: ${what}, ${JSON.stringify(state)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const counts = (role: string, count: number) => (page: string) =>
  new RegExp(`^state_handoff_engines\\{role="${role}"\\} ${count}$`, 'm').test(page);
const silent = (count: number) => (page: string) =>
  (page.match(/^state_handoff_engine_silent\{.*\} 1$/gm) ?? []).length === count;

test('an engine that is stopped is shown as stopped and kept, and goes on where it was', async () => {
  const router = await route();
  await engine('prefill', router.address);
  const decode = await engine('decode', router.address);
  const client = await connect(router.address);
  await answered(ask(client));
  await shown(router, 'both are heard', silent(0));
  decode.process.kill('SIGSTOP');
  const request = ask(client);
  const page = await shown(router, 'one is silent', silent(1));
  expect(page).toMatch(/^state_handoff_engine_silent\{engine="[^"]+",role="decode"\} 1$/m);
  expect(counts('decode', 1)(page)).toBe(true);
  expect(router.log()).not.toContain('engine is gone');
  decode.process.kill('SIGCONT');
  await answered(request);
  await shown(router, 'it is heard again', silent(0));
  expect(router.log()).not.toContain('engine removed');
}, 240_000);

test('an engine that is stopped with more on its way than fits stays registered, however long, and answers it all', async () => {
  const router = await route();
  const prefill = await engine('prefill', router.address);
  await engine('decode', router.address);
  const client = await connect(router.address);
  await answered(ask(client));
  await shown(router, 'both are heard', silent(0));
  prefill.process.kill('SIGSTOP');
  await shown(router, 'one is silent', silent(1));
  // Far more than it can take: each is refused, which shows that each arrived. No buffer of a socket holds so much.
  const large = new Int32Array(2 ** 18).fill(2 ** 20);
  const requests = Array.from({ length: 24 }, () => client.addRequest(large, wireMap({ num_tokens_to_generate: 4 })));
  const ends = requests.map((request) =>
    answered(request).then(
      () => 'answered',
      (error: Error) => error.message,
    ),
  );
  // The kernel gives up what it is told to give up after two heartbeats, each of a second.
  await new Promise((resolve) => setTimeout(resolve, 5_000));
  expect(counts('prefill', 1)(await shown(router, 'it is still there', silent(1)))).toBe(true);
  prefill.process.kill('SIGCONT');
  for (const end of await Promise.all(ends)) expect(end).not.toMatch(/connection|route|answered/);
  await answered(ask(client));
  expect(router.log()).not.toMatch(/engine removed|engine is gone/);
}, 240_000);

test('an engine that is killed with nothing in flight is found, the others stay, and requests go to them', async () => {
  const router = await route();
  await engine('prefill', router.address);
  const [one, two] = [await engine('decode', router.address), await engine('decode', router.address)];
  await shown(router, 'both decode engines', counts('decode', 2));
  await one.kill('SIGKILL');
  const page = await shown(router, 'one is gone', counts('decode', 1));
  expect(counts('prefill', 1)(page)).toBe(true);
  expect(router.log()).toContain('engine is gone');
  const client = await connect(router.address);
  await answered(ask(client));
  await comes(two, 'all is back', ({ free, imports }) => free === usableBlocks && imports === 0);
}, 240_000);

test('a client that is killed without a word is found: its requests stop, its record goes, the others go on', async () => {
  const router = await route();
  const prefill = await engine('prefill', router.address);
  const decode = await engine('decode', router.address, true);
  const doomed = startChild('coordinator-client');
  await doomed.ask('connect', { address: router.address });
  const client = await connect(router.address);
  for (let count = 0; count < 2; count++) await doomed.ask('ask', { prompt, count: 4 });
  const living = answered(ask(client));
  const held = (count: number) => (page: string) =>
    page.includes(`\nstate_handoff_inflight_requests{phase="decode"} ${count}\n`);
  await shown(router, 'three requests at decode', held(3));
  await comes(decode, 'all are imported', ({ imports }) => imports === 3);

  // A stopped one is not dead.
  doomed.process.kill('SIGSTOP');
  const other = startChild('coordinator-client');
  await other.ask('connect', { address: router.address });
  await other.kill('SIGKILL');
  await shown(router, 'the idle one stays until more than that is gone', (page) =>
    page.includes('\nstate_handoff_clients 3\n'),
  );
  expect(router.log()).not.toContain('client is gone');

  await doomed.kill('SIGKILL');
  await shown(router, 'its record is gone', (page) => page.includes('\nstate_handoff_clients 2\n'));
  expect(router.log()).toContain('client is gone');
  await shown(router, 'only one goes on', held(1));
  await decode.ask('go');
  await living;
  await shown(router, 'its requests were aborted', (page) =>
    page.includes('\nstate_handoff_requests_total{outcome="aborted"} 2\n'),
  );
  for (const end of [prefill, decode])
    await comes(end, 'all is back', ({ free, imports }) => free === usableBlocks && imports === 0);
}, 240_000);

test('a coordinator that is killed leaves pins that its next run releases by proof alone', async () => {
  const first = await route();
  const prefill = await engine('prefill', first.address);
  // Decode holds still: the pin is neither read nor given up.
  const decode = await engine('decode', first.address, true);
  const client = await connect(first.address);
  const lost = answered(ask(client));
  const refused = expect(lost).rejects.toMatchObject({ code: 'PEER_LOST' });
  await comes(prefill, 'it is pinned', ({ pins }) => pins.length === 1);
  await comes(decode, 'it is imported', ({ imports }) => imports === 1);
  // The reader is stopped over the restart: it cannot say that it reads no more, so the pin must stay.
  decode.process.kill('SIGSTOP');
  first.child.kill('SIGKILL');
  await first.ended;
  await refused;
  const second = await route(first.address);
  expect(second.address).toBe(first.address);
  await comes(prefill, 'it has registered again', ({ isRegistered }) => isRegistered);
  await shown(second, 'the pin is in doubt', (page) => /^state_handoff_pins\{state="in-doubt"\} 1$/m.test(page));
  expect((await prefill.ask<EngineState>('state')).pins).toHaveLength(1);
  decode.process.kill('SIGCONT');
  await decode.ask('go');
  await comes(prefill, 'it is released', ({ pins, free }) => pins.length === 0 && free === usableBlocks);
  await comes(decode, 'all is back', ({ imports, free }) => imports === 0 && free === usableBlocks);
  await shown(second, 'no pin is left', (page) => !page.includes('state_handoff_pins{'));
  await answered(ask(await connect(second.address)));
}, 240_000);

test('SIGTERM lets living requests end and refuses new ones', async () => {
  const router = await route();
  await engine('prefill', router.address);
  const decode = await engine('decode', router.address, true);
  const client = await connect(router.address);
  const living = answered(ask(client));
  await comes(decode, 'it is imported', ({ imports }) => imports === 1);
  router.child.kill('SIGTERM');
  // The signal and a message are two ways in: what comes before it is taken, and ends too.
  let reason: string | null = null;
  const taken: Promise<void>[] = [];
  while (reason === null) {
    const late = answered(ask(client)).catch((error: Error) => {
      if (!error.message.includes('the coordinator is draining')) throw error;
      reason = error.message;
    });
    taken.push(late);
    await Promise.race([late, new Promise((resolve) => setTimeout(resolve, 100))]);
  }
  const status = spawnSync(process.execPath, [command, 'status', router.address], { encoding: 'utf8' });
  expect(status.stdout.split('\n')[0]).toMatch(/: RUNNING, draining: no new request is taken$/);
  await decode.ask('go');
  await living;
  await Promise.all(taken);
  expect(await router.ended).toBe(0);
  expect(router.log()).toContain('"msg":"drained"');
}, 240_000);
