/** One living request as the coordinator keeps it: who wants it, who has it, and what still has to be sent on. */
import type { SubmitRequest, SubmitRequestWithKv } from '../protocol/messages.js';
import type { Opaque } from '../protocol/wire-value.js';
import type { EngineRecord } from './engine-record.js';
import { IdTable } from './id-table.js';
import type { PeerId } from './interface.js';
import type { RequestState } from './request-table.js';

/** A connected client and its living requests by its own ids. */
export class ClientRecord {
  readonly requests = new IdTable<RequestRecord>();
  /** Ids that ended lately: the same message once more starts nothing. */
  readonly #ended: number[] = [];
  #oldestEnded = 0;

  constructor(readonly peer: PeerId) {}

  hasEnded(requestId: number): boolean {
    return this.#ended.includes(requestId);
  }

  end(requestId: number): void {
    this.requests.delete(requestId);
    if (this.#ended.length < endedMax) {
      this.#ended.push(requestId);
      return;
    }
    this.#ended[this.#oldestEnded] = requestId;
    this.#oldestEnded = (this.#oldestEnded + 1) % endedMax;
  }
}

const endedMax = 256;
/** Characters of a name that a client gives its request. */
const nameMax = 256;

/** The source's tables, between prefill's reply and decode's turn. */
export interface HandoffParts {
  readonly kvMeta: Opaque;
  readonly sourceBlockIds: Opaque;
  readonly hasSsm: boolean;
}

export class RequestRecord {
  state: RequestState;
  /** Its client's own name for it; null where that is none. */
  readonly xRequestId: string | null;
  /** Its engine on the first hop; the source's. */
  prefill: EngineRecord | null = null;
  /** The engine that generates; the reader. */
  decode: EngineRecord | null = null;
  /** Slots it holds or will hold on the engine it is at, and on the prefill engine. */
  slots = 0;
  prefillSlots = 0;
  holdsPrefill = false;
  holdsDecode = false;
  /** Whether a prefill engine holds memory for it. */
  isPinned = false;
  pinnedAt = 0;
  /** Whether its source sends the state itself: then nobody else reads that memory, and a release waits for the send. */
  isPushed = false;
  /** Whether its client was told how it ended; after that comes at most word that the source is safe. */
  isAnswered = false;
  handoff: HandoffParts | null = null;
  deadlineAt = Infinity;
  submittedAt = 0;
  /** When it came into its state. */
  enteredAt = 0;
  /** When its client last got something that was generated; null: not yet. */
  streamedAt: number | null = null;

  /**
   * @param client - null once it is gone
   * @param submitted - dropped once it is sent on for the last time
   * @param promptBytes - what `submitted` keeps
   */
  constructor(
    readonly id: number,
    public client: ClientRecord | null,
    readonly clientRequestId: number,
    public submitted: SubmitRequest | SubmitRequestWithKv | null,
    public hashes: BigInt64Array,
    state: RequestState,
    readonly promptBytes = 0,
  ) {
    this.state = state;
    const name = submitted?.sampling.get('x_request_id');
    this.xRequestId = typeof name === 'string' && name.length <= nameMax ? name : null;
  }
}
