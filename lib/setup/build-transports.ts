/** From what `setupKvTransfer` was asked for to transports with the engine's regions registered, opened and granting. */
import type { EngineContext } from '../engine-context.js';
import { argumentError, HandoffError, isHandoffError, type HandoffErrorCode } from '../errors.js';
import type { Generations } from '../memory/generations.js';
import { shippedTransports } from '../transfer/transports/shipped.js';
import {
  orderTransports,
  type OpenTransport,
  type TransportEntry,
  type TransportSetting,
} from '../transfer/transport-registry.js';
import type { MemoryKind, Transport } from '../transfer/transport.js';
import type { Role } from './check-context.js';

/** `auto`, a name, a transport of one's own, or an order of names and transports, preferred first. */
export type Backend = 'auto' | (string & {}) | Transport | readonly (string | Transport)[];

/** What this end has to offer, preferred first. */
export interface BuiltTransports {
  readonly open: readonly OpenTransport[];
  /** By name, why a wanted transport cannot be used on this machine. */
  readonly missing: Readonly<Record<string, string>>;
}

const automatic = (shippedTransports as readonly TransportEntry[])
  .filter(({ onlyByName }) => onlyByName !== true)
  .map(({ name }) => name);

/** What a machine may lack; with another choice left, such a transport is left out. Anything else is a mistake. */
const lacking: ReadonlySet<HandoffErrorCode> = new Set([
  'TRANSPORT_UNAVAILABLE',
  'NATIVE_UNAVAILABLE',
  'NATIVE_SYSTEM',
]);

/**
 * Builds, registers and opens in order. With `auto` or a list, what this machine cannot use is left out with a reason.
 *
 * @throws (rejects) `ARGUMENT_INVALID` for an unknown name; `NO_TRANSPORT` when nothing in the list can be used here;
 *   what a transport throws when it is built, refuses a region or cannot be opened, for one that was asked for by itself
 */
export async function buildTransports(backend: Backend, context: EngineContext, role: Role): Promise<BuiltTransports> {
  const wanted = backend === 'auto' ? automatic : isList(backend) ? backend : [backend];
  if (wanted.length === 0) throw argumentError('backend', 'at least one transport', wanted);
  const setting = settingOf(context, role);
  const entries = wanted.map((each, index) => entryOf(each, index, setting));
  const built: Transport[] = [];
  const open: OpenTransport[] = [];
  const missing: Record<string, string> = {};
  try {
    for (const { name, memoryKinds, create, whyNot } of entries) {
      try {
        // Before it is built, where that is known: a CUDA context takes a third of a second.
        if (memoryKinds !== undefined) requireMemoryKinds(name, memoryKinds, context);
        const transport = create();
        built.push(transport);
        requireMemoryKinds(name, transport.capabilities?.memoryKinds, context);
        for (const region of context.regions) transport.register(region);
        await transport.open?.();
        open.push({ transport, grant: context.regions.length === 0 ? null : transport.grant(), whyNot });
      } catch (error) {
        if (entries.length === 1 || !isHandoffError(error) || !lacking.has(error.code)) throw error;
        missing[name] = error.message;
        if (built.length > open.length) await built.pop()?.close();
      }
    }
    if (open.length === 0) {
      const tried = Object.entries(missing).map(([name, reason]) => `${name} (${reason})`);
      throw new HandoffError('NO_TRANSPORT', `no transport that this machine can use: ${tried.join(', ')}`, {
        details: { reasons: missing },
      });
    }
    return { open, missing };
  } catch (error) {
    // The first error is what counts; a transport that never registered anything has nothing in doubt.
    for (const transport of built) void transport.close().catch(() => undefined);
    throw error;
  }
}

interface Wanted {
  readonly name: string;
  readonly memoryKinds: readonly MemoryKind[] | undefined;
  readonly create: () => Transport;
  readonly whyNot: OpenTransport['whyNot'];
}

function entryOf(each: string | Transport, index: number, setting: TransportSetting): Wanted {
  if (typeof each === 'string') {
    const name = each.toLowerCase().replaceAll('_', '-');
    const entry = orderTransports(shippedTransports, [name])[0] as TransportEntry;
    const { memoryKinds } = entry;
    return {
      ...{ name, memoryKinds, create: () => entry.create(setting) },
      whyNot: (local, peer) => entry.whyNot(local, peer),
    };
  }
  if (typeof (each as Partial<Transport> | null)?.begin !== 'function') {
    throw argumentError(`backend[${index}]`, 'a transport or the name of one', each);
  }
  // A transport of the user's own says nothing about peers beforehand; connecting tells.
  return { name: each.name, memoryKinds: undefined, create: () => each, whyNot: () => null };
}

function isList(backend: Backend): backend is readonly (string | Transport)[] {
  return Array.isArray(backend);
}

/** @throws `TRANSPORT_UNAVAILABLE` for a transport that does not move the kind of memory that a region lies in */
function requireMemoryKinds(name: string, kinds: readonly MemoryKind[] | undefined, { regions }: EngineContext): void {
  const strange = regions.find(({ kind }) => kinds?.includes(kind) === false);
  if (strange === undefined || kinds === undefined) return;
  throw new HandoffError(
    'TRANSPORT_UNAVAILABLE',
    `the ${name} transport moves ${kinds.join(' and ')} memory, and the engine has a region of ${strange.kind} memory`,
  );
}

/** Our own pools carry generations; an allocator of the engine's own may too. Blocks and slots both, or neither. */
function settingOf({ blocks, slots }: EngineContext, role: Role): TransportSetting {
  const exports = role === 'prefill';
  const blockGenerations = generationsOf(blocks);
  const slotGenerations = generationsOf(slots);
  if (blockGenerations === null) return { exports };
  if (slots === null) return { exports, blockGenerations };
  return slotGenerations === null ? { exports } : { exports, blockGenerations, slotGenerations };
}

/** The generations of an allocator that keeps some under that name, as ours do. */
export function generationsOf(pool: object | null): Generations | null {
  const found = (pool as { readonly generations?: Generations | null } | null)?.generations ?? null;
  // An allocator of the engine's own may call something else by that name.
  return typeof found?.advance === 'function' ? found : null;
}
