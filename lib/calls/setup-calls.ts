/** What `setupKvTransfer` does: checks what it is given, builds the transports, and starts this rank's role. */
import { requireObject } from '../argument-shape.js';
import type { RankGroup } from '../control/rank-group.js';
import type { EngineContext } from '../engine-context.js';
import { argumentError, HandoffError } from '../errors.js';
import type { Notices } from '../notices.js';
import type { CompiledOptions } from '../options.js';
import type { LogCarrier } from '../schedule-log.js';
import { buildTransports, type Backend } from '../setup/build-transports.js';
import { checkContext, type Role } from '../setup/check-context.js';
import { describeRanks } from '../setup/instance-description.js';
import { startRunning } from '../setup/running.js';
import type { Transport } from '../transfer/transport.js';
import type { Life } from './life.js';

/** How an instance is set up. */
export interface SetupOptions {
  /** The ranks of this instance; absent or null for one rank. */
  readonly group?: RankGroup | null;
  /**
   * What carries the ordered log over the ranks: `group` (default with a group; rank 0 publishes one frame a step) or
   * `host` (the engine's own broadcast carries what `drainHandoffCompletionNotifications` gives).
   */
  readonly carrier?: 'group' | 'host';
  /**
   * Decode, where several source ranks hold the same heads: `first` reads from the one with the smallest global rank
   * (default, the reference's rule), `spread` a share of the blocks from each. A push always follows the first.
   */
  readonly balance?: 'first' | 'spread';
}

export class SetupCalls {
  private trackingGroup: RankGroup | null = null;

  constructor(
    private readonly life: Life,
    private readonly engine: EngineContext,
    private readonly options: CompiledOptions,
    private readonly notices: Notices,
  ) {}

  async setupKvTransfer(role: Role, backend: Backend, options: SetupOptions): Promise<void> {
    if (this.life.state !== 'new') {
      throw new HandoffError(
        this.life.state === 'closed' ? 'CLOSED' : 'ALREADY_SET_UP',
        `setupKvTransfer: expected a new StateHandoff, this one is ${this.life.state}`,
      );
    }
    if (role !== 'prefill' && role !== 'decode') throw argumentError('role', "'prefill' or 'decode'", role);
    checkSetupOptions(options);
    const group = options.group ?? this.trackingGroup;
    const carrier = chooseCarrier(options.carrier, group);
    checkContext(this.engine, role);
    this.life.state = 'settingUp';
    const transports: Transport[] = [];
    try {
      const built = await buildTransports(backend, this.engine, role);
      transports.push(...built.open.map(({ transport }) => transport));
      const description = await describeRanks(this.engine, role, carrier, transports, this.options, group);
      if (this.life.isClosed())
        throw new HandoffError('CLOSED', 'this StateHandoff was closed while it was being set up');
      this.life.running = startRunning({
        role,
        context: this.engine,
        options: this.options,
        built,
        description,
        group,
        carrier,
        notices: this.notices,
        balance: options.balance ?? 'first',
      });
      this.life.state = 'running';
    } catch (error) {
      for (const transport of transports) await transport.close().catch(() => undefined);
      if (!this.life.isClosed()) this.life.state = 'new';
      throw error;
    }
    for (const transport of transports) transport.onWake = () => this.notices.tell('wake');
    if (group !== null) group.onWake = () => this.notices.tell('wake');
  }

  setupHandoffCompletionTracking(group: RankGroup): void {
    if (this.life.state !== 'new')
      throw new HandoffError('ALREADY_SET_UP', 'setupHandoffCompletionTracking: expected before setupKvTransfer');
    this.trackingGroup = group;
  }
}

function checkSetupOptions(options: SetupOptions): void {
  requireObject('options', options);
  for (const key of Object.keys(options)) {
    if (key !== 'group' && key !== 'carrier' && key !== 'balance')
      throw argumentError(`options.${key}`, 'group, carrier or balance', key, 'OPTION_INVALID');
  }
  const { group, balance } = options;
  if (balance !== undefined && balance !== 'first' && balance !== 'spread')
    throw argumentError('options.balance', 'first or spread', balance, 'OPTION_INVALID');
  if (
    group !== undefined &&
    group !== null &&
    (typeof group.allGather !== 'function' || !Number.isSafeInteger(group.size))
  )
    throw argumentError('options.group', 'a RankGroup', group, 'OPTION_INVALID');
}

function chooseCarrier(asked: 'group' | 'host' | undefined, group: RankGroup | null): LogCarrier {
  if (asked === undefined) return group === null || group.size === 1 ? 'local' : 'group';
  if (asked !== undefined && asked !== 'group' && asked !== 'host')
    throw argumentError('options.carrier', 'group or host', asked);
  if (asked === 'group' && group === null)
    throw argumentError('options.group', 'a RankGroup for the group carrier', group);
  return asked;
}
