/**
 * Which transport two ranks use: an ordered table, of which the first that both ends can use wins. When none can, the
 * error says for each why not.
 *
 * Pure: it compares what both ends granted and builds nothing. The transports themselves are entries handed in;
 * `transports/shipped.ts` has ours.
 */
import { requireList, requireObject, requireText } from '../argument-shape.js';
import { argumentError, HandoffError } from '../errors.js';
import type { MemoryKind, Transport, TransportGrant } from './transport.js';

/** What a transport is told about the engine that it is built for. */
export interface TransportSetting {
  /** Whether peers read this side's regions: a prefill engine's. */
  readonly exports: boolean;
  /** The engine's block and slot generations, where its allocators keep some. */
  readonly blockGenerations?: NativeCounted;
  readonly slotGenerations?: NativeCounted;
}

/** Generations as a transport takes them: the addon's object, and how many there are. */
export interface NativeCounted {
  readonly native: object;
  readonly count: number;
}

/** A transport by name, for a table of preferences. */
export interface TransportEntry {
  /** Unique in a table; the key of its grants. */
  readonly name: string;
  /** Never taken by `auto`: it has to be asked for. */
  readonly onlyByName?: boolean;
  /** What memory it moves, where that is known before one is built: none is built for an engine with other memory. */
  readonly memoryKinds?: readonly MemoryKind[];
  /** Builds a transport. @throws what the transport's constructor throws */
  create(setting: TransportSetting): Transport;
  /**
   * Null when ends with these two grants can use it with each other; else why not, in a few words. Must not throw,
   * whatever a peer put into its grant.
   */
  whyNot(local: TransportGrant, peer: TransportGrant): string | null;
}

/** Preferred first. */
export type TransportTable = readonly TransportEntry[];

/** By transport name, what one end granted. A transport that it does not have is absent. */
export type Grants = Readonly<Record<string, TransportGrant>>;

/**
 * The entries of `table` with these names, in this order.
 *
 * @throws `ARGUMENT_INVALID` for a name that the table does not have or that stands twice
 */
export function orderTransports(table: TransportTable, names: readonly string[]): TransportTable {
  checkTable('table', table);
  requireList('names', names, 'a list of names');
  return names.map((name, index) => {
    const entry = table.find((each) => each.name === name);
    const known = table.map((each) => each.name).join(', ');
    if (entry === undefined) throw argumentError(`order[${index}]`, `one of ${known}`, name);
    if (names.indexOf(name) !== index) throw argumentError(`order[${index}]`, 'each name once', name);
    return entry;
  });
}

/**
 * The first entry of `order` that both ends can use. Either end may ask; both come to the same answer from the same
 * order.
 *
 * @throws `NO_TRANSPORT`, whose message and `details.reasons` give the reason for each entry
 */
export function selectTransport<Entry extends TransportEntry>(
  order: readonly Entry[],
  localGrants: Grants,
  peerGrants: Grants,
): Entry {
  checkTable('order', order);
  requireObject('localGrants', localGrants);
  requireObject('peerGrants', peerGrants);
  const reasons: Record<string, string> = {};
  for (const entry of order) {
    const reason = whyNot(entry, localGrants, peerGrants);
    if (reason === null) return entry;
    reasons[entry.name] = reason;
  }
  throw noTransport(reasons);
}

/** A transport that this end opened, with what it granted and how it judges a peer's grant. */
export interface OpenTransport {
  readonly transport: Transport;
  /** Null on a rank without state, of which nobody reads anything. */
  readonly grant: TransportGrant | null;
  /** Null when ends with these two grants can use it with each other; else why not. Must not throw. */
  whyNot(local: TransportGrant, peer: TransportGrant): string | null;
}

function checkTable(path: string, table: TransportTable): void {
  requireList(path, table, 'a list of transports');
  table.forEach((entry, index) => {
    requireObject(`${path}[${index}]`, entry);
    requireText(`${path}[${index}].name`, entry.name);
    for (const member of ['create', 'whyNot'] as const) {
      if (typeof entry[member] !== 'function')
        throw argumentError(`${path}[${index}].${member}`, 'a function', entry[member]);
    }
  });
}

/** @param reasons - by name, why not */
export function noTransport(reasons: Readonly<Record<string, string>>): HandoffError {
  const tried = Object.entries(reasons).map(([name, reason]) => `${name} (${reason})`);
  return new HandoffError(
    'NO_TRANSPORT',
    `no transport that both ends can use: ${tried.length === 0 ? 'the order is empty' : tried.join(', ')}`,
    { details: { reasons } },
  );
}

function whyNot(entry: TransportEntry, localGrants: Grants, peerGrants: Grants): string | null {
  const { name } = entry;
  const hasLocal = Object.hasOwn(localGrants, name);
  const hasPeer = Object.hasOwn(peerGrants, name);
  if (!hasLocal) return hasPeer ? 'this end does not have it' : 'neither end has it';
  if (!hasPeer) return 'the peer does not have it';
  return entry.whyNot(localGrants[name] as TransportGrant, peerGrants[name] as TransportGrant);
}
