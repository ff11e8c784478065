/** A coordinator process under many clients: 1,000 connections, 8 engines that reply at once, 20,000 requests. */
import { join } from 'node:path';
import { encodeValue, spawnCoordinator, wireMap, encodeMessage, decodeMessage } from 'state-handoff/coordinator';
import { Dealer } from 'zeromq';
import { submitMessage } from '../support/coordinator-desk.js';

const program = join(__dirname, '..', '..', 'dist', 'lib', 'cli', 'state-handoff.js');
const [clients, engines, each] = [1_000, 8, 20];
const sockets: Dealer[] = [];
afterAll(() => {
  for (const socket of sockets) socket.close();
});

function open(address: string, routingId: string): Dealer {
  const socket = new Dealer({ routingId, linger: 0 });
  sockets.push(socket);
  socket.connect(address);
  return socket;
}

const encode = (message: Parameters<typeof encodeMessage>[2]) =>
  encodeMessage('multi-frame', 'coordinator', message as never) as Uint8Array[];

/** Replies to everything, until it is closed. */
async function serve(socket: Dealer): Promise<void> {
  const body = encodeValue(wireMap({ request_id: 0, generated_tokens: [1, 2] }));
  while (!socket.closed) {
    const message = decodeMessage('multi-frame', 'engine', await socket.receive());
    if (message.header !== 'SUBMIT_REQUEST') continue;
    const { requestId } = message;
    await socket.send(encode({ header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body }] }));
  }
}

/** How many of its requests were answered, each once and with its own number. */
async function use(socket: Dealer): Promise<number> {
  let answered = 0;
  for (let id = 0; id < each; id++) {
    await socket.send(encode(submitMessage(id)));
    let message = decodeMessage('multi-frame', 'client', await socket.receive());
    // A look whether this client is still there, because another connection ended.
    while (message.header === 'CONNECT_ACK') message = decodeMessage('multi-frame', 'client', await socket.receive());
    if (message.header === 'ENGINE_REPLY' && message.requestId === id) answered++;
  }
  return answered;
}

test('1,000 clients get each of their 20,000 replies, once', async () => {
  const settings = { aggregated: true, 'metrics-port': 0, 'log-level': 'error' };
  const coordinator = await spawnCoordinator(settings, { program });
  try {
    const metrics = async () => (await fetch(coordinator.listening['metrics'] as string)).text();
    for (let index = 0; index < engines; index++) {
      const socket = open(coordinator.address, `mp-coord-${index}`);
      await socket.send(encode({ header: 'REGISTER' }));
      serve(socket).catch(() => undefined);
    }
    while (!(await metrics()).includes(`state_handoff_engines{role="aggregated"} ${engines}\n`))
      await new Promise((resolve) => setTimeout(resolve, 20));
    const connected = await Promise.all(
      Array.from({ length: clients }, async (_, index) => {
        const socket = open(coordinator.address, `client-${index}`);
        await socket.send(encode({ header: 'CONNECT' }));
        await socket.receive();
        return socket;
      }),
    );
    const answered = await Promise.all(connected.map(use));
    expect(answered).toEqual(connected.map(() => each));
    const page = await metrics();
    expect(page).toContain(`\nstate_handoff_clients ${clients}\n`);
    expect(page).toContain(`\nstate_handoff_requests_total{outcome="completed"} ${clients * each}\n`);
    expect(page).toContain('\nstate_handoff_outbox_bytes 0\n');
    expect(page).toContain('\nstate_handoff_inflight_requests{phase="decode"} 0\n');
  } finally {
    await coordinator.close();
  }
}, 300_000);
