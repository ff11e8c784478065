/** A coordinator behind its socket, with a clock that the test moves, and peers that say one message at a time. */
import { Dealer } from 'zeromq';
import { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import { encodeMessage } from '../../lib/control/protocol/codec.js';
import type { ToCoordinator } from '../../lib/control/protocol/messages.js';
import { wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { CoordinatorServer } from '../../lib/control/zeromq/coordinator-server.js';
import { until } from './waiting.js';

export class DrivenCoordinator {
  now = 1_000;
  readonly core = new Coordinator({ instance: 'run', isDisaggregated: true });
  server!: CoordinatorServer;
  private readonly sockets = new Map<string, Dealer>();

  static async open(): Promise<DrivenCoordinator> {
    const driven = new DrivenCoordinator();
    await driven.start();
    return driven;
  }

  protected async start(): Promise<void> {
    this.server = await CoordinatorServer.start({ core: this.core, clock: { now: () => this.now } });
  }

  async close(): Promise<void> {
    for (const socket of this.sockets.values()) socket.close();
    await this.server.close();
  }

  /** Says it, and comes back once the coordinator has heard it. */
  async say(peer: string, message: ToCoordinator): Promise<void> {
    let socket = this.sockets.get(peer);
    if (socket === undefined) {
      this.sockets.set(peer, (socket = new Dealer({ routingId: peer, linger: 0 })));
      socket.connect(this.server.address);
    }
    const before = this.server.wire.received;
    await socket.send(encodeMessage('multi-frame', 'coordinator', message) as Uint8Array[]);
    await until(`${peer} is heard`, () => this.server.wire.received > before);
  }

  /** An engine of this role and name, with room for four requests. */
  async register(role: 'prefill' | 'decode'): Promise<void> {
    const entry = wireMap({
      request_capacity: 4,
      tokens_per_block: 16,
      element_size: 2,
      head_dim: 8,
      num_layers_global: 2,
      num_kv_heads_global: 2,
    });
    await this.say(role, { header: 'REGISTER_ROLE', role, transport: 'host', instanceMeta: [entry], extension: null });
  }
}
