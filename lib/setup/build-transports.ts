/** From what `setupKvTransfer` was asked for to transports with the engine's regions registered. */
import type { EngineContext } from '../engine-context.js';
import { argumentError } from '../errors.js';
import type { Generations } from '../memory/generations.js';
import type { HostTransportOptions } from '../transfer/transports/host.js';
import { shippedTransports } from '../transfer/transports/shipped.js';
import { orderTransports } from '../transfer/transport-registry.js';
import type { Transport } from '../transfer/transport.js';

/** `auto`, a name, a transport of one's own, or an order of names and transports, preferred first. */
export type Backend = 'auto' | (string & {}) | Transport | readonly (string | Transport)[];

/** @throws `ARGUMENT_INVALID` for an unknown name; what a transport throws when it is built or refuses a region */
export function buildTransports(backend: Backend, context: EngineContext): Transport[] {
  const wanted = backend === 'auto' ? shippedTransports.map(({ name }) => name) : isList(backend) ? backend : [backend];
  if (wanted.length === 0) throw argumentError('backend', 'at least one transport', wanted);
  const built: Transport[] = [];
  try {
    for (const [index, each] of wanted.entries()) {
      const transport = typeof each === 'string' ? createByName(each, context) : each;
      if (typeof (transport as Partial<Transport>).begin !== 'function') {
        throw argumentError(`backend[${index}]`, 'a transport or the name of one', each);
      }
      built.push(transport);
      for (const region of context.regions) transport.register(region);
    }
  } catch (error) {
    // The first error is what counts; a transport that never registered anything has nothing in doubt.
    for (const transport of built) void transport.close().catch(() => undefined);
    throw error;
  }
  return built;
}

function isList(backend: Backend): backend is readonly (string | Transport)[] {
  return Array.isArray(backend);
}

function createByName(given: string, context: EngineContext): Transport {
  const name = given.toLowerCase().replaceAll('_', '-');
  const [entry] = orderTransports(shippedTransports, [name]) as typeof shippedTransports;
  return entry.create(hostOptions(context));
}

/** Our own pools carry generations; an allocator of the engine's own may too. Blocks and slots both, or neither. */
function hostOptions({ blocks, slots }: EngineContext): HostTransportOptions {
  const blockGenerations = generationsOf(blocks);
  const slotGenerations = generationsOf(slots);
  if (blockGenerations === null) return {};
  if (slots === null) return { blockGenerations };
  return slotGenerations === null ? {} : { blockGenerations, slotGenerations };
}

/** The generations of an allocator that keeps some under that name, as ours do. */
export function generationsOf(pool: object | null): Generations | null {
  const found = (pool as { readonly generations?: Generations | null } | null)?.generations ?? null;
  // An allocator of the engine's own may call something else by that name.
  return typeof found?.advance === 'function' ? found : null;
}
