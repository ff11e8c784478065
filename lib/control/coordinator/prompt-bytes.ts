/**
 * How many bytes of memory a request keeps until it is sent on for the last time: what its client wrote, in round numbers.
 * Counts only; what is too much is the coordinator's to refuse.
 */
import type { SubmitRequest, SubmitRequestWithKv } from '../protocol/messages.js';
import { Float64, type Wire } from '../protocol/wire-value.js';

/** Of each value that is decoded, beside its own bytes. */
const valueBytes = 8;

export function promptBytes(message: SubmitRequest | SubmitRequestWithKv): number {
  const { prompt, sampling, offloadParams } = message;
  const own = prompt.length + (offloadParams?.length ?? 0) + entriesBytes(sampling);
  if (message.header === 'SUBMIT_REQUEST_WITH_KV') return own + message.kvMeta.length + message.sourceBlockIds.length;
  const { media, mediaMeta, blockHashes } = message;
  return own + (media?.length ?? 0) + (mediaMeta?.length ?? 0) + (blockHashes?.byteLength ?? 0);
}

function entriesBytes(map: ReadonlyMap<string, Wire>): number {
  let sum = 0;
  // Of every request: no pair is made for each entry.
  map.forEach((value, key) => (sum += key.length + bytesOf(value)));
  return sum;
}

function bytesOf(value: Wire): number {
  if (typeof value === 'number' || typeof value === 'boolean') return valueBytes;
  if (typeof value === 'string') return valueBytes + value.length;
  if (typeof value !== 'object' || value === null || value instanceof Float64) return valueBytes;
  if (value instanceof Uint8Array) return valueBytes + value.length;
  if (value instanceof Map) return valueBytes + entriesBytes(value);
  let sum = valueBytes;
  for (const each of value as readonly Wire[]) sum += bytesOf(each);
  return sum;
}
