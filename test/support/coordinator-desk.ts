/** A coordinator's core on a desk: engines and clients that say what a test wants, and a request in any state. */
import { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import type { CoordinatorOptions } from '../../lib/control/coordinator/coordinator-options.js';
import type { Effect } from '../../lib/control/coordinator/interface.js';
import type { RequestState } from '../../lib/control/coordinator/request-table.js';
import type {
  HeldHandoff,
  RegisterRole,
  ToClient,
  ToCoordinator,
  ToEngine,
} from '../../lib/control/protocol/messages.js';
import { encodeValue } from '../../lib/control/protocol/wire-bytes.js';
import type { Wire, WireMap } from '../../lib/control/protocol/wire-value.js';

export const wire = (entries: Readonly<Record<string, Wire>>): WireMap => new Map(Object.entries(entries));
export const prompt = encodeValue([1, 2, 3]);
export const finishedBody = encodeValue(wire({ status: 'COMPLETED' }));

/** A prefill's reply. */
export function handoffBody(kvMeta: Wire = wire({ base_addr: 1 }), blockIds: Wire = [4, 5]): Uint8Array {
  return encodeValue(wire({ disaggregated_params: wire({ request_id: 0, block_ids: blockIds, kv_meta: kvMeta }) }));
}

export interface EngineWords {
  /** Default: by the first letter of the peer. */
  readonly role?: string;
  readonly transport?: string;
  readonly meta?: Readonly<Record<string, Wire>>;
  /** What each of several ranks says beside it. */
  readonly ranks?: readonly Readonly<Record<string, Wire>>[];
  readonly incarnation?: string;
  readonly transports?: readonly string[];
  readonly held?: readonly HeldHandoff[];
}

/** One message that the core sent. */
export interface Sent {
  readonly peer: string;
  readonly message: ToEngine | ToClient;
}

export class CoordinatorDesk {
  readonly core: Coordinator;
  now = 0;
  /** Why registrations were refused. */
  readonly refusals: string[] = [];

  constructor(options: Partial<CoordinatorOptions> = {}) {
    this.core = new Coordinator({ instance: 'run1', isDisaggregated: true, ...options });
  }

  /** What the core does with a message, as effects. */
  hear(peer: string, message: ToCoordinator): readonly Effect[] {
    const effects = this.core.receive(this.now++, peer, message);
    for (const effect of effects)
      if (effect.kind === 'send' && effect.message.header === 'REGISTRATION_ERROR')
        this.refusals.push(effect.message.reason);
    return effects;
  }

  /** The same, messages only, in words: `peer HEADER …`. */
  say(peer: string, message: ToCoordinator): string[] {
    return words(this.hear(peer, message));
  }

  lose(peer: string): string[] {
    return words(this.core.peerLost(this.now++, peer));
  }

  engine(peer: string, said: EngineWords = {}): string[] {
    return this.say(peer, this.registration(peer, said));
  }

  registration(peer: string, said: EngineWords = {}): RegisterRole {
    const { transport = 'nixl', incarnation, meta = {}, ranks = [{}] } = said;
    const entry = {
      request_capacity: 8,
      tokens_per_block: 16,
      element_size: 2,
      head_dim: 64,
      num_layers_global: 4,
      num_kv_heads_global: 8,
      ...meta,
    };
    const { transports = [transport], held = [] } = said;
    return {
      header: 'REGISTER_ROLE',
      role: said.role ?? (peer.startsWith('p') ? 'prefill' : 'decode'),
      transport,
      instanceMeta: ranks.map((rank) => wire({ ...entry, ...rank })),
      extension: incarnation === undefined ? null : { instance: peer, incarnation, transports, held },
    };
  }

  submit(
    client: string,
    requestId: number,
    sampling: Readonly<Record<string, Wire>> = {},
    hashes: bigint[] = [],
  ): string[] {
    return this.say(client, submitMessage(requestId, sampling, hashes));
  }

  prefilled(peer: string, requestId: number, body = handoffBody()): string[] {
    return this.say(peer, { header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body }] });
  }

  finished(peer: string, requestId: number): string[] {
    return this.prefilled(peer, requestId, finishedBody);
  }
}

export function submitMessage(
  requestId: number,
  sampling: Readonly<Record<string, Wire>> = {},
  hashes: bigint[] = [],
): ToCoordinator {
  return {
    header: 'SUBMIT_REQUEST',
    requestId,
    prompt,
    sampling: wire(sampling),
    blockHashes: BigInt64Array.from(hashes),
    mediaMeta: null,
    media: null,
    offloadParams: null,
  };
}

export function submitWithKv(requestId: number, kvMeta: Wire = wire({ base_addr: 1 })): ToCoordinator {
  return {
    header: 'SUBMIT_REQUEST_WITH_KV',
    requestId,
    prompt,
    sampling: wire({}),
    kvMeta: encodeValue(kvMeta),
    sourceBlockIds: encodeValue([1]),
    offloadParams: null,
  };
}

/** `peer HEADER id safe`, for each message among effects. */
export function words(effects: readonly Effect[]): string[] {
  return effects.flatMap((effect) => {
    if (effect.kind !== 'send') return [];
    const { peer, message } = effect;
    const id = 'requestId' in message ? ` ${message.requestId}` : '';
    const safe = 'sourceSafe' in message ? (message.sourceSafe ? ' safe' : ' unsafe') : '';
    return [`${peer} ${message.header}${id}${safe}`];
  });
}

/** A desk with request 70 of client `c1` (0 or 1 to the core) in a state; the engines are `p1` and `d1`, or `e1`. */
export function deskWith(state: RequestState): { readonly desk: CoordinatorDesk; readonly id: number } {
  const isAggregated = ['running', 'cancellingRun', 'straying'].includes(state);
  const desk = new CoordinatorDesk({ isDisaggregated: !isAggregated });
  desk.say('c1', { header: 'CONNECT' });
  if (isAggregated) {
    desk.say('e1', { header: 'REGISTER' });
    desk.submit('c1', 70);
    if (state === 'cancellingRun') desk.say('c1', { header: 'ABORT_REQUEST', requestId: 70 });
    if (state === 'straying') desk.lose('e1');
    return { desk, id: 0 };
  }
  const waits = state === 'waitingPrefill' || state === 'waitingDecode';
  desk.engine('p1', { meta: { request_capacity: state === 'waitingPrefill' ? 1 : 8 }, incarnation: 'i1' });
  desk.engine('d1', { meta: { request_capacity: state === 'waitingDecode' ? 1 : 8 }, incarnation: 'i1' });
  if (state === 'reading' || state === 'cancellingReading' || state === 'doubtfulReading') {
    desk.say('c1', submitWithKv(70));
    if (state === 'cancellingReading') desk.say('c1', { header: 'ABORT_REQUEST', requestId: 70 });
    if (state === 'doubtfulReading')
      desk.say('d1', { header: 'REQUEST_ERROR', requestId: 0, reason: 'no', sourceSafe: false });
    return { desk, id: 0 };
  }
  if (waits) {
    desk.submit('c1', 60);
    if (state === 'waitingDecode') desk.prefilled('p1', 0);
  }
  const id = waits ? 1 : 0;
  desk.submit('c1', 70);
  const abort = (): string[] => desk.say('c1', { header: 'ABORT_REQUEST', requestId: 70 });
  if (state === 'cancellingPrefill') abort();
  if (!['waitingPrefill', 'prefill', 'cancellingPrefill'].includes(state)) desk.prefilled('p1', id);
  if (state === 'cancellingImport') abort();
  if (state === 'generating' || state === 'cancellingGeneration')
    desk.say('d1', { header: 'KV_READ_DONE', requestId: id });
  if (state === 'cancellingGeneration') abort();
  if (state === 'doubtful') desk.say('d1', { header: 'REQUEST_ERROR', requestId: id, reason: 'no', sourceSafe: false });
  if (state === 'abandoned') desk.lose('p1');
  return { desk, id };
}

/** One kind of SSM state, as an engine of four layers registers it. */
export const ssmState = wire({
  element_size: 2,
  ssm_layout: wire({ layer_start: 0, num_layers: 4, dims: wire({ nheads: 4 }) }),
});

/** What an engine with SSM layers registers beside the rest. */
export const hybrid = (slots: number) => ({
  ssm: wire({ conv: ssmState, recurrent: ssmState }),
  ssm_slot_capacity: slots,
  ssm_handoff_max_slots: 1,
});

/** A desk with the client `c1`. */
export function openDesk(options: Partial<CoordinatorOptions> = {}): CoordinatorDesk {
  const desk = new CoordinatorDesk(options);
  desk.say('c1', { header: 'CONNECT' });
  return desk;
}

/** With the client `c1` and the engines `p1` and `d1`. */
export function pairedDesk(options: Partial<CoordinatorOptions> = {}): CoordinatorDesk {
  const desk = openDesk(options);
  desk.engine('p1', { incarnation: 'i1' });
  desk.engine('d1', { incarnation: 'i1' });
  return desk;
}
