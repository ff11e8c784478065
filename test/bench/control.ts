/**
 * What a handoff costs a decode rank's own thread: add, hash, reserve, plan, poll, admit, release, over a transport that
 * completes at once, with a full pool of ours. And what a step costs while ten thousand imports are under way.
 */
import {
  BlockPool,
  StateHandoff,
  type BufferGeometry,
  type EngineContext,
  type Peer,
  type PrefilledRequest,
  type Region,
  type Transport,
  type TransferHandle,
  type TransferRequest,
} from '../../lib/index.js';
import { HandoffError } from '../../lib/errors.js';
import type { BenchRow } from '../support/bench-row.js';

const blockSize = 256;
const promptTokens = 4096;
const promptBlocks = promptTokens / blockSize;
const layers = 32;
const heads = 8;
const headDim = 128;
const tokenBytes = headDim * 2;

/** Memory that nobody touches: the transport here moves nothing. */
const nowhere = (byteLength: number): Region => ({
  kind: 'host',
  byteLength,
  buffer: null,
  native: null,
  close: () => undefined,
});

class InstantTransport implements Transport {
  readonly name = 'instant';
  readonly capabilities = {
    direction: 'pull',
    memoryKinds: ['host'],
    provesQuietOnCancel: true,
    detectsLateReads: true,
  } as const;
  onWake: (() => void) | null = null;
  private changed: TransferHandle[] = [];
  private regions = 0;

  /** @param stalls - transfers stay under way for ever */
  constructor(private readonly stalls = false) {}

  register(): number {
    return this.regions++;
  }

  grant(): null {
    return null;
  }

  connect(): Peer {
    return { status: () => 'ready', error: null, close: () => undefined };
  }

  begin(_request: TransferRequest): TransferHandle {
    const status = this.stalls ? 'active' : 'done';
    const handle: TransferHandle = {
      poll: () => status,
      error: null,
      bytesDone: 0,
      cancel: () => undefined,
      peerAttestedDead: () => undefined,
    };
    if (!this.stalls) this.changed.push(handle);
    return handle;
  }

  takeChanged(): readonly TransferHandle[] {
    const taken = this.changed;
    this.changed = [];
    return taken;
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

/** An engine that takes what it is given and has room for everything. */
class BareEngine implements EngineContext {
  readonly model = 'bench';
  readonly dtype = 'float16';
  readonly blockSize = blockSize;
  readonly maxRequests = 1 << 20;
  readonly maxSequenceLength = 1 << 20;
  readonly numSpeculativeTokens = 0;
  readonly hasSsmSnapshotCache = false;
  readonly ssm = null;
  readonly slots = null;
  readonly blocks: BlockPool;
  readonly regions: readonly Region[];
  readonly kv: EngineContext['kv'];
  admitted: PrefilledRequest[] = [];

  constructor(poolSize: number) {
    this.blocks = new BlockPool({ poolSize });
    const blockBytes = blockSize * heads * tokenBytes;
    const buffer: BufferGeometry = {
      region: 0,
      offsetBytes: 0,
      elementBytes: 2,
      axes: [
        { name: 'plane', size: 2, strideBytes: layers * poolSize * blockBytes },
        { name: 'layer', size: layers, strideBytes: poolSize * blockBytes },
        { name: 'block', size: poolSize, strideBytes: blockBytes },
        { name: 'token', size: blockSize, strideBytes: heads * tokenBytes },
        { name: 'head', size: heads, strideBytes: tokenBytes },
        { name: 'dim', size: headDim, strideBytes: 2 },
      ],
    };
    this.regions = [nowhere(2 * layers * poolSize * blockBytes)];
    this.kv = {
      layout: {
        numLayersGlobal: layers,
        numKvHeadsGlobal: heads,
        headDim,
        tpSize: 1,
        tpRank: 0,
        ppSize: 1,
        ppRank: 0,
        globalRank: 0,
        layerStart: 0,
        layerEnd: layers,
      },
      buffers: [buffer],
      layerStarts: [0],
    };
  }

  canAdmitPrefilledDecode = (): boolean => true;
  admitPrefilledDecode = (request: PrefilledRequest): void => void this.admitted.push(request);
  abortRequest = (): void => undefined;
  isComplete = (): 'no' => 'no';
  growthReserve = (): number => 0;
  growthBlocks = (): number => 0;
  targetQuiescent = (): null => null;

  release({ blocks, continuationBlocks }: PrefilledRequest): void {
    this.blocks.release(blocks);
    this.blocks.release(continuationBlocks);
  }

  /** Every block cached and unreferenced, so that each allocation evicts. */
  fill(): void {
    const ids = this.blocks.allocate(this.blocks.poolSize - 1);
    if (ids === null) throw new HandoffError('INVARIANT', 'a new pool is empty');
    this.blocks.register(
      ids,
      BigInt64Array.from(ids, (id) => BigInt(id) + 1n),
      new BigInt64Array(ids.length),
    );
    this.blocks.release(ids);
  }
}

/** A ticket of another instance of the same engine. */
async function ticketOf(
  engine: BareEngine,
): Promise<(index: number) => { kvMeta: Record<string, unknown>; blockIds: number[] }> {
  const source = new StateHandoff(engine, { instance: 'source', incarnation: '1' });
  await source.setupKvTransfer('prefill', new InstantTransport());
  const [descriptor] = source.instanceMeta;
  const blockIds = Array.from({ length: promptBlocks }, (_, index) => index);
  return (index) => ({
    blockIds,
    kvMeta: {
      ...descriptor,
      resume_tokens: [1],
      handoff: {
        version: 1,
        instance: 'source',
        incarnation: '1',
        handoff_id: index + 1,
        epoch: 0,
        prompt_tokens: promptTokens,
        block_generations: blockIds.map(() => 1n),
        slot_generation: null,
      },
    },
  });
}

function prompts(count: number): Int32Array[] {
  return Array.from({ length: count }, (_, index) =>
    Int32Array.from({ length: promptTokens }, (_unused, token) => index * 7 + token),
  );
}

async function handoffCost(): Promise<number> {
  const engine = new BareEngine(4096);
  engine.fill();
  const ticket = await ticketOf(new BareEngine(4096));
  const handoff = new StateHandoff(engine);
  await handoff.setupKvTransfer('decode', new InstantTransport());
  const all = prompts(256);
  const rounds = 40;
  let best = Infinity;
  for (let round = 0; round < rounds; round += 1) {
    const tickets = all.map((_, index) => ticket(round * all.length + index));
    const before = process.cpuUsage();
    const started = performance.now();
    for (let index = 0; index < all.length; index += 1) {
      const { kvMeta, blockIds } = tickets[index] as ReturnType<typeof ticket>;
      void handoff.addRequestWithKvHandoff(
        index,
        all[index] as Int32Array,
        { num_tokens_to_generate: 8 },
        kvMeta,
        blockIds,
      );
      handoff.pollPendingKvImports();
      handoff.scheduleWaitingRequests(0);
      const request = engine.admitted.pop() as PrefilledRequest;
      engine.release(request);
      handoff.finishRequest(request.attemptId, {
        generatedTokens: [1],
        generatedLogProbs: null,
        finishReason: 'length',
        cachedTokens: promptTokens,
      });
    }
    const { user, system } = process.cpuUsage(before);
    const wall = (performance.now() - started) * 1000;
    await new Promise((resolve) => setImmediate(resolve));
    best = Math.min(best, Math.max(wall, Math.min(user + system, wall)) / all.length);
  }
  return best;
}

async function stepCost(pending: number): Promise<number> {
  const engine = new BareEngine(pending * 2 + 2);
  const ticket = await ticketOf(new BareEngine(4096));
  const handoff = new StateHandoff(engine, { deadlines: { queueMs: null, transferMs: null } });
  await handoff.setupKvTransfer('decode', new InstantTransport(true));
  for (let index = 0; index < pending; index += 1) {
    const { kvMeta } = ticket(index);
    const prompt = Int32Array.of(index, 1, 2);
    const small = {
      ...kvMeta,
      handoff: { ...(kvMeta['handoff'] as object), prompt_tokens: 3, block_generations: [1n] },
    };
    handoff.addRequestWithKvHandoff(index, prompt, { num_tokens_to_generate: 8 }, small, [0]).catch(() => undefined);
  }
  if (handoff.load().active !== pending)
    throw new HandoffError('INVARIANT', `expected ${pending} imports under way, got ${handoff.load().active}`);
  let best = Infinity;
  for (let round = 0; round < 200; round += 1) {
    const started = performance.now();
    handoff.pollPendingKvImports();
    handoff.scheduleWaitingRequests(0);
    best = Math.min(best, performance.now() - started);
  }
  await handoff.close({ force: true });
  return best;
}

export async function run(): Promise<BenchRow[]> {
  const handoff = await handoffCost();
  const step = await stepCost(10_000);
  return [
    {
      name: 'one handoff on one decode rank, 4,096 tokens in 16 blocks, pool full',
      value: handoff,
      unit: 'µs',
      against: 'limit 50 µs',
      ratio: handoff / 50,
      target: '≤ 1.00',
      ok: handoff <= 50,
    },
    {
      name: 'one engine step with 10,000 imports under way',
      value: step,
      unit: 'ms',
      against: 'limit 1 ms',
      ratio: step,
      target: '≤ 1.00',
      ok: step <= 1,
    },
  ];
}

if (require.main === module) {
  void run().then((rows) => {
    for (const { name, value, unit, ok } of rows)
      process.stdout.write(`${name}: ${value.toFixed(3)} ${unit}${ok ? '' : ' (missed)'}\n`);
  });
}
