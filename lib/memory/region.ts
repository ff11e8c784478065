/**
 * A buffer that is registered once for transfer.
 *
 * Host regions of ours live in a sealed memfd, so that a peer on the same machine can map them read-only. The engine
 * reads and writes the very same bytes through `buffer`.
 */
export interface Region {
  readonly kind: 'host' | 'cuda';
  readonly byteLength: number;
  /** The bytes, for a host region; null for memory that JavaScript cannot address. */
  readonly buffer: ArrayBuffer | null;
  /** Transport-private handle (the native region object); null for plain JavaScript memory. */
  readonly native: object | null;
  /** Idempotent. Refuses (`MEMORY_IN_DOUBT`) while a transfer may touch it. */
  close(): void;
}
