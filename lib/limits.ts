/**
 * Bounds on what peers may send and on what this side keeps. Far above what a real model needs, far below what would
 * hurt; each can be lowered (or raised) by the caller that passes a {@link TicketLimits} of its own.
 */
import { requireObject } from './argument-shape.js';
import { argumentError } from './errors.js';

/** Bounds on one ticket. */
export interface TicketLimits {
  /** UTF-8 bytes of an encoded ticket. */
  readonly ticketBytesMax: number;
  /** Nesting of maps and lists in an encoded ticket. */
  readonly ticketDepthMax: number;
  /** Ranks (pipeline stages x tensor ranks) of the source instance. */
  readonly ranksMax: number;
  /** Blocks of one request. */
  readonly blocksMax: number;
  /** The sampled token and the proposals. */
  readonly resumeTokensMax: number;
  /** Buffers of one rank: two for each layer, when K and V of every layer lie apart. */
  readonly buffersMax: number;
  /** Registered regions of one rank. */
  readonly regionsMax: number;
  /** Transports one rank offers. */
  readonly transportsMax: number;
  /** Characters of a name: instance, incarnation, label, transport, agent. */
  readonly nameLengthMax: number;
  /** Characters of an opaque blob inside a descriptor, such as an agent's own metadata. */
  readonly blobLengthMax: number;
}

export const defaultTicketLimits: TicketLimits = Object.freeze({
  ticketBytesMax: 8 * 1024 * 1024,
  ticketDepthMax: 32,
  ranksMax: 1024,
  blocksMax: 1024 * 1024,
  resumeTokensMax: 64,
  buffersMax: 1024,
  regionsMax: 1024,
  transportsMax: 16,
  nameLengthMax: 256,
  blobLengthMax: 64 * 1024,
});

/** @throws `ARGUMENT_INVALID` naming the bound that is no positive integer */
export function checkTicketLimits(limits: TicketLimits): void {
  if (limits === defaultTicketLimits) return;
  requireObject('limits', limits);
  for (const bound of Object.keys(defaultTicketLimits) as (keyof TicketLimits)[]) {
    const value: unknown = limits[bound];
    if (!Number.isSafeInteger(value) || (value as number) < 1)
      throw argumentError(`limits.${bound}`, 'a positive integer', value);
  }
}

/** Bytes of one element of a buffer. */
export const elementBytesMax = 16;

/** Block ids, slots and token ids are signed 32-bit on both sides of the native line. */
export const int32Max = 0x7fff_ffff;

/** Peers whose static descriptors are remembered as checked. */
export const describedPeersMax = 64;

/** Values (leaves, maps and lists) of one peer's remembered descriptors; a peer that says more is checked every time. */
export const describedPeerValuesMax = 64 * 1024;
