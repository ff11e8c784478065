/**
 * The host transport of one rank, whose reads can be told to fail: at once, never, or so that nobody knows yet whether
 * memory is still written. Reads that are not told to fail are the host transport's own.
 */
import { HandoffError } from '../../lib/errors.js';
import type { BlockPool } from '../../lib/memory/block-pool.js';
import type { SsmSlotPool } from '../../lib/memory/ssm-slot-pool.js';
import type { EngineMemory } from '../../examples/engine/engine-memory.js';
import { HostTransport } from '../../lib/transfer/transports/host.js';
import type { Peer, Transport, TransferHandle, TransferRequest, TransferStatus } from '../../lib/transfer/transport.js';

export type ReadFault = 'refused' | 'stalled' | 'in doubt';

/** A read that moves nothing. */
class FaultyRead implements TransferHandle {
  readonly bytesDone = 0;
  error: HandoffError | null = null;
  private status: TransferStatus;

  constructor(
    fault: ReadFault,
    private readonly changed: (read: FaultyRead) => void,
  ) {
    this.status = fault === 'stalled' ? 'active' : fault === 'refused' ? 'failed-quiet' : 'failed-active';
    if (fault !== 'stalled') this.error = new HandoffError('TRANSFER_FAILED', `the read was ${fault}`);
    changed(this);
  }

  poll(): TransferStatus {
    return this.status;
  }

  /** Memory is proven quiet. */
  settle(): void {
    this.error ??= new HandoffError('TRANSFER_CANCELLED', 'the read was stopped');
    this.status = 'failed-quiet';
    this.changed(this);
  }

  cancel(): void {
    if (this.status === 'active') this.settle();
  }

  peerAttestedDead(): void {
    this.settle();
  }
}

export class FaultyHostTransport implements Transport {
  readonly name = 'host';
  readonly capabilities: Transport['capabilities'];
  /** What becomes of reads that begin from now on. */
  fault: ReadFault | null = null;
  readonly reads: FaultyRead[] = [];
  onWake: (() => void) | null = null;
  private readonly changed: FaultyRead[] = [];
  private readonly inner: HostTransport;

  constructor({ blocks, slots }: EngineMemory) {
    const blockGenerations = (blocks as BlockPool).generations!;
    const slotGenerations = (slots as SsmSlotPool | null)?.generations;
    this.inner = new HostTransport({ blockGenerations, ...(slotGenerations ? { slotGenerations } : {}) });
    this.capabilities = this.inner.capabilities;
    this.inner.onWake = () => this.onWake?.();
  }

  register(region: Parameters<Transport['register']>[0]): number {
    return this.inner.register(region);
  }

  grant(): ReturnType<Transport['grant']> {
    return this.inner.grant();
  }

  connect(grant: Parameters<Transport['connect']>[0]): Peer {
    return this.inner.connect(grant);
  }

  begin(request: TransferRequest, peer: Peer): TransferHandle {
    if (this.fault === null) return this.inner.begin(request, peer);
    const read = new FaultyRead(this.fault, (changed) => {
      this.changed.push(changed);
      this.onWake?.();
    });
    this.reads.push(read);
    return read;
  }

  takeChanged(): readonly TransferHandle[] {
    return [...this.inner.takeChanged(), ...this.changed.splice(0)];
  }

  close(): Promise<void> {
    return this.inner.close();
  }
}
