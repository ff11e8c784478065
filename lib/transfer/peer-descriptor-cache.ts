/**
 * Remembers what peers have said about themselves, so that a rank's static description is checked once and not once a
 * request. A description is recognised by comparing it with a private copy, value for value: a peer that changes a
 * single byte is checked anew, and gets ranks (and so connections and plans) of its own.
 *
 * Bounded in peers, in descriptions of one peer and in what one description may hold.
 */
import { isRecord, setOwn } from '../json.js';
import type { Fields } from '../json-fields.js';
import { describedPeersMax, describedPeerValuesMax, type TicketLimits } from '../limits.js';
import type { TransferRecord } from '../prefill/transfer-records.js';
import { describeRanks, type DescribedRank, type PeerRecords } from './peer-description.js';

/** Keys of a descriptor that belong to one request; a flat map holds them beside its static ones. */
const requestKeys: ReadonlySet<string> = new Set(['block_ids', 'resume_tokens', 'resume_log_probs', 'ssm', 'handoff']);

/** A set-up engine has one description; a second appears while it sets up again. */
const descriptionsPerPeerMax = 4;
const depthMax = 16;

interface Description {
  readonly kv: readonly Fields[];
  readonly conv: readonly Fields[] | null;
  readonly recurrent: readonly Fields[] | null;
  readonly ranks: readonly DescribedRank[];
}

export class PeerDescriptorCache {
  /** By peer, least recently used first. */
  readonly #peers = new Map<string, Description[]>();
  #serial = 0;

  constructor(
    private readonly peersMax = describedPeersMax,
    private readonly valuesMax = describedPeerValuesMax,
  ) {}

  /** Peers that are remembered. */
  get size(): number {
    return this.#peers.size;
  }

  /** Descriptions that were checked in full so far. */
  get checked(): number {
    return this.#serial;
  }

  /**
   * The ranks of `records`: the same array for the same description of the same peer.
   *
   * @param peer - whose description it claims to be, for example instance and incarnation
   * @throws what `describeRanks` throws
   */
  ranks(records: PeerRecords, peer: string, limits: TicketLimits): readonly DescribedRank[] {
    const known = this.#peers.get(peer);
    const match = known?.find((description) => isSame(description, records));
    if (known !== undefined && match !== undefined) {
      this.#peers.delete(peer);
      this.#peers.set(peer, known);
      return match.ranks;
    }
    const ranks = describeRanks(records, `${peer}#${this.#serial++}`, limits);
    const copy = this.#copy(records);
    if (copy !== null) this.#remember(peer, { ...copy, ranks });
    return ranks;
  }

  #remember(peer: string, description: Description): void {
    const known = this.#peers.get(peer) ?? [];
    this.#peers.delete(peer);
    this.#peers.set(peer, [description, ...known].slice(0, descriptionsPerPeerMax));
    if (this.#peers.size > this.peersMax) {
      for (const oldest of this.#peers.keys()) {
        this.#peers.delete(oldest);
        break;
      }
    }
  }

  /** Null for a description that is too large to remember or holds more than plain data. */
  #copy({ kv, conv, recurrent }: PeerRecords): Omit<Description, 'ranks'> | null {
    const budget = { values: this.valuesMax };
    const all = (records: readonly TransferRecord[]): Fields[] =>
      records.map(({ descriptor }) => copyOf(descriptor, budget, 0, requestKeys) as Fields);
    try {
      return {
        kv: all(kv),
        conv: conv === null ? null : all(conv),
        recurrent: recurrent === null ? null : all(recurrent),
      };
    } catch {
      return null;
    }
  }
}

const noKeys: ReadonlySet<string> = new Set();

function copyOf(value: unknown, budget: { values: number }, depth: number, skip: ReadonlySet<string>): unknown {
  budget.values -= 1 + (typeof value === 'string' ? value.length >> 3 : 0);
  if (budget.values < 0 || depth > depthMax) throw new Error('not plain data of bounded size');
  if (Array.isArray(value)) return value.map((entry) => copyOf(entry, budget, depth + 1, noKeys));
  if (isRecord(value)) {
    const copy: Record<string, unknown> = {};
    for (const key of Object.keys(value)) {
      if (!skip.has(key)) setOwn(copy, key, copyOf(value[key], budget, depth + 1, noKeys));
    }
    return copy;
  }
  if (value === null || ['string', 'number', 'boolean', 'bigint', 'undefined'].includes(typeof value)) return value;
  throw new Error('not plain data of bounded size');
}

function isSame(description: Description, { kv, conv, recurrent }: PeerRecords): boolean {
  return (
    sameRecords(description.kv, kv) &&
    sameRecords(description.conv, conv) &&
    sameRecords(description.recurrent, recurrent)
  );
}

function sameRecords(copies: readonly Fields[] | null, records: readonly TransferRecord[] | null): boolean {
  if (copies === null || records === null) return copies === records;
  if (copies.length !== records.length) return false;
  for (let index = 0; index < copies.length; index++) {
    if (!sameFields(copies[index]!, records[index]!.descriptor, requestKeys)) return false;
  }
  return true;
}

/** The copy is bounded, so the comparison is, whatever `value` is. */
function isEqual(copy: unknown, value: unknown): boolean {
  if (copy === value) return true;
  if (typeof copy !== 'object' || copy === null) return Object.is(copy, value);
  if (Array.isArray(copy)) {
    if (!Array.isArray(value) || value.length !== copy.length) return false;
    for (let index = 0; index < copy.length; index++) {
      if (!isEqual(copy[index], value[index])) return false;
    }
    return true;
  }
  return isRecord(value) && sameFields(copy as Fields, value, noKeys);
}

function sameFields(copy: Fields, value: Fields, skip: ReadonlySet<string>): boolean {
  let keys = 0;
  for (const key in value) {
    if (!Object.hasOwn(value, key) || skip.has(key)) continue;
    if (!Object.hasOwn(copy, key) || !isEqual(copy[key], value[key])) return false;
    keys++;
  }
  let copyKeys = 0;
  for (const _key in copy) copyKeys++;
  return keys === copyKeys;
}
