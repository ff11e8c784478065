/**
 * What native transports that connect through a host broker have alike. Same names and order as
 * `cuda/binding/broker_binding.h`; `endpoint` is what opening one gave, of the same transport.
 */
import type { NativeAddress, NativeFailure, NativeLinkStatus, NativeTransferStatus } from './transfer-types.js';

export interface BrokerCalls {
  register(endpoint: object, region: object): number;
  listen(endpoint: object, abstract: boolean, directory: string, name: string, token: Uint8Array): NativeAddress;
  /** Generation counts: 0 is none. */
  connect(
    endpoint: object,
    abstract: boolean,
    name: string,
    token: Uint8Array,
    regionBytes: BigUint64Array,
    blockGenerations: number,
    slotGenerations: number,
    timeoutMs: number,
  ): number;
  peerStatus(endpoint: object, peer: number): NativeLinkStatus;
  peerError(endpoint: object, peer: number): NativeFailure | null;
  disconnect(endpoint: object, peer: number): void;
  begin(
    endpoint: object,
    peer: number,
    rectangles: Float64Array,
    tables: Float64Array,
    rows: Int32Array,
    blocks: Int32Array,
    blockGenerations: BigUint64Array,
    slots: Int32Array,
    slotGenerations: BigUint64Array,
  ): number;
  poll(endpoint: object, transfer: number): NativeTransferStatus;
  bytes(endpoint: object, transfer: number): number;
  error(endpoint: object, transfer: number): NativeFailure | null;
  cancel(endpoint: object, transfer: number): void;
  /** Ids of transfers that ended, or came in doubt, since the last call. */
  take(endpoint: object): Float64Array;
  forget(endpoint: object, transfer: number): void;
  /** Cancels everything and lets the threads leave. */
  close(endpoint: object): void;
  /** Whether a closing transport's threads have left. */
  quiet(endpoint: object): boolean;
}
