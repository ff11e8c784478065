/**
 * Goal: one rank's transfer reports only what is proved, whatever its transport says or throws. Method: handles whose
 * status the test sets, every combination of two legs' statuses, and each call in each state.
 */
import type { Fence } from '../../lib/engine-context.js';
import { HandoffError } from '../../lib/errors.js';
import { LocalTransfer, type LocalTransferState, type TransferLeg } from '../../lib/decode/local-transfer.js';
import type { Peer, PeerStatus, TransferHandle, TransferStatus, Transport } from '../../lib/transfer/transport.js';

class FakeHandle implements TransferHandle {
  error: HandoffError | null = null;
  bytesDone = 0;
  landed: Fence | null = null;
  cancels = 0;
  attested = false;
  pollThrows = false;

  constructor(public status: TransferStatus = 'active') {}

  poll(): TransferStatus {
    if (this.pollThrows) throw new Error('the poll threw');
    return this.status;
  }

  cancel(): void {
    this.cancels += 1;
  }

  peerAttestedDead(): void {
    this.attested = true;
    if (this.status === 'failed-active') this.status = 'failed-quiet';
  }
}

class FakePeer implements Peer {
  error: HandoffError | null = null;

  constructor(public now: PeerStatus = 'ready') {}

  status(): PeerStatus {
    return this.now;
  }

  close(): void {
    this.now = 'failed';
  }
}

interface Fixture {
  readonly transfer: LocalTransfer;
  readonly handles: FakeHandle[];
  readonly peers: FakePeer[];
  readonly pollErrors: unknown[];
  readonly started: number[];
}

function fixture(
  legCount: number,
  options: {
    readonly gates?: readonly Fence[];
    readonly peers?: readonly PeerStatus[];
    readonly start?: (leg: number) => TransferHandle;
  } = {},
): Fixture {
  const handles = Array.from({ length: legCount }, () => new FakeHandle());
  const peers = Array.from({ length: legCount }, (_, index) => new FakePeer(options.peers?.[index] ?? 'ready'));
  const started: number[] = [];
  const pollErrors: unknown[] = [];
  const legs = peers.map((peer, index): TransferLeg => ({
    transport: { name: `t${index % 2}` } as Transport,
    peer,
    request: { programs: [], generations: null, tag: String(index) },
  }));
  const start = (leg: TransferLeg): TransferHandle => {
    const index = legs.indexOf(leg);
    started.push(index);
    return options.start?.(index) ?? handles[index]!;
  };
  const transfer = new LocalTransfer(1, legs, options.gates ?? [], 100, start, (error) => pollErrors.push(error));
  return { transfer, handles, peers, pollErrors, started };
}

const statuses: readonly TransferStatus[] = ['active', 'done', 'failed-quiet', 'failed-active'];

/** What two legs make together, by law 1: failed if one failed, quiet only if none may still write. */
function expectedState(a: TransferStatus, b: TransferStatus): LocalTransferState {
  const both = [a, b];
  const failed = both.some((status) => status.startsWith('failed'));
  const moving = both.some((status) => status === 'active' || status === 'failed-active');
  if (failed) return moving ? 'failedActive' : 'failedQuiet';
  return moving ? 'active' : 'landed';
}

describe.each(statuses)('one leg is %s', (a) => {
  test.each(statuses)('the other is %s', (b) => {
    const { transfer, handles } = fixture(2);
    transfer.poll(0);
    handles[0]!.status = a;
    handles[1]!.status = b;
    transfer.poll(0);
    const state = expectedState(a, b);
    expect(transfer.state).toBe(state);
    const report = { landed: { failed: false, safe: true }, failedQuiet: { failed: true, safe: true } };
    expect(transfer.takeReport()).toEqual(
      state === 'failedActive' ? { failed: true, safe: false } : (report[state as 'landed'] ?? null),
    );
    expect(transfer.takeReport()).toBeNull();
    // One leg's failure stops the others, once.
    const failed = state.startsWith('failed');
    expect(handles.map(({ cancels }) => cancels)).toEqual(failed ? [1, 1] : [0, 0]);
    expect(transfer.error === null).toBe(!failed);
    for (const handle of handles)
      if (handle.status.endsWith('active')) handle.status = failed ? 'failed-quiet' : 'done';
    transfer.poll(0);
    expect(transfer.state).toBe(failed ? 'failedQuiet' : 'landed');
    expect(transfer.takeReport()).toEqual(
      state === 'failedQuiet' || state === 'landed' ? null : { failed, safe: true },
    );
  });
});

describe('while nothing has started', () => {
  test('it waits for each peer and each fence, and then starts every leg once', () => {
    let fired = false;
    const f = fixture(2, { gates: [{ isComplete: () => fired }], peers: ['ready', 'connecting'] });
    f.transfer.poll(0);
    f.peers[1]!.now = 'ready';
    f.transfer.poll(1);
    expect([f.transfer.state, f.started]).toEqual(['gated', []]);
    fired = true;
    f.transfer.poll(2);
    f.transfer.poll(3);
    expect([f.transfer.state, f.started]).toEqual(['active', [0, 1]]);
  });

  test('a peer that fails ends it with the reason of the peer, and nothing starts', () => {
    const f = fixture(2, { peers: ['connecting', 'connecting'] });
    f.transfer.poll(0);
    f.peers[0]!.error = new HandoffError('PEER_LOST', 'gone');
    f.peers[0]!.now = 'failed';
    f.transfer.poll(1);
    expect([f.transfer.state, f.transfer.error!.code, f.started]).toEqual(['failedQuiet', 'PEER_LOST', []]);
    expect(f.transfer.takeReport()).toEqual({ failed: true, safe: true });
  });

  test('a peer that fails without a reason is unreachable', () => {
    const f = fixture(1, { peers: ['failed'] });
    f.transfer.poll(0);
    expect(f.transfer.error!.code).toBe('PEER_UNREACHABLE');
  });

  test.each(['peer', 'fence'])('the handshake deadline ends one that waits for a %s', (what) => {
    const f =
      what === 'peer' ? fixture(1, { peers: ['connecting'] }) : fixture(1, { gates: [{ isComplete: () => false }] });
    f.transfer.poll(99.9);
    expect(f.transfer.state).toBe('gated');
    f.transfer.poll(100);
    expect([f.transfer.state, f.transfer.error!.code]).toEqual(['failedQuiet', 'HANDSHAKE_DEADLINE']);
  });

  test('what is ready at the deadline starts all the same', () => {
    const f = fixture(1);
    f.transfer.poll(100);
    expect(f.transfer.state).toBe('active');
  });

  test('a cancel ends it at once, and it never starts', () => {
    const f = fixture(1, { peers: ['connecting'] });
    f.transfer.cancel();
    f.peers[0]!.now = 'ready';
    f.transfer.poll(1);
    expect([f.transfer.state, f.transfer.error!.code, f.started]).toEqual(['failedQuiet', 'TRANSFER_CANCELLED', []]);
  });
});

describe('a start that throws', () => {
  const unsafe = new HandoffError('TRANSFER_FAILED', 'no', { targetSafe: false, sourceSafe: false });

  test('safely: quiet as soon as the legs before it are', () => {
    const f = fixture(3, {
      start: (leg) => {
        if (leg === 1) throw new HandoffError('NATIVE_LIMIT', 'full');
        return f.handles[leg]!;
      },
    });
    f.transfer.poll(0);
    expect([f.transfer.state, f.transfer.error!.code, f.started]).toEqual(['failedActive', 'NATIVE_LIMIT', [0, 1]]);
    expect(f.handles[0]!.cancels).toBe(1);
    f.handles[0]!.status = 'done';
    f.transfer.poll(0);
    expect(f.transfer.state).toBe('failedQuiet');
  });

  test.each([unsafe, new Error('odd'), 'a string', undefined])(
    'without proof (%p): never quiet until attested',
    (thrown) => {
      const f = fixture(1, {
        start: () => {
          // eslint-disable-next-line @typescript-eslint/only-throw-error -- a transport of the host engine may throw anything
          throw thrown;
        },
      });
      for (let now = 0; now < 1e6; now += 1e5) f.transfer.poll(now);
      expect([f.transfer.state, f.transfer.error!.code]).toEqual(['failedActive', 'TRANSFER_FAILED']);
      expect(f.transfer.takeReport()).toEqual({ failed: true, safe: false });
      f.transfer.peerAttestedDead();
      f.transfer.poll(0);
      expect(f.transfer.state).toBe('failedQuiet');
      expect(f.transfer.takeReport()).toEqual({ failed: true, safe: true });
    },
  );

  test('with a handle to watch: quiet when that is', () => {
    const watched = new FakeHandle('failed-active');
    const f = fixture(1, {
      start: () => {
        throw new HandoffError('TRANSFER_FAILED', 'no', { targetSafe: false, details: { cleanupHandles: [watched] } });
      },
    });
    f.transfer.poll(0);
    expect([f.transfer.state, watched.cancels]).toEqual(['failedActive', 1]);
    watched.status = 'failed-quiet';
    f.transfer.poll(0);
    expect(f.transfer.state).toBe('failedQuiet');
  });
});

describe('whatever else a transport does', () => {
  test('a poll that throws changes nothing and is told', () => {
    const f = fixture(2);
    f.transfer.poll(0);
    f.handles[0]!.status = 'done';
    f.handles[1]!.pollThrows = true;
    f.transfer.poll(0);
    expect([f.transfer.state, f.transfer.pollErrors, f.pollErrors.length]).toEqual(['active', 2 - 1, 1]);
    f.handles[1]!.pollThrows = false;
    f.handles[1]!.status = 'done';
    f.transfer.poll(0);
    expect(f.transfer.state).toBe('landed');
  });

  test('a poll that throws after a failure is no proof of quiet', () => {
    const f = fixture(1);
    f.transfer.poll(0);
    f.handles[0]!.status = 'failed-active';
    f.transfer.poll(0);
    f.handles[0]!.pollThrows = true;
    f.transfer.poll(0);
    expect(f.transfer.state).toBe('failedActive');
  });

  test('cancel asks every handle once', () => {
    const f = fixture(2);
    f.transfer.poll(0);
    f.transfer.cancel();
    f.transfer.cancel();
    expect(f.handles.map(({ cancels }) => cancels)).toEqual([1, 1]);
    expect(f.transfer.state).toBe('active');
  });

  test.each<[LocalTransferState, TransferStatus]>([
    ['landed', 'done'],
    ['failedQuiet', 'failed-quiet'],
  ])('%s is final: neither cancel nor attestation nor a lying handle changes it', (state, status) => {
    const f = fixture(1);
    f.transfer.poll(0);
    f.handles[0]!.status = status;
    f.transfer.poll(0);
    f.transfer.takeReport();
    f.handles[0]!.status = 'failed-active';
    f.transfer.cancel();
    f.transfer.peerAttestedDead();
    f.handles[0]!.status = 'active';
    f.transfer.poll(0);
    expect([f.transfer.state, f.transfer.takeReport()]).toEqual([state, null]);
  });

  test('a failure without a reason gets one', () => {
    const f = fixture(1);
    f.transfer.poll(0);
    f.handles[0]!.status = 'failed-quiet';
    f.transfer.poll(0);
    expect(f.transfer.error).toMatchObject({ code: 'TRANSFER_FAILED' });
  });

  test('what was never started is failed from the beginning and starts nothing', () => {
    const transfer = LocalTransfer.failed(3, new HandoffError('NO_TRANSPORT', 'none'));
    transfer.poll(0);
    transfer.cancel();
    transfer.peerAttestedDead();
    expect([transfer.state, transfer.error!.code, transfer.landed, transfer.bytesDone]).toEqual([
      'failedQuiet',
      'NO_TRANSPORT',
      null,
      0,
    ]);
    expect(transfer.takeReport()).toEqual({ failed: true, safe: true });
  });

  test('bytes, names and the landing fence are those of all legs', () => {
    const f = fixture(3);
    f.transfer.poll(0);
    let fired = false;
    f.handles.forEach((handle, index) => Object.assign(handle, { status: 'done', bytesDone: 10 ** index }));
    expect(f.transfer.landed).toBeNull();
    f.handles[1]!.landed = { isComplete: () => true };
    f.handles[2]!.landed = { isComplete: () => fired };
    f.transfer.poll(0);
    expect([f.transfer.bytesDone, f.transfer.transportNames]).toEqual([111, ['t0', 't1']]);
    expect(f.transfer.landed!.isComplete()).toBe(false);
    fired = true;
    expect(f.transfer.landed!.isComplete()).toBe(true);
  });

  test('no legs at all: landed at once', () => {
    const f = fixture(0);
    f.transfer.poll(0);
    expect(f.transfer.state).toBe('landed');
  });
});
