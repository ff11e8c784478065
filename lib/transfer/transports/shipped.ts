/** The transports that come with the SDK, as entries of a table, preferred first. */
import { isHandoffError } from '../../errors.js';
import type { TransportGrant } from '../transport.js';
import type { TransportEntry, TransportSetting } from '../transport-registry.js';
import { CudaIpcTransport } from './cuda-ipc.js';
import { HostTransport } from './host.js';
import { decodeHostGrant } from './host-grant.js';
import { requireOneMachine } from './machine.js';
import { NcclTransport } from './nccl.js';
import { decodeNcclGrant } from './nccl-grant.js';
import { NixlTransport } from './nixl.js';
import { decodeNixlGrant } from './nixl-grant.js';

export const hostTransportEntry: TransportEntry = {
  name: 'host',
  create: ({ blockGenerations, slotGenerations }: TransportSetting) =>
    new HostTransport({
      ...(blockGenerations === undefined ? {} : { blockGenerations }),
      ...(slotGenerations === undefined ? {} : { slotGenerations }),
    }),
  whyNot: (local: TransportGrant, peer: TransportGrant) =>
    refusalOf(() => requireOneMachine('host', decodeHostGrant(local), decodeHostGrant(peer))),
};

const cudaIpcTransportEntry: TransportEntry = {
  name: 'cuda-ipc',
  memoryKinds: ['cuda'],
  create: ({ blockGenerations, slotGenerations }: TransportSetting) =>
    new CudaIpcTransport({
      ...(blockGenerations === undefined ? {} : { blockGenerations }),
      ...(slotGenerations === undefined ? {} : { slotGenerations }),
    }),
  whyNot: (local: TransportGrant, peer: TransportGrant) =>
    refusalOf(() => requireOneMachine('cuda-ipc', decodeHostGrant(local), decodeHostGrant(peer))),
};

const nixlTransportEntry: TransportEntry = {
  name: 'nixl',
  create: ({ exports }: TransportSetting) => new NixlTransport({ exports }),
  whyNot(_local: TransportGrant, peer: TransportGrant): string | null {
    let grants = true;
    const refusal = refusalOf(() => (grants = decodeNixlGrant(peer).metadata !== null));
    return refusal ?? (grants ? null : 'the peer grants no memory over it');
  },
};

const ncclTransportEntry: TransportEntry = {
  name: 'nccl',
  onlyByName: true,
  create: ({ exports }: TransportSetting) => new NcclTransport({ pushes: exports }),
  whyNot: (_local: TransportGrant, peer: TransportGrant) => refusalOf(() => decodeNcclGrant(peer)),
};

/** The table that `setupKvTransfer` orders by name. */
export const shippedTransports = [
  cudaIpcTransportEntry,
  hostTransportEntry,
  nixlTransportEntry,
  ncclTransportEntry,
] as const;

/** Why a peer's grant is refused; null when it is not. */
function refusalOf(look: () => void): string | null {
  try {
    look();
    return null;
  } catch (error) {
    if (isHandoffError(error)) return error.message;
    throw error;
  }
}
