/**
 * Engines of a simulated control plane, with the memory they guard reduced to its bones: who pins what, who reads it, and
 * until when a dead reader's last writes may still be on their way.
 */
import type { HeldHandoff, ToCoordinator, ToEngine } from '../../../lib/control/protocol/messages.js';
import { encodeValue } from '../../../lib/control/protocol/wire-bytes.js';
import type { Wire } from '../../../lib/control/protocol/wire-value.js';
import type { ControlWorld } from './world.js';
import type { EnginePlan } from './plan.js';

const map = (entries: Record<string, Wire>): Wire => new Map(Object.entries(entries));
const state = map({
  element_size: 2,
  ssm_layout: map({ layer_start: 0, num_layers: 4, dims: map({ nheads: 4, headdim: 2 }) }),
});
const ssm = map({ conv: state, recurrent: state });
const bodyOf = (kvMeta: Wire): Uint8Array => {
  return encodeValue(
    map({ request_id: 0, disaggregated_params: map({ request_id: 0, block_ids: [1, 2], kv_meta: kvMeta }) }),
  );
};
const bodies = {
  plain: bodyOf(map({ base_addr: 1 })),
  hybrid: bodyOf(map({ base_addr: 1, ssm })),
  bad: encodeValue(map({})),
};
const finished = encodeValue(map({ status: 'COMPLETED' }));

interface Import {
  readonly source: EngineProcess | null;
  phase: 'waiting' | 'posted' | 'reading' | 'generating' | 'quarantined';
  isAborted: boolean;
}

/** One life of an engine. */
/** A reader copies from a source. */
export interface Read {
  readonly requestId: number;
  readonly source: EngineProcess | null;
  readonly reader: EngineProcess;
}

export class EngineProcess {
  isAlive = true;
  /** Whether the coordinator has acknowledged this connection's registration; before, what it says is of before. */
  isAcked = false;
  readonly pins = new Map<number, { owner: string | null; readonly at: number }>();
  readonly computing = new Set<number>();
  readonly imports = new Map<number, Import>();
  readonly #seen = new Set<number>();
  /** Released while it was being sent. */
  readonly #draining = new Set<number>();
  #outbox: ToCoordinator[] = [];
  #lastSubmitted = -1;

  constructor(
    readonly world: ControlWorld,
    readonly plan: EnginePlan,
    readonly incarnation: string,
  ) {}

  /** The name under which its death is attested. */
  get owner(): string {
    return this.world.plan.areOurs ? `${this.plan.peer}/${this.incarnation}` : this.plan.peer;
  }

  register(): void {
    const { plan, world } = this;
    this.isAcked = false;
    // A handle that was never published has no reader: the engine ends its pin itself.
    for (const message of this.#outbox) {
      if (message.header === 'ENGINE_REPLY') for (const { requestId } of message.replies) this.pins.delete(requestId);
    }
    const { transport, areOurs, isHybrid } = world.plan;
    const meta: Record<string, Wire> = {
      request_capacity: plan.requestCapacity,
      tokens_per_block: 16,
      element_size: 2,
      head_dim: 64,
      num_layers_global: 4,
      num_kv_heads_global: 8,
      ...(isHybrid ? { ssm, ssm_slot_capacity: plan.slotCapacity, ssm_handoff_max_slots: 1 } : {}),
    };
    const extension = {
      instance: plan.peer,
      incarnation: this.incarnation,
      transports: [transport],
      held: this.#held(),
    };
    world.say(plan.peer, {
      header: 'REGISTER_ROLE',
      role: plan.role,
      transport,
      instanceMeta: [map(meta)],
      extension: areOurs ? extension : null,
    });
  }

  #held(): HeldHandoff[] {
    const { now } = this.world.agenda;
    const pins = [...this.pins].map(([requestId, { owner, at }]): HeldHandoff => {
      const [peerInstance = null, peerIncarnation = null] = owner?.split('/') ?? [];
      return { requestId, state: 'pinned', peerInstance, peerIncarnation, ageMs: now - at, blocks: 2 };
    });
    const reading = [...this.imports].filter(([, { phase }]) => phase !== 'generating');
    const imports = reading.map(([requestId, { source, phase }]): HeldHandoff => {
      const peers = { peerInstance: source?.plan.peer ?? null, peerIncarnation: source?.incarnation ?? null };
      return { requestId, state: phase === 'quarantined' ? 'quarantined' : 'importing', ...peers, ageMs: 0, blocks: 2 };
    });
    return [...pins, ...imports];
  }

  die(): void {
    this.isAlive = false;
    for (const [requestId, { phase, source }] of this.imports) {
      if (phase === 'reading' || phase === 'quarantined')
        this.#after(80, () => this.world.endRead(requestId, source, this), true);
    }
    this.imports.clear();
    this.pins.clear();
  }

  hear(message: ToEngine): void {
    if (message.header === 'REGISTER_ROLE_ACK') {
      this.isAcked = true;
      const waiting = this.#outbox;
      this.#outbox = [];
      for (const each of waiting) this.#say(each);
      return;
    }
    // What was sent to an earlier registration is not meant for this one.
    if (!this.isAcked) return;
    switch (message.header) {
      case 'SUBMIT_REQUEST':
        return this.#compute(message.requestId);
      case 'SUBMIT_REQUEST_WITH_KV':
        return this.#import(message.requestId);
      case 'SEND_KV':
        return this.world.matchSend(message.requestId, this);
      case 'ABORT_REQUEST':
        return this.#abort(message.requestId);
      case 'CLAIM_KV': {
        const pin = this.pins.get(message.requestId);
        if (pin !== undefined) pin.owner = message.owner;
        return;
      }
      case 'RELEASE_KV':
        // Who sends knows when its own memory is quiet, and lets go of it then (spec 6.2).
        if (this.world.plan.transport === 'nccl' && this.world.isRead(message.requestId, this)) {
          this.#draining.add(message.requestId);
          return;
        }
        if (!this.pins.delete(message.requestId)) return;
        for (const read of this.world.reads) {
          if (read.requestId === message.requestId && read.source === this)
            this.world.violation(`request ${read.requestId} is released while ${read.reader.owner} reads it`);
        }
        return;
      default:
        return this.world.violation(`${this.plan.peer} is told ${message.header}`);
    }
  }

  #compute(requestId: number): void {
    if (this.#seen.has(requestId)) return;
    this.#seen.add(requestId);
    const { world, plan } = this;
    if (world.isOrderly && requestId < this.#lastSubmitted) world.violation(`request ${requestId} was overtaken`);
    this.#lastSubmitted = requestId;
    this.computing.add(requestId);
    // What is being let go of takes memory, and no place among the requests.
    const used = this.computing.size + this.pins.size - this.#draining.size;
    if (world.isCounted && used > plan.requestCapacity)
      world.violation(`${plan.peer} has ${used} requests, more than it takes`);
    if (world.isCounted && world.plan.isHybrid && used > plan.slotCapacity)
      world.violation(`${plan.peer} has too few slots`);
    this.#after(20, () => {
      this.computing.delete(requestId);
      if (world.random.chance(world.plan.failRate / 2))
        return this.#say({ header: 'REQUEST_ERROR', requestId, reason: 'prefill failed', sourceSafe: true });
      this.pins.set(requestId, { owner: null, at: world.agenda.now });
      world.sources.set(requestId, this);
      const isBad = world.random.chance(world.plan.failRate / 4);
      const body = isBad ? bodies.bad : world.plan.isHybrid ? bodies.hybrid : bodies.plain;
      this.#say({ header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body }] });
    });
  }

  #import(requestId: number): void {
    if (this.#seen.has(requestId)) return;
    this.#seen.add(requestId);
    const { world, plan } = this;
    const source = world.sources.get(requestId) ?? null;
    const incoming: Import = { source, phase: 'waiting', isAborted: false };
    this.imports.set(requestId, incoming);
    const active = [...this.imports.values()].filter(({ phase }) => phase !== 'quarantined').length;
    const most = world.plan.isHybrid ? Math.min(plan.requestCapacity, plan.slotCapacity) : plan.requestCapacity;
    if (world.isCounted && active > most) world.violation(`${plan.peer} has ${active} imports, more than it takes`);
    this.#after(5, () => {
      if (this.imports.get(requestId) !== incoming) return;
      if (world.plan.transport === 'nixl') return this.#read(requestId, incoming);
      incoming.phase = 'posted';
      this.#say({ header: 'KV_TRANSFER_READY', requestId, cachedPrefixBlocks: 0 });
    });
  }

  /** Nobody reads it any more. */
  noteQuiet(requestId: number): void {
    if (this.#draining.delete(requestId)) this.pins.delete(requestId);
  }

  /** The source sends what this process has posted receives for. */
  matched(requestId: number): void {
    const incoming = this.imports.get(requestId);
    if (incoming?.phase === 'posted') this.#read(requestId, incoming);
  }

  #read(requestId: number, incoming: Import): void {
    const { world } = this;
    const { source } = incoming;
    incoming.phase = 'reading';
    if (source !== null && source.isAlive && !source.pins.has(requestId))
      world.violation(`request ${requestId} is read after its release`);
    world.reads.add({ requestId, source, reader: this });
    this.#after(world.plan.readMsMax, () => this.#endRead(requestId, incoming));
  }

  #endRead(requestId: number, incoming: Import): void {
    const { world } = this;
    const { failRate } = world.plan;
    const failed = incoming.source?.isAlive === false || world.random.chance(failRate);
    if (failed && !incoming.isAborted && world.random.chance(0.5)) {
      this.#say({ header: 'REQUEST_ERROR', requestId, reason: 'the transfer failed', sourceSafe: false });
      incoming.phase = 'quarantined';
      this.#after(60, () => {
        this.#quiet(requestId, incoming);
        this.#say({ header: 'KV_READ_DONE', requestId });
        this.#say({ header: 'REQUEST_ABORTED', requestId, sourceSafe: true });
      });
      return;
    }
    world.endRead(requestId, incoming.source, this);
    if (incoming.isAborted) {
      this.imports.delete(requestId);
      if (world.random.chance(0.5)) this.#say({ header: 'KV_READ_DONE', requestId });
      return this.#say({ header: 'REQUEST_ABORTED', requestId, sourceSafe: true });
    }
    if (failed) {
      this.imports.delete(requestId);
      return this.#say({ header: 'REQUEST_ERROR', requestId, reason: 'the transfer failed', sourceSafe: true });
    }
    incoming.phase = 'generating';
    this.#say({ header: 'KV_READ_DONE', requestId });
    this.#after(40, () => {
      if (this.imports.get(requestId) !== incoming) return;
      this.#say({ header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId, body: finished }] });
      this.imports.delete(requestId);
      this.#say({ header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body: finished }] });
    });
  }

  #quiet(requestId: number, incoming: Import): void {
    this.world.endRead(requestId, incoming.source, this);
    this.imports.delete(requestId);
  }

  #abort(requestId: number): void {
    const incoming = this.imports.get(requestId);
    if (incoming === undefined || incoming.phase === 'quarantined') return;
    if (incoming.phase === 'reading') {
      incoming.isAborted = true;
      if (this.world.random.chance(0.5)) this.#say({ header: 'REQUEST_ABORTED', requestId, sourceSafe: false });
      return;
    }
    this.imports.delete(requestId);
    this.#say({ header: 'REQUEST_ABORTED', requestId, sourceSafe: true });
    if (incoming.phase === 'generating' && this.world.random.chance(0.3))
      this.#say({ header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body: finished }] });
  }

  #say(message: ToCoordinator): void {
    if (this.isAcked && this.world.say(this.plan.peer, message)) return;
    this.#outbox.push(message);
  }

  /** Later, unless the process has died by then. */
  #after(msMax: number, run: () => void, evenDead = false): void {
    this.world.agenda.after(this.world.random.float() * msMax, () => {
      if (this.isAlive || evenDead) run();
    });
  }
}
