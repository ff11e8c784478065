/**
 * Every scripted fault, one by one: what moves, what each handle says, and when memory is quiet.
 *
 * Bytes are looked at after every step, because what a handle says and what moves are two things.
 */
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import type { Peer, TransferRequest, TransferHandle } from '../../lib/transfer/transport.js';
import { PlainRegion } from '../../lib/memory/plain-region.js';
import { expandMoves } from '../../lib/testing/copy-moves.js';
import { ModelBlockPool } from '../../lib/testing/model-block-pool.js';
import { ScriptedNetwork } from '../../lib/testing/scripted-network.js';
import type { ScriptedTransfer } from '../../lib/testing/scripted-transfer.js';
import { ScriptedTransport, type ScriptedTransportOptions } from '../../lib/testing/scripted-transport.js';
import { SeededRandom } from '../../lib/testing/seeded-random.js';
import { SimulatedClock } from '../../lib/testing/simulated-clock.js';
import { faults, seededScript, type TransferPlan } from '../../lib/testing/transfer-script.js';

const blockBytes = 8;
const blocks = 6;

class Rank {
  readonly region = new PlainRegion(blocks * blockBytes);
  readonly bytes = new Uint8Array(this.region.buffer);
  readonly transport: ScriptedTransport;

  constructor(network: ScriptedNetwork, options: ScriptedTransportOptions = {}) {
    this.transport = new ScriptedTransport(network, options);
    this.transport.register(this.region);
  }

  connect(peer: Rank): Peer {
    return this.transport.connect(peer.transport.grant());
  }
}

/** Source blocks to target blocks, whole. */
function copy(source: readonly number[], target: readonly number[]): CopyProgram {
  return {
    rectangles: [
      {
        sourceRegion: 0,
        targetRegion: 0,
        table: 0,
        tableFrom: 0,
        tableCount: source.length,
        sourceOffset: 0,
        targetOffset: 0,
        fragmentBytes: blockBytes,
        loops: [],
      },
    ],
    tables: [
      {
        source: Int32Array.from(source),
        target: Int32Array.from(target),
        strides: { sourceBlock: blockBytes, targetBlock: blockBytes, sourceSub: 0, targetSub: 0 },
      },
    ],
  };
}

const request = (tag: string, ...programs: CopyProgram[]): TransferRequest => ({ programs, generations: null, tag });

interface Pair {
  readonly network: ScriptedNetwork;
  readonly source: Rank;
  readonly target: Rank;
  readonly peer: Peer;
}

function pair(options: ScriptedTransportOptions = {}): Pair {
  const network = new ScriptedNetwork();
  const source = new Rank(network, options);
  const target = new Rank(network, options);
  source.bytes.forEach((_, index) => (source.bytes[index] = index + 1));
  return { network, source, target, peer: target.connect(source) };
}

/** Begins a pull of blocks [1, 3] into [4, 0], with the given plan. */
function begin(each: Pair, plan: Partial<TransferPlan> = {}, tag = 't'): TransferHandle {
  each.network.planNext(plan);
  return each.target.transport.begin(request(tag, copy([1, 3], [4, 0])), each.peer);
}

/** How many of the 16 bytes of `begin` have arrived. */
function arrived({ source, target }: Pair): number {
  const expected = [...source.bytes.subarray(8, 16), ...source.bytes.subarray(24, 32)];
  const got = [...target.bytes.subarray(32, 40), ...target.bytes.subarray(0, 8)];
  return got.filter((byte, index) => byte !== 0 && byte === expected[index]).length;
}

describe('a pull', () => {
  test('copies exactly what the program says, in pieces, as time goes on', () => {
    const each = pair();
    const handle = begin(each, { startAfterMs: 5, pieces: 4, pieceMs: 2 });
    expect([handle.poll(), arrived(each), handle.bytesDone]).toEqual(['active', 0, 0]);
    each.network.advance(4.9);
    expect(arrived(each)).toBe(0);
    each.network.advance(0.1);
    expect([handle.poll(), arrived(each), handle.bytesDone]).toEqual(['active', 4, 4]);
    each.network.advance(2);
    expect(arrived(each)).toBe(8);
    expect(each.network.step()).toBe(true);
    expect(each.network.clock.now()).toBe(9);
    each.network.advance(2);
    expect([handle.poll(), arrived(each), handle.bytesDone, handle.error]).toEqual(['done', 16, 16, null]);
    expect([...each.target.bytes].filter((byte) => byte !== 0)).toHaveLength(16);
    expect(each.network.transfers.size).toBe(0);
  });

  test('reads the source as it is when each piece moves, not as it was at begin', () => {
    const each = pair();
    begin(each, { startAfterMs: 1, pieces: 2, pieceMs: 1 });
    each.network.advance(1);
    each.source.bytes.fill(200);
    each.network.advance(1);
    expect([...each.target.bytes.subarray(32, 40)]).toEqual([9, 10, 11, 12, 13, 14, 15, 16]);
    expect([...each.target.bytes.subarray(0, 8)]).toEqual(new Array(8).fill(200));
  });

  test('walks loops and sub-blocks of a program', () => {
    const each = pair();
    const program: CopyProgram = {
      rectangles: [
        {
          sourceRegion: 0,
          targetRegion: 0,
          table: 0,
          tableFrom: 1,
          tableCount: 1,
          sourceOffset: 1,
          targetOffset: 2,
          fragmentBytes: 1,
          loops: [
            { count: 2, sourceStride: 16, targetStride: 4 },
            { count: 2, sourceStride: 2, targetStride: 1 },
          ],
        },
        {
          sourceRegion: 0,
          targetRegion: 0,
          table: -1,
          tableFrom: 0,
          tableCount: 0,
          sourceOffset: 0,
          targetOffset: 47,
          fragmentBytes: 1,
          loops: [],
        },
      ],
      tables: [
        {
          source: Int32Array.of(5, 0),
          target: Int32Array.of(5, 1),
          sourceSub: Int32Array.of(1, 1),
          targetSub: Int32Array.of(1, 3),
          strides: { sourceBlock: 8, targetBlock: 8, sourceSub: 4, targetSub: 2 },
        },
      ],
    };
    const handle = each.target.transport.begin(request('loops', program), each.peer);
    each.network.advance(0);
    expect(handle.poll()).toBe('done');
    // Source: row 1 is block 0, sub 1: 0 + 4 + 1 = 5; then +2, +16, +18. Target: block 1, sub 3: 8 + 6 + 2 = 16.
    const expected = new Uint8Array(48);
    for (const [to, from] of [
      [16, 5],
      [17, 7],
      [20, 21],
      [21, 23],
      [47, 0],
    ] as const) {
      expected[to] = from + 1;
    }
    expect([...each.target.bytes]).toEqual([...expected]);
  });

  test('of nothing is done at once', () => {
    const each = pair();
    const handle = each.target.transport.begin(request('none'), each.peer);
    expect(handle.poll()).toBe('done');
    expect(each.target.transport.takeChanged()).toEqual([handle]);
    expect(each.network.transfers.size).toBe(0);
  });

  test('tells of changes once each, and wakes once until they are taken', () => {
    const each = pair();
    let wakes = 0;
    each.target.transport.onWake = () => wakes++;
    const first = begin(each, {}, 'a');
    const second = begin(each, {}, 'b');
    expect(each.target.transport.takeChanged()).toEqual([]);
    each.network.advance(0);
    expect(wakes).toBe(1);
    expect(each.target.transport.takeChanged()).toEqual([first, second]);
    expect(each.target.transport.takeChanged()).toEqual([]);
    begin(each, {}, 'c');
    each.network.advance(0);
    expect(wakes).toBe(2);
  });

  test('shows every write to the hook, with the tag, before the byte changes', () => {
    const each = pair();
    const writes: unknown[] = [];
    const reads: unknown[] = [];
    each.network.onWrite = (target, region, offset, length, tag, transfer) => {
      expect(target).toBe(each.target.transport);
      expect(each.target.bytes[offset]).toBe(0);
      expect(transfer.source).toBe(each.source.transport);
      writes.push([region, offset, length, tag]);
    };
    each.network.onRead = (source, region, offset, length) => {
      expect(source).toBe(each.source.transport);
      reads.push([region, offset, length]);
    };
    begin(each, { pieces: 4, pieceMs: 1 }, 'mine');
    each.network.advance(10);
    expect(writes).toEqual([
      [0, 32, 4, 'mine'],
      [0, 36, 4, 'mine'],
      [0, 0, 4, 'mine'],
      [0, 4, 4, 'mine'],
    ]);
    expect(reads).toEqual([
      [0, 8, 4],
      [0, 12, 4],
      [0, 24, 4],
      [0, 28, 4],
    ]);
  });
});

describe('faults', () => {
  test('drop: nothing moves and nobody is told, until it is cancelled', () => {
    const each = pair();
    const handle = begin(each, faults.drop());
    each.network.advance(1e6);
    expect([handle.poll(), arrived(each), handle.error]).toEqual(['active', 0, null]);
    handle.cancel();
    expect([handle.poll(), handle.error?.code]).toEqual(['failed-quiet', 'TRANSFER_CANCELLED']);
  });

  test('delay: late, but whole', () => {
    const each = pair();
    const handle = begin(each, faults.delay(100));
    each.network.advance(99);
    expect([handle.poll(), arrived(each)]).toEqual(['active', 0]);
    each.network.advance(1);
    expect([handle.poll(), arrived(each)]).toEqual(['done', 16]);
  });

  test('duplicate: the same end is told again and again', () => {
    const each = pair();
    const handle = begin(each, faults.duplicate(2, 3));
    each.network.advance(0);
    expect(each.target.transport.takeChanged()).toEqual([handle]);
    each.network.advance(2);
    expect(each.target.transport.takeChanged()).toEqual([]);
    each.network.advance(1);
    expect(each.target.transport.takeChanged()).toEqual([handle]);
    each.network.advance(3);
    expect(each.target.transport.takeChanged()).toEqual([handle]);
    each.network.advance(1e3);
    expect(each.target.transport.takeChanged()).toEqual([]);
    expect(handle.poll()).toBe('done');
  });

  test('stall: half arrives, then silence for ever', () => {
    const each = pair();
    const handle = begin(each, faults.stall());
    each.network.advance(1e6);
    expect([handle.poll(), arrived(each), each.network.transfers.size]).toEqual(['active', 8, 1]);
  });

  test('a stall after the last piece loses only the notice', () => {
    const each = pair();
    const handle = begin(each, { pieces: 2, pieceMs: 1, fault: { kind: 'stall', afterPieces: 2 } });
    each.network.advance(1e6);
    expect([handle.poll(), arrived(each)]).toEqual(['active', 16]);
  });

  test('partial write: half arrives, then a failure with proof of quiet', () => {
    const each = pair();
    const handle = begin(each, faults.partialWrite());
    each.network.advance(1e3);
    expect([handle.poll(), arrived(each), handle.bytesDone]).toEqual(['failed-quiet', 8, 8]);
    expect(handle.error).toMatchObject({ code: 'TRANSFER_FAILED', targetSafe: true, sourceSafe: true });
  });

  test('error without proof: in doubt until the proof comes', () => {
    const each = pair();
    const handle = begin(each, faults.partialWrite('later', 7));
    each.network.advance(1);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-active', 8]);
    expect(handle.error).toMatchObject({ code: 'TRANSFER_FAILED', targetSafe: false, sourceSafe: false });
    each.network.advance(6.9);
    expect(handle.poll()).toBe('failed-active');
    expect(each.target.transport.takeChanged()).toEqual([handle]);
    each.network.advance(0.1);
    expect(handle.poll()).toBe('failed-quiet');
    expect(handle.error).toMatchObject({ code: 'TRANSFER_FAILED', targetSafe: false });
    expect(each.target.transport.takeChanged()).toEqual([handle]);
  });

  test('error without proof, for ever: only an attested death makes it quiet', () => {
    const each = pair();
    const handle = begin(each, faults.error('never'));
    each.network.advance(1e6);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-active', 0]);
    handle.cancel();
    each.network.advance(1e6);
    expect(handle.poll()).toBe('failed-active');
    each.network.kill(each.source.transport);
    expect(handle.poll()).toBe('failed-active');
    handle.peerAttestedDead();
    expect(handle.poll()).toBe('failed-quiet');
  });

  test('a failed transfer goes on writing, and stops exactly at its proof', () => {
    const each = pair();
    const handle = begin(each, faults.errorWhileWriting('later', 1.5));
    each.network.advance(1);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-active', 8]);
    each.network.advance(1);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-active', 12]);
    each.network.advance(1e3);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-quiet', 12]);
  });

  test('a failed transfer without proof that writes to its end is still no proof', () => {
    const each = pair();
    const handle = begin(each, faults.errorWhileWriting('never'));
    each.network.advance(1e6);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-active', 16]);
  });

  test.each(['done', 'failed-quiet'] as const)('late done: a cancel is not heeded, and it ends as %s', (end) => {
    const each = pair();
    const handle = begin(each, faults.lateDone(50, end));
    each.network.advance(2);
    handle.cancel();
    each.network.advance(40);
    expect([handle.poll(), arrived(each)]).toEqual(['active', 8]);
    each.network.advance(10);
    expect([handle.poll(), arrived(each)]).toEqual([end, 16]);
    expect(handle.error?.code).toBe(end === 'done' ? undefined : 'TRANSFER_CANCELLED');
  });

  test('late done in one piece is late too, and done when nobody cancels', () => {
    const each = pair();
    const handle = begin(each, { fault: { kind: 'late-done', afterMs: 5, end: 'failed-quiet' } });
    each.network.advance(4);
    expect([handle.poll(), arrived(each)]).toEqual(['active', 0]);
    each.network.advance(1);
    expect([handle.poll(), arrived(each)]).toEqual(['done', 16]);
  });

  test('a cancel takes its time, and bytes arrive until it has taken effect', () => {
    const each = pair();
    const handle = begin(each, { pieces: 4, pieceMs: 1, cancelAfterMs: 1.5 });
    each.network.advance(0);
    handle.cancel();
    handle.cancel();
    each.network.advance(1);
    expect([handle.poll(), arrived(each)]).toEqual(['active', 8]);
    each.network.advance(1e3);
    expect([handle.poll(), arrived(each), handle.error?.code]).toEqual(['failed-quiet', 8, 'TRANSFER_CANCELLED']);
  });

  test('a cancel that comes too late loses', () => {
    const each = pair();
    const handle = begin(each, { pieces: 2, pieceMs: 1, cancelAfterMs: 5 });
    handle.cancel();
    each.network.advance(1e3);
    expect([handle.poll(), handle.error]).toEqual(['done', null]);
    handle.cancel();
    handle.peerAttestedDead();
    expect([handle.poll(), handle.error]).toEqual(['done', null]);
  });

  test('without proof of quiet on cancel, the end of the bytes is the proof', () => {
    const each = pair({ provesQuietOnCancel: false });
    expect(each.target.transport.capabilities.provesQuietOnCancel).toBe(false);
    const handle = begin(each, { pieces: 2, pieceMs: 1 });
    each.network.advance(0);
    handle.cancel();
    expect([handle.poll(), handle.error?.targetSafe, arrived(each)]).toEqual(['failed-active', false, 8]);
    each.network.advance(1);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-quiet', 16]);
    const stuck = begin(each, faults.stall(), 'stuck');
    each.network.advance(5);
    stuck.cancel();
    each.network.advance(1e6);
    expect(stuck.poll()).toBe('failed-active');
  });

  test('a cancel under way is no proof for a transfer that failed in doubt meanwhile', () => {
    const each = pair();
    const handle = begin(each, { ...faults.partialWrite('never'), cancelAfterMs: 5 });
    handle.cancel();
    each.network.advance(1e3);
    expect([handle.poll(), handle.error?.code]).toEqual(['failed-active', 'TRANSFER_FAILED']);
  });

  test('a scripted error after a cancel keeps its own proof', () => {
    const each = pair({ provesQuietOnCancel: false });
    const handle = begin(each, faults.errorWhileWriting('never'));
    handle.cancel();
    each.network.advance(1e3);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-active', 16]);
  });

  test('the end of the bytes of a dead source proves nothing', () => {
    const each = pair({ provesQuietOnCancel: false });
    const handle = begin(each, { pieces: 4, pieceMs: 1, peerDeath: { outcome: 'in-doubt', lingerMs: 100 } });
    each.network.advance(0);
    handle.cancel();
    each.network.kill(each.source.transport);
    each.network.advance(1e3);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-active', 16]);
    handle.peerAttestedDead();
    expect(handle.poll()).toBe('failed-quiet');
  });

  test('what was to happen in the middle of a transfer does not happen once it is over', () => {
    const each = pair();
    const handle = begin(each, faults.peerRestart());
    each.network.advance(0);
    handle.cancel();
    each.network.advance(1e3);
    expect([handle.poll(), each.source.transport.isDead]).toEqual(['failed-quiet', false]);
  });

  test('begin that throws with safe targets: no byte, no transfer', () => {
    const each = pair();
    expect(() => begin(each, faults.beginThrows(true))).toThrow(
      expect.objectContaining({ code: 'TRANSFER_FAILED', targetSafe: true, details: { cleanupHandles: [] } }),
    );
    each.network.advance(1e3);
    expect([arrived(each), each.network.transfers.size]).toEqual([0, 0]);
  });

  test('begin that throws with unsafe targets and no handle: bytes move, and nothing ever proves quiet', () => {
    const each = pair();
    const quiet: ScriptedTransfer[] = [];
    each.network.onQuiet = (transfer) => quiet.push(transfer);
    expect(() => begin(each, faults.beginThrows(false))).toThrow(
      expect.objectContaining({
        code: 'TRANSFER_FAILED',
        targetSafe: false,
        sourceSafe: false,
        details: { cleanupHandles: [] },
      }),
    );
    each.network.advance(1e3);
    expect([arrived(each), each.network.transfers.size, quiet.length]).toEqual([16, 1, 0]);
    expect(each.target.transport.takeChanged()).toEqual([]);
    each.network.kill(each.source.transport);
    expect([each.network.transfers.size, quiet.length]).toEqual([0, 1]);
  });

  test('begin that throws with a handle for cleaning up: that handle proves quiet', () => {
    const each = pair();
    let thrown: { details: { cleanupHandles: TransferHandle[] } } | null = null;
    try {
      begin(each, faults.beginThrows(false, true));
    } catch (error) {
      thrown = error as typeof thrown;
    }
    const [handle] = thrown!.details.cleanupHandles;
    expect(handle!.poll()).toBe('active');
    each.network.advance(1e3);
    expect([handle!.poll(), arrived(each)]).toEqual(['done', 16]);
    expect(each.target.transport.takeChanged()).toEqual([handle]);
  });

  test('poll that throws is told again, then says the truth', () => {
    const each = pair();
    const handle = begin(each, faults.pollThrows(2));
    each.network.advance(0);
    for (let i = 0; i < 2; i++) {
      expect(each.target.transport.takeChanged()).toEqual([handle]);
      expect(() => handle.poll()).toThrow(expect.objectContaining({ code: 'TRANSFER_FAILED' }));
    }
    expect(each.target.transport.takeChanged()).toEqual([handle]);
    expect(handle.poll()).toBe('done');
  });

  test('bytes are readable only once the landed fence has fired', () => {
    const each = pair();
    const handle = begin(each, { landedAfterMs: 3 });
    each.network.advance(0);
    expect(handle.poll()).toBe('done');
    expect(handle.landed!.isComplete()).toBe(false);
    each.network.advance(3);
    expect(handle.landed!.isComplete()).toBe(true);
    const plain = begin(each, {}, 'plain');
    each.network.advance(0);
    expect(plain.landed).toBeNull();
  });
});

describe('death of the source', () => {
  test('noticed: fails and is quiet at once, with the bytes that had arrived', () => {
    const each = pair();
    const handle = begin(each, faults.peerRestart('noticed'));
    each.network.advance(1e3);
    expect([handle.poll(), handle.error?.code, arrived(each)]).toEqual(['failed-quiet', 'PEER_LOST', 8]);
    expect(each.source.transport.isDead).toBe(true);
    expect([each.peer.status(), each.peer.error?.code]).toEqual(['failed', 'PEER_LOST']);
  });

  test('in doubt: bytes under way still arrive, and only the attestation makes it quiet', () => {
    const each = pair();
    const handle = begin(each, { ...faults.peerRestart('in-doubt', 1.5), pieces: 4 });
    each.network.advance(1);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-active', 8]);
    each.network.advance(1e3);
    expect([handle.poll(), arrived(each)]).toEqual(['failed-active', 12]);
    handle.peerAttestedDead();
    expect(handle.poll()).toBe('failed-quiet');
  });

  test('silent: active for ever, and the attestation ends it', () => {
    const each = pair();
    const handle = begin(each, faults.peerRestart('silent'));
    each.network.advance(1e6);
    expect([handle.poll(), arrived(each)]).toEqual(['active', 8]);
    handle.peerAttestedDead();
    expect([handle.poll(), handle.error?.code]).toEqual(['failed-quiet', 'PEER_LOST']);
  });

  test('a false attestation is obeyed, and does not stop the bytes', () => {
    const each = pair();
    const handle = begin(each, faults.errorWhileWriting('never'));
    each.network.advance(1);
    handle.peerAttestedDead();
    expect([handle.poll(), arrived(each)]).toEqual(['failed-quiet', 8]);
    each.network.advance(1e3);
    expect(arrived(each)).toBe(16);
  });

  test('a restarted process is a new peer; the old grant leads nowhere', () => {
    const each = pair();
    const oldGrant = each.source.transport.grant();
    each.network.kill(each.source.transport);
    each.network.kill(each.source.transport);
    const restarted = new Rank(each.network);
    restarted.bytes.fill(7);
    const stale = each.target.transport.connect(oldGrant);
    expect([stale.status(), stale.error?.code]).toEqual(['failed', 'PEER_UNREACHABLE']);
    const peer = each.target.connect(restarted);
    const handle = each.target.transport.begin(request('again', copy([0], [0])), peer);
    each.network.advance(0);
    expect([handle.poll(), each.target.bytes[0]]).toEqual(['done', 7]);
    const stillborn = each.target.transport.begin(request('dead', copy([0], [1])), each.peer);
    expect([stillborn.poll(), stillborn.error?.code, stillborn.bytesDone]).toEqual(['failed-quiet', 'PEER_LOST', 0]);
    stillborn.cancel();
    stillborn.peerAttestedDead();
    expect(each.target.transport.takeChanged()).toContain(stillborn);
    expect(() => each.source.transport.grant()).toThrow(expect.objectContaining({ code: 'CLOSED' }));
  });

  test("a dead target is written no more, and its transfers are nobody's", () => {
    const each = pair();
    begin(each, { pieces: 2, pieceMs: 1, peerDeath: { outcome: 'in-doubt', lingerMs: 50 } });
    each.network.advance(0);
    each.network.kill(each.target.transport);
    each.network.advance(1e3);
    expect([arrived(each), each.network.transfers.size]).toEqual([8, 0]);
  });
});

describe('generations', () => {
  const generational = (): Pair & {
    readonly pool: ModelBlockPool;
    begin: (plan?: Partial<TransferPlan>) => TransferHandle;
  } => {
    const pool = new ModelBlockPool({ poolSize: blocks });
    const network = new ScriptedNetwork();
    const source = new Rank(network, { generations: { blocks: pool } });
    const target = new Rank(network);
    source.bytes.fill(5);
    const peer = target.connect(source);
    const held = pool.allocate(2)!;
    const generations = {
      blocks: held,
      blockGenerations: pool.generationsOf(held),
      slots: new Int32Array(0),
      slotGenerations: new BigUint64Array(0),
    };
    return {
      network,
      source,
      target,
      peer,
      pool,
      begin: (plan = {}) => {
        network.planNext(plan);
        return target.transport.begin({ programs: [copy([...held], [0, 1])], generations, tag: 'g' }, peer);
      },
    };
  };

  test('unchanged: delivered', () => {
    const each = generational();
    expect(each.source.transport.capabilities.detectsLateReads).toBe(true);
    expect(each.target.transport.capabilities.detectsLateReads).toBe(false);
    const handle = each.begin();
    each.network.advance(0);
    expect(handle.poll()).toBe('done');
  });

  test('reused before the read begins: expired, and not one byte delivered', () => {
    const each = generational();
    const handle = each.begin({ startAfterMs: 2 });
    each.network.advance(1);
    each.pool.reset();
    each.pool.allocate(2);
    each.network.advance(5);
    expect([handle.poll(), handle.error?.code]).toEqual(['failed-quiet', 'HANDOFF_EXPIRED']);
    expect(each.target.bytes.every((byte) => byte === 0)).toBe(true);
  });

  test('reused during the read: expired, never done', () => {
    const each = generational();
    const handle = each.begin({ pieces: 2, pieceMs: 2 });
    each.network.advance(1);
    each.pool.reset();
    each.network.advance(5);
    expect([handle.poll(), handle.error?.code]).toEqual(['failed-quiet', 'HANDOFF_EXPIRED']);
  });
});

describe('connections', () => {
  test('come up late, or never, or fail', () => {
    const each = pair();
    each.network.planNextConnect({ afterMs: 5 });
    const late = each.target.connect(new Rank(each.network));
    each.network.planNextConnect({ outcome: 'connecting' });
    const hanging = each.target.connect(new Rank(each.network));
    each.network.planNextConnect({ outcome: 'failed', afterMs: 3 });
    const failing = each.target.connect(new Rank(each.network));
    let wakes = 0;
    each.target.transport.takeChanged();
    each.target.transport.onWake = () => wakes++;
    expect([late.status(), hanging.status(), failing.status()]).toEqual(['connecting', 'connecting', 'connecting']);
    each.network.advance(4);
    expect([failing.status(), failing.error?.code, wakes]).toEqual(['failed', 'PEER_UNREACHABLE', 1]);
    each.network.advance(1e6);
    expect([late.status(), hanging.status()]).toEqual(['ready', 'connecting']);
  });

  test('are shared while they work, and made anew once they failed or were closed', () => {
    const each = pair();
    expect(each.target.connect(each.source)).toBe(each.peer);
    each.peer.close();
    each.peer.close();
    expect([each.peer.status(), each.peer.error?.code]).toEqual(['failed', 'CLOSED']);
    const fresh = each.target.connect(each.source);
    expect(fresh).not.toBe(each.peer);
    expect(fresh.status()).toBe('ready');
  });

  test.each([
    ['null', null],
    ['a number', 5],
    ['a list', []],
    ['no id', { region_bytes: [1] }],
    ['an empty id', { id: '', region_bytes: [1] }],
    ['a huge id', { id: 'x'.repeat(257), region_bytes: [1] }],
    ['no sizes', { id: 'scripted-0' }],
    ['an empty list of sizes', { id: 'scripted-0', region_bytes: [] }],
    ['a size that is none', { id: 'scripted-0', region_bytes: ['8'] }],
  ])('a garbage grant (%s) gives a peer that failed', (_name, grant) => {
    const each = pair();
    const peer = each.target.transport.connect(grant as never);
    expect([peer.status(), peer.error?.code]).toEqual(['failed', 'PEER_REFUSED']);
    const handle = each.target.transport.begin(request('x', copy([0], [0])), peer);
    expect([handle.poll(), handle.error?.code]).toEqual(['failed-quiet', 'PEER_REFUSED']);
  });

  test('a grant of nobody is unreachable', () => {
    const peer = pair().target.transport.connect({ id: 'scripted-99', region_bytes: [8] });
    expect([peer.status(), peer.error?.code]).toEqual(['failed', 'PEER_UNREACHABLE']);
  });
});

describe('a push', () => {
  const push = (): Pair & { readonly back: Peer } => {
    const each = pair({ direction: 'push' });
    return { ...each, back: each.source.connect(each.target) };
  };

  test('moves once both ends have begun, whichever is first, each end by its own addresses', () => {
    for (const sourceFirst of [true, false]) {
      const each = push();
      // Neither end knows the other's block ids: it names what it has itself.
      const send = (): TransferHandle =>
        each.source.transport.beginPush!(request('p', copy([1, 3], [99, 99])), each.back);
      const receive = (): TransferHandle =>
        each.target.transport.begin(request('p', copy([99, 99], [4, 0])), each.peer);
      const handles = sourceFirst ? [send()] : [receive()];
      each.network.advance(10);
      expect([handles[0]!.poll(), arrived(each)]).toEqual(['active', 0]);
      handles.push(sourceFirst ? receive() : send());
      each.network.advance(10);
      expect([...handles.map((handle) => handle.poll()), arrived(each)]).toEqual(['done', 'done', 16]);
      expect(each.source.transport.takeChanged()).toHaveLength(1);
      expect(each.target.transport.takeChanged()).toHaveLength(1);
    }
  });

  test('of programs cut differently is matched byte by byte', () => {
    const each = push();
    const send = copy([1, 2, 3], [0, 0, 0]); // blocks 1..3 are neighbours: one range of 24 bytes
    each.source.transport.beginPush!(request('p', send), each.back);
    const handle = each.target.transport.begin(request('p', copy([0, 0, 0], [5, 0, 2])), each.peer);
    each.network.advance(0);
    expect(handle.poll()).toBe('done');
    expect([...each.target.bytes.subarray(40, 48)]).toEqual([...each.source.bytes.subarray(8, 16)]);
    expect([...each.target.bytes.subarray(0, 8)]).toEqual([...each.source.bytes.subarray(16, 24)]);
    expect([...each.target.bytes.subarray(16, 24)]).toEqual([...each.source.bytes.subarray(24, 32)]);
  });

  test('of different lengths fails at both ends and moves nothing', () => {
    const each = push();
    const send = each.source.transport.beginPush!(request('p', copy([1], [0])), each.back);
    const receive = each.target.transport.begin(request('p', copy([0, 0], [4, 0])), each.peer);
    each.network.advance(10);
    expect([send.poll(), receive.poll(), arrived(each)]).toEqual(['failed-quiet', 'failed-quiet', 0]);
  });

  test('that one end gave up before the other began fails there too', () => {
    const each = push();
    const send = each.source.transport.beginPush!(request('p', copy([1, 3], [0, 0])), each.back);
    send.cancel();
    expect(send.poll()).toBe('failed-quiet');
    const receive = each.target.transport.begin(request('p', copy([0, 0], [4, 0])), each.peer);
    each.network.advance(10);
    expect([receive.poll(), receive.error?.code, arrived(each)]).toEqual(['failed-quiet', 'PEER_LOST', 0]);
  });

  test('that one end cancels ends at both', () => {
    const each = push();
    each.network.planNext({ pieces: 2, pieceMs: 1 });
    const send = each.source.transport.beginPush!(request('p', copy([1, 3], [0, 0])), each.back);
    const receive = each.target.transport.begin(request('p', copy([0, 0], [4, 0])), each.peer);
    each.network.advance(0);
    receive.cancel();
    each.network.advance(10);
    expect([send.poll(), receive.poll(), arrived(each)]).toEqual(['failed-quiet', 'failed-quiet', 8]);
  });

  test('whose source dies: the target in doubt until attested', () => {
    const each = push();
    each.network.planNext({ pieces: 2, pieceMs: 1, peerDeath: { outcome: 'in-doubt', lingerMs: 5 } });
    each.source.transport.beginPush!(request('p', copy([1, 3], [0, 0])), each.back);
    const receive = each.target.transport.begin(request('p', copy([0, 0], [4, 0])), each.peer);
    each.network.advance(0);
    each.network.kill(each.source.transport);
    each.network.advance(10);
    expect([receive.poll(), arrived(each)]).toEqual(['failed-active', 16]);
    receive.peerAttestedDead();
    expect(receive.poll()).toBe('failed-quiet');
  });

  test('whose target dies before or after it began: the source is told', () => {
    for (const begun of [false, true]) {
      const each = push();
      each.network.planNext({ pieces: 2, pieceMs: 1, peerDeath: { outcome: 'noticed', lingerMs: 50 } });
      const send = each.source.transport.beginPush!(request('p', copy([1, 3], [0, 0])), each.back);
      if (begun) each.target.transport.begin(request('p', copy([0, 0], [4, 0])), each.peer);
      each.network.advance(0);
      each.network.kill(each.target.transport);
      each.network.advance(10);
      expect([send.poll(), send.error?.code, arrived(each)]).toEqual(['failed-quiet', 'PEER_LOST', begun ? 8 : 0]);
    }
  });

  test('is offered by push transports only', () => {
    expect(pair().source.transport.beginPush).toBeUndefined();
    expect(push().source.transport.capabilities).toMatchObject({ direction: 'push', detectsLateReads: false });
  });
});

test('ranges are merged with their neighbours within one region only', () => {
  const rectangle = (
    sourceRegion: number,
    targetRegion: number,
    offset: number,
  ): CopyProgram['rectangles'][number] => ({
    sourceRegion,
    targetRegion,
    table: -1,
    tableFrom: 0,
    tableCount: 0,
    sourceOffset: offset,
    targetOffset: offset,
    fragmentBytes: 4,
    loops: [],
  });
  const moves = (...rectangles: CopyProgram['rectangles']): readonly number[] =>
    expandMoves([{ rectangles, tables: [] }], [16, 16], [16, 16]);
  expect(moves(rectangle(0, 0, 0), rectangle(0, 0, 4))).toEqual([0, 0, 0, 0, 8]);
  expect(moves(rectangle(0, 0, 0), rectangle(1, 0, 4))).toEqual([0, 0, 0, 0, 4, 1, 4, 0, 4, 4]);
  expect(moves(rectangle(0, 0, 0), rectangle(0, 1, 4))).toEqual([0, 0, 0, 0, 4, 0, 4, 1, 4, 4]);
});

describe('misuse', () => {
  test('a program that leaves a region is refused before a byte moves', () => {
    const each = pair();
    const outside = expect.objectContaining({ code: 'PROGRAM_OUT_OF_RANGE' });
    const go = (program: CopyProgram): unknown => each.target.transport.begin(request('bad', program), each.peer);
    expect(() => go(copy([6], [0]))).toThrow(outside);
    expect(() => go(copy([0], [6]))).toThrow(outside);
    expect(() => go(copy([-1], [0]))).toThrow(outside);
    expect(() => go(copy([0], [-1]))).toThrow(outside);
    const [rectangle] = copy([0], [0]).rectangles;
    expect(() => go({ ...copy([0], [0]), rectangles: [{ ...rectangle!, sourceRegion: 1 }] })).toThrow(outside);
    expect(() => go({ ...copy([0], [0]), rectangles: [{ ...rectangle!, tableCount: 2 }] })).toThrow(outside);
    expect(() => go({ ...copy([0], [0]), rectangles: [{ ...rectangle!, table: 1 }] })).toThrow(outside);
    expect(each.network.transfers.size).toBe(0);
  });

  test('a tag is used once at a time between two transports', () => {
    const each = pair();
    begin(each, { startAfterMs: 1 }, 'once');
    expect(() => begin(each, {}, 'once')).toThrow(
      'request.tag: expected a tag that no transfer between these two transports uses, got "once"',
    );
    each.network.advance(1);
    expect(begin(each, {}, 'once').poll()).toBe('active');
    const stuck = pair();
    expect(() => begin(stuck, faults.beginThrows(false), 'lost')).toThrow();
    stuck.network.advance(100);
    expect(() => begin(stuck, {}, 'lost')).toThrow('request.tag: expected a tag that no transfer');
  });

  test('a push whose end gave up can be begun again', () => {
    const each = pair({ direction: 'push' });
    const back = each.source.connect(each.target);
    const send = (): TransferHandle => each.source.transport.beginPush!(request('p', copy([1, 3], [0, 0])), back);
    const first = send();
    expect(send).toThrow('request.tag: expected a tag that no transfer');
    first.cancel();
    const second = send();
    const receive = each.target.transport.begin(request('p', copy([0, 0], [4, 0])), each.peer);
    each.network.advance(0);
    expect([first.poll(), second.poll(), receive.poll(), arrived(each)]).toEqual(['failed-quiet', 'done', 'done', 16]);
  });

  test('begin needs a peer of its own that is ready', () => {
    const each = pair();
    const other = new Rank(each.network);
    expect(() => other.transport.begin(request('x'), each.peer)).toThrow(
      'peer: expected a peer that this transport connected',
    );
    each.network.planNextConnect({ outcome: 'connecting' });
    const connecting = each.target.connect(other);
    expect(() => each.target.transport.begin(request('x'), connecting)).toThrow(
      'peer: expected a peer that is ready, got "connecting"',
    );
  });

  test('register, grant and plans name what is wrong', () => {
    const each = pair();
    const bare = new ScriptedTransport(each.network);
    expect(() => bare.grant()).toThrow(expect.objectContaining({ code: 'NOT_SET_UP' }));
    const device = { kind: 'cuda', byteLength: 8, buffer: null, native: {}, close: () => undefined } as const;
    expect(() => bare.register(device)).toThrow('region.buffer: expected an ArrayBuffer, got null');
    expect(() => begin(each, { pieces: 0 })).toThrow('plan.pieces: expected a positive integer, got 0');
  });

  test('close waits for nothing and refuses while memory is in doubt', async () => {
    const each = pair();
    const handle = begin(each, faults.error('never'));
    each.network.advance(5);
    await expect(each.target.transport.close()).rejects.toMatchObject({ code: 'MEMORY_IN_DOUBT', targetSafe: false });
    handle.peerAttestedDead();
    await each.target.transport.close();
    await each.target.transport.close();
    expect(each.peer.status()).toBe('failed');
    expect(() => each.target.transport.begin(request('x'), each.peer)).toThrow(
      expect.objectContaining({ code: 'CLOSED' }),
    );
    expect(() => each.target.connect(each.source)).toThrow(expect.objectContaining({ code: 'CLOSED' }));
  });
});

test('planned faults go to the transfer they match, first planned first used', () => {
  const each = pair();
  each.network.planNext(faults.drop(), (_source, _target, tag) => tag === 'b');
  each.network.planNext(faults.delay(3));
  const [a, b, c] = ['a', 'b', 'c'].map((tag) => each.target.transport.begin(request(tag, copy([0], [0])), each.peer));
  each.network.advance(2);
  expect([a!.poll(), b!.poll(), c!.poll()]).toEqual(['active', 'active', 'done']);
  each.network.advance(1);
  expect([a!.poll(), b!.poll()]).toEqual(['done', 'active']);
});

test('a seeded script is a pure function of its seed and brings every fault', () => {
  const rates = {
    drop: 0.1,
    stall: 0.1,
    error: 0.2,
    lateDone: 0.1,
    duplicate: 0.1,
    beginThrows: 0.1,
    pollThrows: 0.1,
    connectFails: 0.3,
    connectHangs: 0.3,
  };
  const draw = (seed: number): unknown[] => {
    const script = seededScript(new SeededRandom(seed), rates);
    return Array.from({ length: 300 }, (_, index) => (index % 3 === 0 ? script.connect() : script.transfer()));
  };
  expect(draw(1)).toEqual(draw(1));
  expect(draw(1)).not.toEqual(draw(2));
  const kinds = new Set(
    draw(1).map((plan) => (plan as Partial<TransferPlan>).fault?.kind ?? (plan as { outcome?: string }).outcome),
  );
  expect([...kinds].map(String).sort()).toEqual(
    [
      'begin-throws',
      'connecting',
      'drop',
      'duplicate',
      'error',
      'failed',
      'late-done',
      'poll-throws',
      'ready',
      'stall',
      'undefined',
    ].sort(),
  );
});

test('under seeded faults no byte moves after quiet, and what is done is whole', () => {
  for (let seed = 1; seed <= 200; seed++) {
    const random = new SeededRandom(seed);
    const network = new ScriptedNetwork(
      new SimulatedClock(),
      seededScript(random.fork(), {
        drop: 0.05,
        stall: 0.1,
        error: 0.2,
        lateDone: 0.1,
        duplicate: 0.1,
        pollThrows: 0.1,
      }),
    );
    const provesQuietOnCancel = random.chance(0.5);
    const source = new Rank(network, { provesQuietOnCancel });
    const target = new Rank(network, { provesQuietOnCancel });
    source.bytes.fill(0xee);
    const peer = target.connect(source);
    network.advance(5);
    let current: TransferHandle | null = null;
    let status = 'active';
    network.onWrite = () => {
      expect(['active', 'failed-active']).toContain(status);
    };
    const look = (): void => {
      try {
        status = current!.poll();
      } catch {
        // the script says so; what was told before still holds
      }
    };
    current = target.transport.begin(request('t', copy([0, 1, 2], [2, 1, 0])), peer);
    const cancelAt = random.int(0, 12);
    for (let event = 0; event < 60; event++) {
      if (event === cancelAt && random.chance(0.5)) current.cancel();
      if (event === 20 && random.chance(0.3)) network.kill(source.transport);
      look();
      const before = status;
      network.advance(0.5);
      if (before === 'done' || before === 'failed-quiet') {
        look();
        expect(status).toBe(before);
      }
    }
    if (status === 'done') expect([...target.bytes.subarray(0, 24)]).toEqual(new Array(24).fill(0xee));
  }
});

test('refuses to plan a fault that does not exist', () => {
  const network = new ScriptedNetwork();
  const plan = { fault: { kind: 'stal' } } as unknown as Partial<TransferPlan>;
  expect(() => network.planNext(plan)).toThrow(/^plan\.fault\.kind: expected drop, stall, .*got "stal"$/);
});
