/** Ranks that talk over sockets: what arrives, who is let in, and what a rank that is gone means. */
import { connect, type Socket } from 'node:net';
import { randomBytes } from 'node:crypto';
import { receive } from '../../examples/engine/peers.js';
import { SocketPeers } from '../../examples/engine/socket-peers.js';
import { runSteps } from '../../examples/engine/turn-runner.js';
import { WakeUp } from '../../examples/engine/wake-up.js';

const secret = randomBytes(16).toString('hex');
let name = '';
const opened = new Set<SocketPeers>();
const strangers = new Set<Socket>();

beforeEach(() => {
  name = `sh-test-${randomBytes(8).toString('hex')}`;
});

afterEach(() => {
  for (const peers of opened) peers.close();
  for (const stranger of strangers) stranger.destroy();
  opened.clear();
  strangers.clear();
});

async function openRank(rank: number, size: number, changes: object = {}): Promise<SocketPeers> {
  const peers = await SocketPeers.open({ rank, size, name, secret, ...changes });
  opened.add(peers);
  return peers;
}

/** The next message of a rank, waited for as a rank of an engine waits. */
function next(peers: SocketPeers, from: number): Promise<Uint8Array> {
  const wakeUp = new WakeUp();
  peers.onArrival = () => wakeUp.poke();
  return runSteps(receive(peers, from), wakeUp);
}

/** Sockets are busy with each other; a rank opens when all do. */
const openAll = (size: number): Promise<SocketPeers[]> =>
  Promise.all(Array.from({ length: size }, (_, rank) => openRank(rank, size)));

test('messages of any size arrive in order, between any two ranks, both ways', async () => {
  const ranks = await openAll(3);
  const messages = [0, 1, 5, 70_000, 3_000_000].map((size, index) => new Uint8Array(size).fill(index + 1));
  for (const from of ranks) {
    for (const to of ranks.filter((each) => each !== from)) {
      for (const message of messages) from.send(to.rank, message.slice());
      for (const message of messages) {
        expect(Buffer.from(await next(to, from.rank)).equals(Buffer.from(message))).toBe(true);
      }
      expect(to.take(from.rank)).toBeNull();
    }
  }
});

test('what a rank sent before it left is read, and then its absence is an error that names it', async () => {
  const [a, b] = (await openAll(2)) as [SocketPeers, SocketPeers];
  b.send(0, Uint8Array.of(7));
  b.close();
  expect(Array.from(await next(a, 1))).toEqual([7]);
  await expect(next(a, 1)).rejects.toMatchObject({
    code: 'PEER_RANK_FAILED',
    message: expect.stringContaining('rank 1 is gone'),
  });
  expect(() => a.send(1, Uint8Array.of(1))).toThrow(expect.objectContaining({ code: 'PEER_RANK_FAILED' }));
});

test('a rank that does not come up ends the opening, and is named', async () => {
  const first = openRank(0, 3, { deadlineMs: 300 });
  const second = openRank(1, 3, { deadlineMs: 300 });
  const message = expect.stringMatching(/rank \d waited 300 ms for rank (\d, )?2 to come up/);
  await expect(first).rejects.toMatchObject({ code: 'PEER_RANK_FAILED', message });
  await expect(second).rejects.toMatchObject({ code: 'PEER_RANK_FAILED', message });
});

test('who does not know the secret is not let in', async () => {
  const first = openRank(0, 2, { deadlineMs: 60_000 });
  await new Promise((resolve) => setImmediate(resolve));
  const hello = (key: string, rank: number): Buffer => {
    const bytes = Buffer.alloc(20);
    Buffer.from(key, 'hex').copy(bytes);
    bytes.writeUInt32LE(rank, 16);
    return bytes;
  };
  for (const said of [hello(randomBytes(16).toString('hex'), 1), hello(secret, 0), hello(secret, 2)]) {
    const stranger = connect(`\0${name}-0`, () => stranger.write(said));
    strangers.add(stranger);
    await new Promise((resolve) => stranger.once('close', resolve));
  }
  const second = await openRank(1, 2);
  second.send(0, Uint8Array.of(9));
  expect(Array.from(await next(await first, 1))).toEqual([9]);
});

test('a length that no message has ends the connection', async () => {
  const first = openRank(0, 2);
  await new Promise((resolve) => setImmediate(resolve));
  const liar = connect(`\0${name}-0`);
  strangers.add(liar);
  const hello = Buffer.alloc(24);
  Buffer.from(secret, 'hex').copy(hello);
  hello.writeUInt32LE(1, 16);
  hello.writeUInt32LE(0xffffffff, 20);
  liar.write(hello);
  await expect(next(await first, 1)).rejects.toMatchObject({ code: 'PEER_RANK_FAILED' });
});

test.each([
  ['rank', { rank: 2 }, /rank: expected an integer in \[0, 1\], got 2/],
  ['name', { name: '../x' }, /name: expected up to 64 letters, digits and dashes, got "\.\.\/x"/],
  ['secret', { secret: 'abc' }, /secret: expected 32 hexadecimal digits/],
])('a %s that makes no sense is refused', async (_, changes, message) => {
  await expect(openRank(0, 2, changes)).rejects.toMatchObject({
    code: 'ARGUMENT_INVALID',
    message: expect.stringMatching(message),
  });
});

test('a poke before the wait is not missed, and a wait ends by itself when asked to', async () => {
  const wakeUp = new WakeUp();
  wakeUp.poke();
  await wakeUp.wait();
  await wakeUp.wait(1);
  const waiting = wakeUp.wait();
  wakeUp.poke();
  await waiting;
});
