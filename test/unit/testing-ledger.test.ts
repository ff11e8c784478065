/** The judges: the ownership ledger and the invariant checks must find each kind of wrong, and nothing where all is right. */
import type { Fence, PrefilledRequest } from '../../lib/engine-context.js';
import { HandoffError } from '../../lib/errors.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import type { TransferHandle } from '../../lib/transfer/transport.js';
import {
  checkInvariants,
  SettlementLedger,
  type Holding,
  type ObservedImport,
  type ObservedRank,
} from '../../lib/testing/invariants.js';
import { ModelBlockPool } from '../../lib/testing/model-block-pool.js';
import { OwnershipLedger } from '../../lib/testing/ownership-ledger.js';
import { ScriptedNetwork } from '../../lib/testing/scripted-network.js';
import { ScriptedTransport, type ScriptedTransportOptions } from '../../lib/testing/scripted-transport.js';
import { TestEngine } from '../../lib/testing/test-engine.js';
import { faults, type TransferPlan } from '../../lib/testing/transfer-script.js';

/** Two engines and a ledger; transfers whole blocks of the source into blocks of the target. */
function world(sourceOptions: ScriptedTransportOptions = {}, generations = true, quiescentAfterMs = 0) {
  const network = new ScriptedNetwork();
  const found: string[] = [];
  const ledger = new OwnershipLedger(network, (message) => found.push(message));
  const shape = {
    layers: 1,
    kvHeads: 1,
    headDim: 2,
    blockSize: 4,
    elementBytes: 4 as const,
    ssm: { layers: 1, dims: { nheads: 1, headdim: 1, dState: 1, ngroups: 1, dConv: 1 } },
  };
  const make = (role: 'prefill' | 'decode', name: string, group: string, options: ScriptedTransportOptions) => {
    const engine = new TestEngine({
      role,
      clock: network.clock,
      shape,
      poolSize: 8,
      quiescentAfterMs: () => quiescentAfterMs,
    });
    const transport = new ScriptedTransport(network, options);
    engine.regions.forEach((region) => transport.register(region));
    ledger.watch({ name, group, transport, engine });
    return { engine, transport };
  };
  const source = make('prefill', 'p', 'prefill', sourceOptions);
  if (generations) Object.assign(source.transport, { generations: { blocks: source.engine.blocks } });
  if (!generations) Object.assign(source.transport.capabilities, { detectsLateReads: false });
  else Object.assign(source.transport.capabilities, { detectsLateReads: true });
  const target = make('decode', 'd', 'decode', {});
  const peer = target.transport.connect(source.transport.grant());
  let tags = 0;
  const begin = (
    from: Int32Array,
    to: Int32Array,
    plan: Partial<TransferPlan> = {},
    slots: readonly [number, number] | null = null,
  ): TransferHandle => {
    network.planNext(plan);
    const program = (region: number, blockBytes: number, a: Int32Array, b: Int32Array): CopyProgram => ({
      rectangles: [
        {
          sourceRegion: region,
          targetRegion: region,
          table: 0,
          tableFrom: 0,
          tableCount: a.length,
          sourceOffset: 0,
          targetOffset: 0,
          fragmentBytes: blockBytes,
          loops: [],
        },
      ],
      tables: [
        {
          source: a,
          target: b,
          strides: { sourceBlock: blockBytes, targetBlock: blockBytes, sourceSub: 0, targetSub: 0 },
        },
      ],
    });
    const programs = [program(0, 32, from, to)];
    if (slots !== null) programs.push(program(2, 4, Int32Array.of(slots[0]), Int32Array.of(slots[1])));
    const blockGenerations = source.engine.blocks.generationsOf(from);
    const none = { slots: new Int32Array(0), slotGenerations: new BigUint64Array(0) };
    return target.transport.begin(
      { programs, generations: generations ? { blocks: from, blockGenerations, ...none } : null, tag: `t${tags++}` },
      peer,
    );
  };
  return { network, ledger, found, source, target, begin, make };
}

describe('OwnershipLedger', () => {
  test('finds nothing where everything waits for quiet', () => {
    const each = world();
    const from = each.source.engine.blocks.allocate(2)!;
    const to = each.target.engine.blocks.allocate(2)!;
    const slot = each.target.engine.slots!.allocate();
    const handle = each.begin(from, to, { pieces: 3, pieceMs: 1 }, [0, slot]);
    expect(each.ledger.inDoubt(each.target.transport)).toEqual({ blocks: [...to].sort(), slots: [slot] });
    each.network.advance(10);
    expect(handle.poll()).toBe('done');
    each.target.engine.blocks.register(to, BigInt64Array.of(5n, 6n), BigInt64Array.of(0n, 5n));
    each.target.engine.blocks.release(to);
    each.target.engine.slots!.free(slot);
    each.source.engine.blocks.release(from);
    expect(each.found).toEqual([]);
    expect(each.ledger.writes).toBeGreaterThanOrEqual(3);
    expect(each.ledger.inDoubt(each.target.transport)).toEqual({ blocks: [], slots: [] });
  });

  test('finds memory that is given back, reused and written while a transfer is not quiet', () => {
    const each = world();
    const from = each.source.engine.blocks.allocate(1)!;
    const to = each.target.engine.blocks.allocate(1)!;
    const slot = each.target.engine.slots!.allocate();
    each.begin(from, to, { startAfterMs: 1, pieces: 3, pieceMs: 1 }, [0, slot]);
    each.target.engine.blocks.release(to);
    each.target.engine.slots!.free(slot);
    expect(each.found).toEqual([
      `d block ${to[0]} was given back and may still be written`,
      `d slot ${slot} was given back and may still be written`,
    ]);
    each.network.advance(1);
    expect(each.found.slice(2)).toEqual([`transfer t0 writes d block ${to[0]}, which is free`]);
    each.target.engine.blocks.allocate(1);
    each.target.engine.slots!.allocate();
    expect(each.found.slice(3)).toEqual([
      `d block ${to[0]} has a new owner and may still be written`,
      `d slot ${slot} has a new owner and may still be written`,
    ]);
    each.network.advance(5);
    expect(each.found.slice(5)).toEqual([
      `transfer t0 writes d block ${to[0]}, which has a new owner`,
      `transfer t0 writes d block ${to[0]}, which has a new owner`,
      `transfer t0 writes d slot ${slot}, which has a new owner`,
    ]);
  });

  test('a failure, a cancel that is not heeded and a deadline do not make it quiet', () => {
    for (const plan of [faults.error('never'), faults.stall(), faults.drop(), faults.lateDone(1e9)]) {
      const each = world();
      const to = each.target.engine.blocks.allocate(1)!;
      const handle = each.begin(each.source.engine.blocks.allocate(1)!, to, plan);
      if (plan.fault?.kind === 'late-done') handle.cancel();
      each.network.advance(1e6);
      each.target.engine.blocks.release(to);
      expect(each.found).toEqual([`d block ${to[0]} was given back and may still be written`]);
    }
  });

  test('a begin that threw without a handle is in doubt until the peer is dead', () => {
    const each = world();
    const to = each.target.engine.blocks.allocate(1)!;
    expect(() => each.begin(each.source.engine.blocks.allocate(1)!, to, faults.beginThrows(false))).toThrow();
    each.network.advance(100);
    expect(each.ledger.inDoubt(each.target.transport).blocks).toEqual([...to]);
    each.network.kill(each.source.transport);
    expect(each.ledger.inDoubt(each.target.transport).blocks).toEqual([]);
    each.target.engine.blocks.release(to);
    expect(each.found).toEqual([]);
  });

  test('finds a transfer that begins into free memory, or before earlier work is over', () => {
    const each = world({}, true, 5);
    const from = each.source.engine.blocks.allocate(1)!;
    const [busy, free] = each.target.engine.blocks.allocate(2)!;
    each.target.engine.blocks.release(Int32Array.of(free!));
    each.target.engine.targetQuiescent(Int32Array.of(busy!), null);
    each.begin(from, Int32Array.of(free!), { startAfterMs: 100 });
    each.begin(from, Int32Array.of(busy!), { startAfterMs: 100 });
    each.network.advance(5);
    each.begin(from, Int32Array.of(busy!), { startAfterMs: 100 });
    expect(each.found).toEqual([
      `d block ${free} is free, and transfer t0 begins to write it`,
      `d block ${busy} is still used by earlier work, and transfer t1 begins to write it`,
    ]);
  });

  test('finds a source that is reused under a reader that would not notice', () => {
    const each = world({}, false);
    const from = each.source.engine.blocks.allocate(1)!;
    each.begin(from, each.target.engine.blocks.allocate(1)!, { pieces: 2, pieceMs: 1 });
    each.network.advance(0);
    each.source.engine.blocks.release(from);
    each.source.engine.blocks.allocate(1);
    each.network.advance(5);
    expect(each.found).toEqual([
      `p block ${from[0]} has a new owner and may still be read by one who would not notice`,
      `transfer t0 reads p block ${from[0]}, which has a new owner`,
      `transfer t0 is done, but p block ${from[0]} was reused while it read`,
    ]);
  });

  test('a source with generations may be reused: the reader notices', () => {
    const each = world();
    const from = each.source.engine.blocks.allocate(1)!;
    const handle = each.begin(from, each.target.engine.blocks.allocate(1)!, { startAfterMs: 1, pieces: 2, pieceMs: 1 });
    each.source.engine.blocks.release(from);
    each.source.engine.blocks.allocate(1);
    each.network.advance(5);
    expect([handle.poll(), handle.error?.code]).toEqual(['failed-quiet', 'HANDOFF_EXPIRED']);
    expect(each.found).toEqual([]);
  });

  test('a failure of the last owner is not held against the next, and a reader that is over blinds nobody', () => {
    const each = world({}, false);
    const from = each.source.engine.blocks.allocate(1)!;
    const to = each.target.engine.blocks.allocate(1)!;
    each.begin(from, to, faults.error('now'));
    each.network.advance(1);
    each.target.engine.blocks.release(to);
    expect(each.target.engine.blocks.allocate(1)).toEqual(to);
    each.begin(from, to);
    each.network.advance(1);
    each.target.engine.blocks.register(to, BigInt64Array.of(5n), BigInt64Array.of(0n));
    each.source.engine.blocks.release(from);
    expect(each.source.engine.blocks.allocate(1)).toEqual(from);
    expect(each.found).toEqual([]);
  });

  test('sees the targets of every table of a program', () => {
    const each = world();
    const from = each.source.engine.blocks.allocate(1)!;
    const to = each.target.engine.blocks.allocate(2)!;
    const strides = { sourceBlock: 32, targetBlock: 32, sourceSub: 0, targetSub: 0 };
    const rectangle = (table: number) =>
      ({
        sourceRegion: 0,
        targetRegion: 0,
        table,
        tableFrom: 0,
        tableCount: 1,
        sourceOffset: 0,
        targetOffset: 0,
        fragmentBytes: 32,
        loops: [],
      }) as const;
    const tables = [to[0]!, to[1]!].map((block) => ({ source: from, target: Int32Array.of(block), strides }));
    const peer = each.target.transport.connect(each.source.transport.grant());
    const program = { rectangles: [rectangle(0), rectangle(1)], tables };
    each.target.transport.begin({ programs: [program], generations: null, tag: 'two' }, peer);
    expect(each.ledger.inDoubt(each.target.transport).blocks).toEqual([...to].sort());
    each.network.advance(1);
    expect(each.found).toEqual([]);
  });

  test('finds a request that is admitted before its bytes, or without the fence that they wait for', () => {
    const each = world();
    const admit = (blocks: Int32Array, landed: Fence | null): void =>
      each.ledger.admitted(each.target.transport, {
        attemptId: 1,
        blocks,
        slot: null,
        landed,
      } as unknown as PrefilledRequest);
    const from = each.source.engine.blocks.allocate(1)!;
    const early = each.target.engine.blocks.allocate(1)!;
    const handle = each.begin(from, early, { startAfterMs: 1, landedAfterMs: 5 });
    admit(early, null);
    expect(each.found).toEqual([`attempt 1 was admitted, and transfer t0 of its d block ${early[0]} is active`]);
    each.network.advance(1);
    admit(early, null);
    admit(early, { isComplete: () => true });
    admit(early, handle.landed!);
    expect(each.found.slice(1)).toEqual(
      new Array(2).fill(`attempt 1 was admitted without the fence that d block ${early[0]} waits for`),
    );
    each.network.advance(5);
    admit(early, null);
    expect(each.found).toHaveLength(3);
  });

  test('finds a block that is named before every rank has it', () => {
    const each = world();
    const other = each.make('decode', 'd1', 'decode', {});
    const to = each.target.engine.blocks.allocate(1)!;
    other.engine.blocks.allocate(1);
    const from = each.source.engine.blocks.allocate(1)!;
    each.begin(from, to);
    const peer = other.transport.connect(each.source.transport.grant());
    each.network.planNext(faults.stall());
    const program: CopyProgram = {
      rectangles: [
        {
          sourceRegion: 0,
          targetRegion: 0,
          table: 0,
          tableFrom: 0,
          tableCount: 1,
          sourceOffset: 0,
          targetOffset: 0,
          fragmentBytes: 32,
          loops: [],
        },
      ],
      tables: [{ source: from, target: to, strides: { sourceBlock: 32, targetBlock: 32, sourceSub: 0, targetSub: 0 } }],
    };
    other.transport.begin({ programs: [program], generations: null, tag: 'late' }, peer);
    each.network.advance(10);
    each.target.engine.blocks.register(to, BigInt64Array.of(5n), BigInt64Array.of(0n));
    expect(each.found).toEqual([`d block ${to[0]} was named, but transfer late into d1 block ${to[0]} is active`]);
  });

  test('a reader whose process is gone blinds nobody', () => {
    const each = world({}, false);
    const from = each.source.engine.blocks.allocate(1)!;
    each.begin(from, each.target.engine.blocks.allocate(1)!, faults.stall());
    each.network.kill(each.target.transport);
    each.ledger.unwatch(each.target.transport);
    each.source.engine.blocks.release(from);
    expect(each.source.engine.blocks.allocate(1)).toEqual(from);
    expect(each.found).toEqual([]);
  });

  test('forgets a rank whose process is gone, and throws when nobody listens', () => {
    const each = world();
    const to = each.target.engine.blocks.allocate(1)!;
    each.begin(each.source.engine.blocks.allocate(1)!, to, faults.stall());
    each.network.kill(each.target.transport);
    each.ledger.unwatch(each.target.transport);
    each.target.engine.blocks.release(to);
    expect(each.found).toEqual([]);
    expect(each.ledger.inDoubt(each.target.transport)).toEqual({ blocks: [], slots: [] });

    const network = new ScriptedNetwork();
    const ledger = new OwnershipLedger(network);
    const engine = new TestEngine({ role: 'decode', clock: network.clock, poolSize: 4 });
    const transport = new ScriptedTransport(network);
    transport.register(engine.regions[0]!);
    ledger.watch({ name: 'd', group: 'd', transport, engine });
    const other = new ScriptedTransport(network);
    const source = new TestEngine({ role: 'prefill', clock: network.clock, poolSize: 4 });
    other.register(source.regions[0]!);
    ledger.watch({ name: 'p', group: 'p', transport: other, engine: source });
    const table = {
      source: Int32Array.of(0),
      target: Int32Array.of(0),
      strides: { sourceBlock: 64, targetBlock: 64, sourceSub: 0, targetSub: 0 },
    };
    const rectangle = {
      sourceRegion: 0,
      targetRegion: 0,
      table: 0,
      tableFrom: 0,
      tableCount: 1,
      sourceOffset: 0,
      targetOffset: 0,
      fragmentBytes: 64,
      loops: [],
    };
    const peer = transport.connect(other.grant());
    expect(() =>
      transport.begin({ programs: [{ rectangles: [rectangle], tables: [table] }], generations: null, tag: 't' }, peer),
    ).toThrow(
      expect.objectContaining({ code: 'INVARIANT', message: 'd block 0 is free, and transfer t begins to write it' }),
    );
  });
});

describe('checkInvariants', () => {
  const pool = (): ModelBlockPool => new ModelBlockPool({ poolSize: 6 });
  const observed = (
    blocks: ModelBlockPool,
    holdings: Holding[],
    imports: ObservedImport[] = [],
    more: Partial<ObservedRank> = {},
  ): ObservedRank => ({
    name: 'd0',
    blocks: { poolSize: blocks.poolSize, references: (id) => blocks.refs[id]!, isFree: (id) => blocks.isFree(id) },
    slots: null,
    holdings: () => holdings,
    imports: () => imports,
    logIndex: 1,
    poolDigest: () => blocks.digest(),
    ...more,
  });
  const messages = (...ranks: ObservedRank[]): string[] =>
    checkInvariants(ranks).map(({ invariant, message }) => `${invariant} ${message}`);

  test('accepts memory that is all accounted for', () => {
    const blocks = pool();
    const a = blocks.allocate(2)!;
    blocks.retain(a.subarray(0, 1));
    expect(
      messages(
        observed(blocks, [
          { owner: 'pin 1', blocks: a, slot: null },
          { owner: 'running 2', blocks: a.subarray(0, 1), slot: null },
        ]),
      ),
    ).toEqual([]);
  });

  test('I1: finds a leak; I2: finds memory that somebody believes he holds', () => {
    const blocks = pool();
    const [a, b] = blocks.allocate(2)!;
    blocks.release(Int32Array.of(b!));
    expect(messages(observed(blocks, [{ owner: 'import 7', blocks: [b!], slot: null }]))).toEqual([
      `I1 d0 block ${a} has 1 references, and 0 are accounted for (nobody holds it)`,
      `I2 d0 block ${b} has 0 references, and 1 are accounted for (import 7)`,
    ]);
  });

  test('I2: finds a block that is free and referenced', () => {
    const blocks = pool();
    const [a] = blocks.allocate(1)!;
    const rank = observed(blocks, [{ owner: 'x', blocks: [a!], slot: null }]);
    expect(messages({ ...rank, blocks: { ...rank.blocks, isFree: () => true } })).toContain(
      `I2 d0 block ${a} is both free and referenced`,
    );
  });

  test('finds slots that are lost, free under their owner, or held twice', () => {
    const held = (owner: string, slot: number): Holding => ({ owner, blocks: [], slot });
    const rank = observed(pool(), [held('a', 0), held('b', 0), held('c', 1)], [], {
      slots: { size: 3, isFree: (slot) => slot === 1 },
    });
    expect(messages(rank)).toEqual([
      'I2 d0 slot 0 is held by a and by b',
      'I2 d0 slot 1 is free, and c holds it',
      'I1 d0 slot 2 is taken, and nobody holds it',
    ]);
  });

  test('finds holdings of blocks and slots that are none', () => {
    const blocks = pool();
    const rank = observed(blocks, [{ owner: 'x', blocks: [-1, 5, 99], slot: 3 }], [], {
      slots: { size: 3, isFree: () => true },
    });
    expect(messages(rank)).toEqual([
      'I2 d0 x holds -1, which is no block to hold',
      'I2 d0 x holds 5, which is no block to hold',
      'I2 d0 x holds 99, which is no block to hold',
      'I2 d0 x holds slot 3, which the pool has not',
    ]);
    expect(messages(observed(blocks, [{ owner: 'x', blocks: [], slot: 0 }]))).toEqual([
      'I2 d0 x holds slot 0, which the pool has not',
    ]);
  });

  test('I4: finds a hash with two owners', () => {
    const owns = (attemptId: number, ...hashes: bigint[]): ObservedImport => ({
      attemptId,
      order: attemptId,
      isQueued: false,
      ownedHashes: hashes,
      blockCount: 0,
    });
    expect(messages(observed(pool(), [], [owns(1, 5n, 5n, 6n), owns(2, 7n), owns(3, 6n)]))).toEqual([
      'I4 d0 hash 6 is owned by attempts 1 and 3',
    ]);
  });

  test('I5: finds one that overtook; I7: finds one that waits and holds', () => {
    const at = (attemptId: number, isQueued: boolean, blockCount = 0): ObservedImport => ({
      attemptId,
      order: attemptId,
      isQueued,
      ownedHashes: [],
      blockCount,
    });
    expect(messages(observed(pool(), [], [at(1, false, 2), at(2, true), at(3, true)]))).toEqual([]);
    expect(messages(observed(pool(), [], [at(2, true), at(1, false), at(3, false), at(4, true, 1)]))).toEqual([
      'I7 d0 attempt 4 waits and holds 1 blocks',
      'I5 d0 attempt 3 started before attempt 2, which was added earlier and waits',
    ]);
  });

  test('law 4: finds ranks that differ at the same place of the log, and only there', () => {
    const a = observed(pool(), [], [], { name: 'a', poolDigest: () => 1 });
    const b = observed(pool(), [], [], { name: 'b', poolDigest: () => 2 });
    expect(messages(a, b)).toEqual(['law 4 pools of a and b differ at log index 1']);
    expect(messages(a, { ...b, logIndex: 2 })).toEqual([]);
    expect(messages(a, { ...b, poolDigest: () => 1 })).toEqual([]);
  });
});

describe('SettlementLedger', () => {
  test('I8: finds requests with no answer or two; I7: finds a shortage that became an error', () => {
    const ledger = new SettlementLedger<string>();
    for (const id of ['a', 'b', 'c', 'd']) ledger.asked(id);
    ledger.answered('a', { generatedTokens: [] });
    ledger.answered('b', new HandoffError('ABORTED', 'x'));
    ledger.answered('b', {});
    ledger.answered('c', new HandoffError('PIN_LIMIT', 'x'));
    expect(ledger.check(false).map(({ message }) => message)).toEqual([
      'request b got the answers ABORTED, finished',
      'request c ended with PIN_LIMIT',
    ]);
    expect(ledger.check(true).map(({ invariant, message }) => `${invariant} ${message}`)).toContain(
      'I8 request d got no answer',
    );
    expect(ledger.open).toEqual(['d']);
    expect([...ledger.outcomes]).toEqual([
      ['finished', 2],
      ['ABORTED', 1],
      ['PIN_LIMIT', 1],
    ]);
    expect(() => ledger.asked('a')).toThrow('request a was asked twice');
    expect(() => ledger.answered('z', {})).toThrow('request z was never asked');
  });
});
