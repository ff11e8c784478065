/**
 * Where a rank placed a request, as one number: equal on all ranks of an instance at equal history, so a rank whose
 * number differs has diverged. It travels as 20 bytes beside the completion report, which a Megatron peer may lack:
 * network order, int64 request id, int32 rank, uint64 digest.
 */
import { argumentError } from '../errors.js';
import { int32Max } from '../limits.js';

/** What is compared. */
export interface Placement {
  /** Place in the log at which it was reserved. */
  readonly logIndex: number;
  /** Blocks of the prompt, cached ones first. */
  readonly blocks: Int32Array;
  readonly continuation: Int32Array;
  readonly slot: number | null;
}

/** One rank's digest of one attempt. */
export interface PlacementReport {
  readonly requestId: number;
  readonly rank: number;
  /** Unsigned, 64 bits. */
  readonly digest: bigint;
}

export const placementReportBytes = 20;

const offsetBasis = { high: 0xcbf2_9ce4, low: 0x8422_2325 };
/** The 64-bit FNV prime is 2^40 + 0x1b3. */
const primeLow = 0x1b3;
const twoTo32 = 0x1_0000_0000;

/**
 * FNV-1a in 64 bits over 32-bit words: log index (high, low), number of blocks, blocks, number of continuation blocks,
 * these, and slot + 1 (0: none). Two placements of equal lengths that differ in one word never have the same digest.
 */
export function placementDigest({ logIndex, blocks, continuation, slot }: Placement): bigint {
  let { high, low } = offsetBasis;
  const mix = (word: number): void => {
    low = (low ^ word) >>> 0;
    const product = low * primeLow;
    high = (high * primeLow + Math.floor(product / twoTo32) + ((low << 8) >>> 0)) % twoTo32;
    low = product % twoTo32;
  };
  mix(Math.floor(logIndex / twoTo32));
  mix(logIndex % twoTo32);
  mix(blocks.length);
  for (const block of blocks) mix(block);
  mix(continuation.length);
  for (const block of continuation) mix(block);
  mix(slot === null ? 0 : slot + 1);
  return (BigInt(high) << 32n) | BigInt(low);
}

/** Worker. */
export function encodePlacementReport({ requestId, rank, digest }: PlacementReport): Uint8Array {
  const bytes = new Uint8Array(placementReportBytes);
  const view = new DataView(bytes.buffer);
  view.setBigInt64(0, BigInt(requestId));
  view.setInt32(8, rank);
  view.setBigUint64(12, digest);
  return bytes;
}

/**
 * Rank 0. What came over the wire.
 *
 * @throws `ARGUMENT_INVALID` for another length, and for an id or rank out of range
 */
export function decodePlacementReport(bytes: Uint8Array): PlacementReport {
  if (!(bytes instanceof Uint8Array) || bytes.length !== placementReportBytes) {
    throw argumentError(
      'placement',
      `${placementReportBytes} bytes`,
      bytes instanceof Uint8Array ? bytes.length : bytes,
    );
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, placementReportBytes);
  const requestId = view.getBigInt64(0);
  if (requestId < 0n || requestId > BigInt(Number.MAX_SAFE_INTEGER))
    throw argumentError('placement.requestId', 'an attempt id in [0, 2^53 - 1]', requestId);
  const rank = view.getInt32(8);
  if (rank < 0) throw argumentError('placement.rank', `an integer in [0, ${int32Max}]`, rank);
  return { requestId: Number(requestId), rank, digest: view.getBigUint64(12) };
}
