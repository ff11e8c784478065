/**
 * The 14 bytes with which a rank tells rank 0 how its part of a handoff ended (spec 1.2): network order, int64 request
 * id, int32 rank, two bool bytes, no padding.
 */
import { argumentError } from '../errors.js';
import { int32Max } from '../limits.js';

/** One rank's result. It may come twice: first unsafe, later safe. */
export interface CompletionReport {
  /** The attempt id, the same on every rank. */
  readonly requestId: number;
  readonly rank: number;
  readonly failed: boolean;
  /** Whether this rank's part of the transfer can touch no memory any more. */
  readonly sourceSafe: boolean;
}

export const completionReportBytes = 14;

/** @throws `ARGUMENT_INVALID` for an id that is no attempt id or a rank out of range */
export function encodeCompletionReport(report: CompletionReport): Uint8Array {
  const { requestId, rank } = report;
  if (!Number.isSafeInteger(requestId) || requestId < 0)
    throw argumentError('report.requestId', 'a safe integer, 0 or more', requestId);
  if (!Number.isInteger(rank) || rank < 0 || rank > int32Max)
    throw argumentError('report.rank', `an integer in [0, ${int32Max}]`, rank);
  const bytes = new Uint8Array(completionReportBytes);
  const view = new DataView(bytes.buffer);
  view.setBigInt64(0, BigInt(requestId));
  view.setInt32(8, rank);
  bytes[12] = report.failed ? 1 : 0;
  bytes[13] = report.sourceSafe ? 1 : 0;
  return bytes;
}

/**
 * Rank 0. What came over the wire, checked byte for byte.
 *
 * @throws `ARGUMENT_INVALID` for another length, an id or rank out of range, or a bool byte that is neither 0 nor 1
 */
export function decodeCompletionReport(bytes: Uint8Array): CompletionReport {
  if (!(bytes instanceof Uint8Array) || bytes.length !== completionReportBytes) {
    throw argumentError('report', `${completionReportBytes} bytes`, bytes instanceof Uint8Array ? bytes.length : bytes);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, completionReportBytes);
  const requestId = view.getBigInt64(0);
  if (requestId < 0n || requestId > BigInt(Number.MAX_SAFE_INTEGER)) {
    throw argumentError('report.requestId', 'an attempt id in [0, 2^53 - 1]', requestId);
  }
  const rank = view.getInt32(8);
  if (rank < 0) throw argumentError('report.rank', `an integer in [0, ${int32Max}]`, rank);
  return {
    requestId: Number(requestId),
    rank,
    failed: bool(view, 12, 'failed'),
    sourceSafe: bool(view, 13, 'sourceSafe'),
  };
}

function bool(view: DataView, offset: number, field: string): boolean {
  const byte = view.getUint8(offset);
  if (byte > 1) throw argumentError(`report.${field}`, '0 or 1', byte);
  return byte === 1;
}
