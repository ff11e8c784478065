/** Worlds in which one request is on its way already: the point from which most endings start. */
import {
  createWorld,
  hybridShape,
  promptOf,
  type Instance,
  type InstanceOptions,
  type Outcome,
  type World,
} from './lifecycle-fixture.js';
import type { Ticket } from '../../lib/ticket.js';

export type Plan = Parameters<World['network']['planNext']>[0];

/** A transport on which a cancelled transfer goes on until its bytes have come. */
export const unproved = { transport: { provesQuietOnCancel: false } };

/** A two-sided transport. */
export const twoSided = { transport: { direction: 'push' as const } };

interface OnItsWay extends World {
  readonly prompt: number[];
  readonly ticket: Ticket;
  readonly outcome: Outcome;
}

/** A world in which one request of one block is on its way; its transfer does what `plan` says. */
export async function onItsWay(plan: Plan, options: InstanceOptions = {}): Promise<OnItsWay> {
  const world = await createWorld(options, {}, { shape: hybridShape, ...options });
  const { prefill, decode, network } = world;
  decode.arrangeBlocks([10, 11]);
  decode.arrangeSlots(20);
  const prompt = promptOf(4);
  network.planNext(plan);
  const ticket = prefill.handOver(7, prompt);
  const outcome = decode.add(7, prompt, ticket);
  return { ...world, prompt, outcome, ticket };
}

/** What a decode instance could hand out now. */
export const memoryOf = (decode: Instance) => ({
  blocks: decode.engine.blocks.freeCount + decode.engine.blocks.evictableCount,
  slots: decode.engine.slots!.freeCount,
});
export const allBack = { blocks: 2, slots: 1 };
export const nothingBack = { blocks: 0, slots: 0 };

/** A pinned prompt of two blocks, decode's import of it, and a push that does what `plan` says. */
export async function pushing(plan: Plan, provesQuietOnCancel = true): Promise<Omit<OnItsWay, 'ticket'>> {
  const transport = { ...twoSided.transport, provesQuietOnCancel };
  const world = await createWorld({}, {}, { ...twoSided, transport, shape: hybridShape });
  const { network, prefill, decode } = world;
  prefill.arrangeBlocks([100, 101]);
  prefill.arrangeSlots(9);
  network.planNext(plan);
  const prompt = promptOf(6);
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
  prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta);
  return { ...world, prompt, outcome };
}
