/** Ranks over sockets come together over any socket and in any order, or say who is missing and who was refused. */
import { existsSync, linkSync, statSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { frameBytes, frameKind } from '../../lib/control/ranks/framing.js';
import type { RankAddress } from '../../lib/control/ranks/rendezvous.js';
import type { SocketRankGroup, SocketRankGroupOptions } from '../../lib/control/socket-rank-group.js';
import { add, doNotFake, frame, listening, open, rank, rawRank, socketPath, whole } from '../support/socket-ranks.js';

describe('coming together', () => {
  test.each<[string, () => RankAddress]>([
    ['a Unix socket', () => ({ path: socketPath() })],
    ['a TCP port', () => ({ port: 0 })],
  ])('over %s, in any order', async (_name, addressOf) => {
    const asked = addressOf();
    let listens: (address: RankAddress) => void = () => undefined;
    const real = new Promise<RankAddress>((resolve) => (listens = resolve));
    // A worker that knows the address may come before rank 0 listens.
    const early = 'path' in asked ? rank({ rank: 2, size: 3, address: asked }) : null;
    const leader = rank({ rank: 0, size: 3, address: asked, onListening: listens });
    const address = await real;
    if ('port' in address) expect(address).toEqual({ host: '127.0.0.1', port: expect.any(Number) });
    else expect(statSync(address.path).mode & 0o777).toBe(0o600);
    const groups = await Promise.all([
      leader,
      rank({ rank: 1, size: 3, address }),
      early ?? rank({ rank: 2, size: 3, address }),
    ]);
    expect(groups.map((group) => [group.rank, group.size, group.failure])).toEqual([
      [0, 3, null],
      [1, 3, null],
      [2, 3, null],
    ]);
    if ('path' in address) expect(existsSync(address.path)).toBe(false); // nobody else can come
  });

  test('one rank needs no socket', async () => {
    const [group] = await whole(1);
    expect(await group!.allGather({ a: 1 })).toEqual([{ a: 1 }]);
    group!.publish(frame(1, add(1)));
    expect(group!.drainReports()).toEqual([]);
  });

  test('says which ranks are missing, and why the last newcomer was refused', async () => {
    const address = { path: socketPath() };
    const leader = listening({ size: 4, address });
    await leader.listens;
    await rawRank(address, 2, 4, frameKind.welcome);
    await expect(rank({ rank: 1, size: 4, address, token: 'what somebody else thinks' })).rejects.toMatchObject({
      code: 'RANK_SETUP_FAILED',
      message: "rank 0 refused rank 1: token: expected the instance's, got another",
    });
    leader.pass(60_000);
    await expect(leader.group).rejects.toMatchObject({
      code: 'RANK_SETUP_FAILED',
      message:
        "ranks 1, 3 of 4 did not join within 60000 ms; the last newcomer was refused: token: expected the instance's, got another",
    });
  });

  test('a worker says what it waited for', async () => {
    const path = socketPath();
    jest.useFakeTimers({ doNotFake: [...doNotFake] });
    const nobody = rank({ rank: 1, size: 3, address: { path }, setupTimeoutMs: 200 });
    nobody.catch(() => undefined);
    await new Promise((resolve) => connect(path).on('error', resolve)); // the worker's own attempt has failed before
    await new Promise((resolve) => setImmediate(resolve));
    jest.advanceTimersByTime(200);
    await expect(nobody).rejects.toMatchObject({
      code: 'RANK_SETUP_FAILED',
      message: expect.stringMatching(/^rank 1 of 3 could not join at .* within 200 ms: connect ENOENT/),
    });
  });

  test('refuses another size and a rank that is there already; the others still come together', async () => {
    const address = { path: socketPath() };
    const leader = rank({ rank: 0, size: 2, address });
    await expect(rank({ rank: 1, size: 3, address })).rejects.toThrow('rank 0 refused rank 1: size: expected 2, got 3');
    const worker = await rank({ rank: 1, size: 2, address });
    expect(await leader).toMatchObject({ rank: 0, failure: null });
    expect(worker.failure).toBeNull();

    const crowded = { path: socketPath() };
    const first = rank({ rank: 0, size: 3, address: crowded });
    const raw = await rawRank(crowded, 1, 3, frameKind.welcome);
    await expect(rank({ rank: 1, size: 3, address: crowded })).rejects.toThrow('rank 1 has joined already');
    // Its place is free again once rank 0 has seen it go.
    raw.destroy();
    const again = async (): Promise<SocketRankGroup> => {
      try {
        return await rank({ rank: 1, size: 3, address: crowded });
      } catch (error) {
        expect(error).toMatchObject({ message: expect.stringContaining('rank 1 has joined already') });
        return again();
      }
    };
    await Promise.all([first, rank({ rank: 2, size: 3, address: crowded }), again()]);
  });

  test('strangers that send anything at all do no harm', async () => {
    const address = { path: socketPath() };
    const { group: leader, listens } = listening({ size: 2, address }, false);
    await listens;
    const parts = Buffer.concat(Array.from({ length: 4 }, () => frameBytes(frameKind.part, new Uint8Array(400))));
    for (const bytes of [
      parts.toString('latin1'),
      'GET / HTTP/1.1\r\n\r\n',
      '\0\0\0\x04\x08abcd',
      '\xff\xff\xff\xff\x02',
      '',
    ]) {
      await new Promise<void>((resolve) => {
        const socket = connect(address.path, () => socket.end(Buffer.from(bytes, 'latin1')));
        socket.resume();
        socket.on('close', () => resolve());
        socket.on('error', () => undefined);
      });
    }
    const worker = await rank({ rank: 1, size: 2, address });
    expect((await leader).failure).toBeNull();
    expect(worker.failure).toBeNull();
  });

  test('a worker refuses what listens there and is no rank 0', async () => {
    const path = socketPath();
    let went: () => void = () => undefined;
    const gone = new Promise<void>((resolve) => (went = resolve));
    const impostor = createServer((socket) => {
      socket.on('error', () => undefined);
      socket.on('close', () => went());
      socket.resume();
      socket.write('HTTP/1.1 400 Bad Request\r\n');
    });
    open.push(impostor);
    await new Promise<void>((resolve) => impostor.listen(path, resolve));
    jest.useFakeTimers({ doNotFake: [...doNotFake] });
    const refused = rank({ rank: 1, size: 2, address: { path } });
    refused.catch(() => undefined);
    await gone;
    jest.advanceTimersByTime(60_000);
    await expect(refused).rejects.toMatchObject({
      code: 'RANK_SETUP_FAILED',
      message: expect.stringContaining('what it sent is refused: frame: expected at most 512 bytes'),
    });
    jest.useRealTimers();

    const other = socketPath();
    const talker = createServer((socket) => {
      socket.on('error', () => undefined);
      socket.write(frameBytes(frameKind.ready, new Uint8Array(0)));
    });
    open.push(talker);
    await new Promise<void>((resolve) => talker.listen(other, resolve));
    await expect(rank({ rank: 1, size: 2, address: { path: other } })).rejects.toThrow(
      `what listens at ${other} is no rank 0: it sent frame 5 out of turn`,
    );
  });

  test('takes the place of what a killed process left behind, and no living one’s', async () => {
    const path = socketPath();
    const living = createServer();
    open.push(living);
    await new Promise<void>((resolve) => living.listen(path, resolve));
    await expect(rank({ rank: 0, size: 2, address: { path } })).rejects.toMatchObject({
      code: 'RANK_SETUP_FAILED',
      message: expect.stringContaining('EADDRINUSE'),
    });
    // A listener that goes without unlinking: its file stays.
    const left = socketPath();
    linkSync(path, left);
    await new Promise((resolve) => living.close(resolve));
    expect(existsSync(left)).toBe(true);
    await whole(2, { path: left });
  });

  test.each<[Partial<SocketRankGroupOptions>, string]>([
    [{ size: 0 }, 'options.size: expected a number of ranks, 1 to 4096, got 0'],
    [{ size: 5000 }, 'options.size: expected a number of ranks, 1 to 4096, got 5000'],
    [{ rank: 2 }, 'options.rank: expected a rank in [0, 1], got 2'],
    [{ rank: -1 }, 'options.rank: expected a rank in [0, 1], got -1'],
    [{ token: 'short' }, 'options.token: expected a secret of 16 to 4096 characters, got 5'],
    [{ token: 7 as unknown as string }, 'options.token: expected a secret of 16 to 4096 characters, got 7'],
    [{ address: { path: '' } }, 'options.address.path: expected a path of 1 to 107 characters, got ""'],
    [
      { address: { path: 'x'.repeat(108) } },
      `options.address.path: expected a path of 1 to 107 characters, got "${'x'.repeat(64)}"…`,
    ],
    [{ address: { port: 65_536 } }, 'options.address.port: expected a port, 0 to 65535, or a path, got 65536'],
    [
      { address: undefined as unknown as RankAddress },
      'options.address.port: expected a port, 0 to 65535, or a path, got undefined',
    ],
    [{ address: { host: '', port: 1 } }, 'options.address.host: expected a host, got ""'],
    [{ rank: 1, address: { port: 0 } }, 'options.address.port: expected the port on which rank 0 listens, got 0'],
    [{ setupTimeoutMs: 0 }, 'options.setupTimeoutMs: expected an integer in [1, 2147483647], got 0'],
    [{ frameBytesMax: 1023 }, 'options.frameBytesMax: expected an integer in [1024, 2147483647], got 1023'],
    [{ backlogBytesMax: 1.5 }, 'options.backlogBytesMax: expected an integer in [1024, 9007199254740991], got 1.5'],
  ])('refuses %p', async (wrong, message) => {
    await expect(rank({ rank: 0, size: 2, address: { path: socketPath() }, ...wrong })).rejects.toMatchObject({
      code: 'ARGUMENT_INVALID',
      message,
    });
  });
});
