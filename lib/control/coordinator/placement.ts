/**
 * Where a request goes: the engines of each role, whose turn it is among equals, and which pairs can hand over at all.
 * A request that can never fit is refused here, before it is queued.
 */
import type { EngineChooser } from '../routing/engine-chooser.js';
import type { SettledOptions } from './coordinator-options.js';
import type { EngineRecord } from './engine-record.js';
import type { PeerId } from './interface.js';
import type { RequestRecord } from './request-record.js';

/** An engine, or why there is none. */
export type Choice = EngineRecord | string;

type Pool = 'prefill' | 'decode' | 'aggregated';

export class Placement {
  readonly #engines = new Map<PeerId, EngineRecord>();
  readonly #pools: Readonly<Record<Pool, EngineRecord[]>> = { prefill: [], decode: [], aggregated: [] };
  readonly #turns: Record<Pool, number> = { prefill: 0, decode: 0, aggregated: 0 };

  constructor(
    private readonly options: SettledOptions,
    private readonly chooser: EngineChooser,
  ) {}

  get engines(): ReadonlyMap<PeerId, EngineRecord> {
    return this.#engines;
  }

  add(engine: EngineRecord): void {
    this.#engines.set(engine.peer, engine);
    this.#pools[engine.role].push(engine);
  }

  remove(engine: EngineRecord): void {
    engine.isRegistered = false;
    this.#engines.delete(engine.peer);
    const pool = this.#pools[engine.role];
    pool.splice(pool.indexOf(engine), 1);
    this.chooser.affinity.leave(engine.column);
  }

  /** The engine under its present registration: itself, or the same process after a new connection; else null. */
  current(engine: EngineRecord): EngineRecord | null {
    if (engine.isRegistered) return engine;
    const successor = this.#engines.get(engine.peer);
    return successor?.isSameProcess(engine) === true ? successor : null;
  }

  choosePrefill(request: RequestRecord, nowMs: number): Choice {
    const decodes = this.#pools.decode;
    // One that no decode engine can read from is asked only when all are so.
    const paired = this.#pools.prefill.filter((engine) =>
      decodes.some((decode) => commonTransport(engine, decode) !== null),
    );
    return this.#choose(
      'prefill',
      paired.length > 0 ? paired : this.#pools.prefill,
      request,
      nowMs,
      (engine) => engine.card!.prefillSlots,
    );
  }

  chooseDecode(request: RequestRecord, nowMs: number): Choice {
    const pool = this.#pools.decode;
    const reachable = pool.filter((engine) => commonTransport(request.prefill!, engine) !== null);
    if (pool.length > 0 && reachable.length === 0)
      return `no decode engine shares a transport with ${request.prefill!.card!.transports.join(', ')}`;
    const slots = request.handoff!.hasSsm ? 1 : 0;
    return this.#choose('decode', reachable, request, nowMs, () => slots);
  }

  /** For engines without roles, and for handoffs that a client brings. */
  chooseRunner(request: RequestRecord, nowMs: number): Choice {
    const pool = this.options.isDisaggregated ? 'decode' : 'aggregated';
    const engines = awake(this.#pools[pool], nowMs);
    if (engines.length === 0) return noEngine(pool);
    return engines[this.chooser.chooseAggregated(engines, request.hashes, nowMs)]!;
  }

  #choose(
    role: 'prefill' | 'decode',
    engines: readonly EngineRecord[],
    request: RequestRecord,
    nowMs: number,
    slotsOn: (engine: EngineRecord) => number,
  ): Choice {
    if (engines.length === 0) return noEngine(role);
    const fitting = engines.filter((engine) => engine.canEverFit(slotsOn(engine)));
    if (fitting.length === 0) return `the request needs more SSM slots than any ${role} engine has`;
    const ready = awake(fitting, nowMs);
    return ready[this.chooser.choosePooled(ready, request.hashes, nowMs, this.#turns[role]++)]!;
  }
}

/** The transport that both can use, the source's favourite first; null when there is none. */
export function commonTransport(prefill: EngineRecord, decode: EngineRecord): string | null {
  const theirs = decode.card!.transports;
  return prefill.card!.transports.find((transport) => theirs.includes(transport)) ?? null;
}

/** Those that are not silent, as long as there are such. */
function awake(engines: readonly EngineRecord[], nowMs: number): readonly EngineRecord[] {
  if (!engines.some(({ silence }) => silence.isSilent(nowMs))) return engines;
  const others = engines.filter(({ silence }) => !silence.isSilent(nowMs));
  return others.length > 0 ? others : engines;
}

function noEngine(pool: Pool): string {
  return `no ${pool === 'aggregated' ? '' : `${pool} `}engine is registered`;
}
