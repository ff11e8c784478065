/**
 * Runs random layout pairs through the planner, both checks and the real host transport, several at a time in regions of
 * their own; then each of them again with one number of its program changed. Every target byte is compared.
 */
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import type { Region } from '../../lib/memory/region.js';
import { SeededRandom } from '../../lib/testing/seeded-random.js';
import { checkProgram, type WantedRange } from '../../lib/transfer/check-program.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import { PeerPlans } from '../../lib/transfer/peer-plans.js';
import type { Peer, TransferHandle, Transport } from '../../lib/transfer/transport.js';
import { TransportChoice } from '../../lib/transfer/transport-choice.js';
import { HostTransport } from '../../lib/transfer/transports/host.js';
import { patientMs, settled } from './host-fixture.js';
import { layoutPair, type LayoutPair } from './layout-pair.js';
import { sideMemory, type SideMemory, type Store } from './layout-memory.js';
import { changedProgram, isSameCopy } from './program-change.js';

const slotsAtOnce = 16;
const regionBytes = 64 << 10;

/** What a run has seen. */
export interface LayoutTally {
  pairs: number;
  bytesMoved: number;
  /** Changed programs that the checks refused, that wrote something wrong, and that were no change at all. */
  refused: number;
  wrong: number;
  neutral: number;
}

interface Trial {
  readonly pair: LayoutPair;
  readonly program: CopyProgram;
  readonly target: SideMemory;
  readonly source: SideMemory;
  readonly expected: Uint8Array;
  readonly slot: Slot;
}

interface Slot {
  readonly index: number;
  readonly source: Uint8Array;
  readonly target: Uint8Array;
}

/** Region `to` of every program is this slot's; a changed region number is none of the others'. */
export class LayoutRig {
  readonly tally: LayoutTally = { pairs: 0, bytesMoved: 0, refused: 0, wrong: 0, neutral: 0 };
  private readonly slots: readonly Slot[];

  private constructor(
    private readonly exporter: HostTransport,
    private readonly importer: HostTransport,
    private readonly peer: Peer,
    private readonly regions: readonly Region[],
  ) {
    const bytes = (region: Region): Uint8Array => new Uint8Array(region.buffer!);
    this.slots = Array.from({ length: slotsAtOnce }, (_, index) => ({
      ...{ index, source: bytes(regions[2 * index]!), target: bytes(regions[2 * index + 1]!) },
    }));
    const noise = new SeededRandom(1);
    for (const { source, target } of this.slots) {
      for (const side of [source, target]) for (let at = 0; at < side.length; at++) side[at] = noise.uint32();
    }
  }

  static async open(): Promise<LayoutRig> {
    const exporter = new HostTransport({ handshakeMs: patientMs });
    const importer = new HostTransport({ threads: 2, handshakeMs: patientMs });
    const regions = Array.from({ length: 2 * slotsAtOnce }, () => allocateHostRegion({ bytes: regionBytes }));
    regions.forEach((region, index) => (index % 2 === 0 ? exporter : importer).register(region));
    const peer = await settled(importer.connect(exporter.grant()));
    return new LayoutRig(exporter, importer, peer, regions);
  }

  async close(): Promise<void> {
    await this.importer.close();
    await this.exporter.close();
    for (const region of this.regions) region.close();
  }

  /** @throws Error naming the seed of the first pair that is not as it should be */
  async run(firstSeed: number, count: number): Promise<void> {
    for (let done = 0; done < count; done += slotsAtOnce) {
      const seeds = Array.from({ length: Math.min(slotsAtOnce, count - done) }, (_, index) => firstSeed + done + index);
      const trials = seeds.map((seed, index) => named(seed, () => this.prepare(layoutPair(seed), this.slots[index]!)));
      await this.runWhole(trials);
      await this.runChanged(trials);
      this.tally.pairs += trials.length;
    }
  }

  private prepare(pair: LayoutPair, slot: Slot): Trial {
    const [source, target] = [sideMemory(pair.model, pair.source), sideMemory(pair.model, pair.target)];
    const program = programOf(pair, source, target, slot.index);
    fill(pair, source, slot.source, pair.seed);
    const expected = slot.target.slice(0, target.bytes);
    storeMoved(pair, target, pair.seed, storeInto(expected));
    const sizes = this.slots.map(() => regionBytes);
    checkProgram(program, sizes, sizes, { wanted: slot.index % 4 === 0 ? wantedOf(pair, target, slot.index) : [] });
    return { pair, program, source, target, expected, slot };
  }

  private async runWhole(trials: readonly Trial[]): Promise<void> {
    const handles = trials.map(({ program }) => this.begin(program));
    await this.ended(handles);
    trials.forEach(({ pair, expected, slot }, index) => {
      named(pair.seed, () => {
        if (handles[index]!.poll() !== 'done') throw handles[index]!.error ?? new Error('not done');
        const at = firstDifference(slot.target, expected);
        if (at >= 0) throw new Error(`target byte ${at}: expected ${expected[at]}, got ${slot.target[at]}`);
      });
      this.tally.bytesMoved += handles[index]!.bytesDone;
    });
  }

  /** One number of each program changed: refused, or seen in the bytes, or no change at all. */
  private async runChanged(trials: readonly Trial[]): Promise<void> {
    const changed = trials.flatMap((trial) => {
      if (trial.program.rectangles.length === 0) return [];
      const change = changedProgram(trial.program, new SeededRandom(trial.pair.seed).fork(), slotsAtOnce);
      // All bytes as they were before the transfer would be indistinguishable from it, so they get new ones.
      const before = trial.slot.target.slice();
      for (let at = 0; at < trial.target.bytes; at++) before[at]! ^= 0x5a;
      return [{ ...trial, ...change, before }];
    });
    let open = changed;
    for (let round = 0; open.length > 0; round++) {
      if (round === 4) {
        // Four fillings came out right: such a change reads the same value from another rank that holds it, or is missed.
        const missed = open.find(({ pair }) => !hasReplicas(pair));
        if (missed !== undefined) {
          throw new Error(`layout pair ${missed.pair.seed}: a changed plan is not noticed: ${missed.what}`);
        }
        this.tally.neutral += open.length;
        return;
      }
      for (const { pair, source, slot, before } of open) {
        fill(pair, source, slot.source, pair.seed + round * 7919);
        slot.target.set(before);
      }
      const handles = open.map(({ program }) => this.begin(program));
      await this.ended(handles);
      open = open.filter((trial, index) => {
        const { pair, target, slot, before, original, program } = trial;
        if (handles[index]!.poll() !== 'done') {
          this.tally.refused += 1;
          return false;
        }
        const expected = before.slice();
        storeMoved(pair, target, pair.seed + round * 7919, storeInto(expected));
        if (firstDifference(slot.target, expected) >= 0) {
          this.tally.wrong += 1;
          return false;
        }
        if (!isSameCopy(original, program)) return true;
        this.tally.neutral += 1;
        return false;
      });
    }
  }

  /** A program that cannot be begun is refused. */
  private begin(program: CopyProgram): TransferHandle {
    try {
      return this.importer.begin({ programs: [program], generations: null, tag: 'pair' }, this.peer);
    } catch (error) {
      return { poll: () => 'failed-quiet', error } as unknown as TransferHandle;
    }
  }

  private async ended(handles: readonly TransferHandle[]): Promise<void> {
    const deadline = Date.now() + 60_000;
    while (handles.some((handle) => handle.poll() === 'active')) {
      if (Date.now() > deadline) throw new Error('waited 60 s for transfers to end');
      await new Promise((resolve) => setImmediate(resolve));
    }
    this.importer.takeChanged();
  }
}

function hasReplicas({ model, source }: LayoutPair): boolean {
  return source.copies > 1 || source.tp > model.heads;
}

function named<T>(seed: number, work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw new Error(`layout pair ${seed}: ${(error as Error).message}`, { cause: error });
  }
}

/** The programs of all target ranks as one, in one region a side. */
function programOf(pair: LayoutPair, source: SideMemory, target: SideMemory, region: number): CopyProgram {
  const collected: CopyProgram = { rectangles: [], tables: [] };
  const peer = { status: () => 'ready', error: null, close: () => undefined } as unknown as Peer;
  const transport = { name: 'host', capabilities: { direction: 'pull' }, connect: () => peer } as unknown as Transport;
  const { rectangles, tables } = collected as {
    rectangles: CopyProgram['rectangles'][number][];
    tables: CopyProgram['tables'][number][];
  };
  const choice = new TransportChoice([{ transport, grant: 0, whyNot: () => null }]);
  for (const own of target.ranks) {
    const plans = new PeerPlans(own, choice, 'pull', 1024, undefined, undefined, pair.balance);
    const legs = plans.legs({
      ranks: source.ranks,
      shares: source.ranks.map(() => ({ blockIds: Int32Array.from(pair.sourceBlocks), slot: pair.sourceSlot })),
      ...{ skipBlocks: pair.skip, localBlocks: Int32Array.from(pair.targetBlocks), localSlot: pair.targetSlot },
      ...{ blockGenerations: null, slotGeneration: null, tag: 'pair' },
    });
    for (const program of legs.flatMap(({ request }) => request.programs)) {
      const first = tables.length;
      tables.push(...program.tables);
      for (const rectangle of program.rectangles) {
        rectangles.push({ ...rectangle, table: first + rectangle.table, sourceRegion: region, targetRegion: region });
      }
    }
  }
  requireFewRectangles(collected);
  return collected;
}

/** At most eight for any pair of ranks, contents, planes and layers of their buffers. */
function requireFewRectangles({ rectangles }: CopyProgram): void {
  const counts = new Map<string, number>();
  for (const { label, table } of rectangles) {
    const { sourceRank, targetRank, state, part, layers } = label!;
    const key = `${sourceRank}>${targetRank} ${state === 'attention' ? part : state} ${layers.from} ${table}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  for (const [key, count] of counts) if (count > 8) throw new Error(`${count} rectangles for ${key}`);
}

function movedTokens({ skip, source, target, sourceBlocks, targetBlocks }: LayoutPair): { from: number; to: number } {
  const to = Math.min(sourceBlocks.length * source.tokens, targetBlocks.length * target.tokens);
  return { from: Math.min(skip * target.tokens, to), to };
}

/** What must come to the target. */
function storeMoved(pair: LayoutPair, target: SideMemory, salt: number, store: Store): void {
  const { from, to } = movedTokens(pair);
  target.storeTokens(salt, pair.targetBlocks, from, to, store);
  target.storeSlot(salt, pair.targetSlot, store);
}

function fill(pair: LayoutPair, source: SideMemory, bytes: Uint8Array, salt: number): void {
  const store = storeInto(bytes);
  source.storeTokens(salt, pair.sourceBlocks, 0, pair.sourceBlocks.length * pair.source.tokens, store);
  source.storeSlot(salt, pair.sourceSlot, store);
}

function storeInto(bytes: Uint8Array): Store {
  return (offset, value, size) => {
    for (let byte = 0; byte < size; byte++) bytes[offset + byte] = value >>> (8 * byte);
  };
}

function firstDifference(actual: Uint8Array, expected: Uint8Array): number {
  if (Buffer.compare(actual.subarray(0, expected.length), expected) === 0) return -1;
  return expected.findIndex((byte, at) => byte !== actual[at]);
}

/** Every byte that must be written, as ranges; the checker counts them, which takes time where there are many. */
function wantedOf(pair: LayoutPair, target: SideMemory, region: number): WantedRange[] {
  const wanted = new Uint8Array(target.bytes);
  storeMoved(pair, target, pair.seed, (offset, _value, bytes) => wanted.fill(1, offset, offset + bytes));
  const ranges: WantedRange[] = [];
  for (let at = wanted.indexOf(1); at >= 0;) {
    const end = wanted.indexOf(0, at);
    const to = end < 0 ? wanted.length : end;
    ranges.push({ region, offset: at, bytes: to - at });
    at = end < 0 ? -1 : wanted.indexOf(1, end);
  }
  return ranges;
}
