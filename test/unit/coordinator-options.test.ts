/** What the control plane is handed in wrongly is named before anything is opened, whatever the caller's language checks. */
import {
  Coordinator,
  CoordinatedEngine,
  CoordinatorClient,
  CoordinatorServer,
  wireMap,
} from 'state-handoff/coordinator';
import { ToyEngine } from '../../examples/custom-engine.js';

const core = new Coordinator({ instance: 'run', isDisaggregated: true });
const address = 'tcp://127.0.0.1:9';
const invalid = (message: string, code = 'OPTION_INVALID') => ({
  code,
  message: expect.stringContaining(message) as string,
});

test.each<[unknown, string]>([
  [undefined, 'options: expected an object, got undefined'],
  [{ instance: 'x' }, 'isDisaggregated: expected true or false, got undefined'],
  [{ instance: 'x'.repeat(513), isDisaggregated: true }, 'instance: expected a name of at most 512 characters'],
  [{ instance: 'x', isDisaggregated: true, hashPrompt: 5 }, 'hashPrompt: expected a function, got 5'],
  [{ instance: 'x', isDisaggregated: true, limits: null }, 'limits: expected an object, got null'],
  [
    { instance: 'x', isDisaggregated: true, limits: { requestMax: 5 } },
    'limits.requestMax: expected no such limit, got 5',
  ],
])('a coordinator: %j', (options, message) => {
  expect(() => new Coordinator(options as never)).toThrow(expect.objectContaining(invalid(message)));
});

test.each<[unknown, string]>([
  [undefined, 'options: expected an object, got undefined'],
  [{}, 'options.core: expected an object, got undefined'],
  [{ core: {} }, 'options.core.receive: expected a function, got undefined'],
  [{ core, profile: 'double' }, 'options.profile: expected multi-frame or single-frame, got "double"'],
  [{ core, curve: null }, 'options.curve: expected an object, got null'],
  [{ core, clock: {} }, 'options.clock.now: expected a function, got undefined'],
  [{ core, log: 'loud' }, 'options.log: expected a function, got "loud"'],
  [{ core, insecure: 'no' }, 'options.insecure: expected true or false, got "no"'],
  [
    { core, outboxLimits: { messagesMax: 0 } },
    'options.outboxLimits.messagesMax: expected a number of at least 1, got 0',
  ],
])('a server: %#', async (options, message) => {
  const starting = CoordinatorServer.start(options as never).then((server) => server.close());
  await expect(starting).rejects.toMatchObject(invalid(message));
});

test.each<[unknown, string]>([
  [undefined, 'options: expected an object, got undefined'],
  [{ address: 'tcp://127.0.0.1:*' }, 'options.address: expected the host and the port that the coordinator got'],
  [{ address: 'tcp://127.0.0.1:0' }, 'options.address: expected the host and the port that the coordinator got'],
  [{ address: 'tcp://*:5757' }, 'options.address: expected the host and the port that the coordinator got'],
  [{ address, profile: 'x' }, 'options.profile: expected multi-frame or single-frame, got "x"'],
  [{ address, connectMs: NaN }, 'options.connectMs: expected a number in [0, 2147483647], got NaN'],
  [{ address, connectMs: 1e12 }, 'options.connectMs: expected a number in [0, 2147483647], got 1000000000000'],
  [{ address, curve: null }, 'options.curve: expected an object, got null'],
])('a client: %#', async (options, message) => {
  await expect(CoordinatorClient.connect(options as never)).rejects.toMatchObject(invalid(message));
});

test('what a client is asked', async () => {
  const server = await CoordinatorServer.start({ core });
  const client = await CoordinatorClient.connect({ address: server.address, connectMs: 30_000 });
  try {
    const ask = (options: unknown) => () => client.addRequest([1], wireMap({}), options as never);
    expect(ask(null)).toThrow('options: expected an object, got null');
    expect(ask({ signal: {} })).toThrow('options.signal: expected an AbortSignal');
    expect(client.openRequests).toBe(0);
    const attest = (...words: unknown[]) => client.attestDead(...(words as [string, string]));
    const argument = (message: string) => invalid(message, 'ARGUMENT_INVALID');
    await expect(attest()).rejects.toMatchObject(argument('instance: expected a string of 1 to'));
    await expect(attest('engine', '')).rejects.toMatchObject(argument('incarnation: expected a string of 1 to'));
    await expect(attest('engine', 'i1', NaN)).rejects.toMatchObject(argument('options.deadlineMs: expected a number'));
  } finally {
    client.close();
    await server.close();
  }
});

test('an engine', async () => {
  const { handoff } = new ToyEngine();
  await handoff.setupKvTransfer('decode', 'host');
  try {
    const table: [unknown, string][] = [
      [undefined, 'options: expected an object, got undefined'],
      [{ address }, 'options.handoff: expected an object, got undefined'],
      [{ address, handoff: {} }, 'options.handoff.describeInstance: expected a function, got undefined'],
      [{ address, handoff, onFinished: 5 }, 'options.onFinished: expected a function, got 5'],
      [{ address, handoff, profile: 'x' }, 'options.profile: expected multi-frame or single-frame, got "x"'],
      [{ address, handoff, connectMs: '5' }, 'options.connectMs: expected a number in [0, 2147483647], got "5"'],
      [{ address, handoff, curve: null }, 'options.curve: expected an object, got null'],
      [{ address: 'tcp://*:5757', handoff }, 'options.address: expected the host and the port'],
    ];
    for (const [options, message] of table)
      await expect(CoordinatedEngine.connect(options as never)).rejects.toMatchObject(invalid(message));
  } finally {
    await handoff.close();
  }
});
