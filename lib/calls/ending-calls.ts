/** How an engine ends: everything cancelled, everything drained, or closed. Memory in doubt or pinned keeps it open. */
import { requireObject } from '../argument-shape.js';
import { HandoffError } from '../errors.js';
import type { Notices } from '../notices.js';
import type { CompiledOptions } from '../options.js';
import { checkDeadline } from '../request-input.js';
import type { Running } from '../setup/running.js';
import type { DecodeCalls } from './decode-calls.js';
import type { Life } from './life.js';
import type { PrefillCalls } from './prefill-calls.js';

export class EndingCalls {
  constructor(
    private readonly life: Life,
    private readonly options: CompiledOptions,
    private readonly notices: Notices,
    private readonly prefillCalls: PrefillCalls,
    private readonly decodeCalls: DecodeCalls,
    private readonly removeListeners: () => void,
  ) {}

  async resetPendingKvImports(options: { readonly deadlineMs?: number }): Promise<void> {
    requireObject('options', options);
    const running = this.life.requireRunning();
    const { decode, prefill, log } = running;
    const deadline = this.options.clock.now() + checkDeadline(options.deadlineMs, 30_000);
    if (decode !== null && log.rank === 0) {
      this.notices.call(() => decode.abortAll());
    }
    const inDoubt = (): number =>
      (decode?.pendingCount ?? 0) + (decode?.role.quarantined.size ?? 0) + (prefill?.role.pendingPushCount ?? 0);
    for (this.pollOnce(running); inDoubt() > 0; this.pollOnce(running)) {
      if (this.options.clock.now() >= deadline) break;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    const doubtful = inDoubt();
    if (doubtful > 0) {
      throw new HandoffError(
        'MEMORY_IN_DOUBT',
        `${doubtful} transfers may still access cache storage; wait until they are quiet, or attest that their peers are dead`,
        {
          sourceSafe: false,
          targetSafe: false,
        },
      );
    }
    const pins = prefill?.role.ledger.size ?? 0;
    if (pins > 0) {
      throw new HandoffError(
        'HANDOFF_STILL_PINNED',
        `handoff state of ${pins} requests remains pinned; wait for their release`,
      );
    }
  }

  async drain(options: { readonly deadlineMs?: number }): Promise<void> {
    requireObject('options', options);
    const running = this.life.requireRunning();
    const deadline = this.options.clock.now() + checkDeadline(options.deadlineMs, 60_000);
    this.life.state = 'draining';
    for (this.pollOnce(running); this.openWork(running) > 0; this.pollOnce(running)) {
      if (this.options.clock.now() >= deadline) {
        throw new HandoffError(
          'DRAIN_DEADLINE',
          `${this.openWork(running)} handoffs are still under way or pinned; see inspect()`,
        );
      }
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  async close(options: { readonly force?: boolean }): Promise<void> {
    requireObject('options', options);
    if (this.life.state === 'closed') return;
    const { running } = this.life;
    if (running !== null && options.force !== true) this.requireQuiet(running);
    this.life.state = 'closed';
    if (running === null) return;
    running.decode?.abandon(new HandoffError('CLOSED', 'the engine was closed', { phase: 'decode' }));
    const failures: unknown[] = [];
    running.plans.close();
    for (const transport of running.transports) await transport.close().catch((error: unknown) => failures.push(error));
    running.group?.close();
    this.removeListeners();
    if (failures.length > 0 && options.force !== true) throw failures[0];
  }

  private pollOnce({ decode }: Running): void {
    if (decode !== null) this.decodeCalls.pollPendingKvImports();
    else this.prefillCalls.pollPendingKvPushes();
  }

  private openWork({ decode, prefill }: Running): number {
    return (decode?.role.imports.size ?? 0) + (decode?.pendingCount ?? 0) + (prefill?.role.ledger.size ?? 0);
  }

  private requireQuiet({ decode, prefill }: Running): void {
    const moving =
      (decode?.pendingCount ?? 0) + (decode?.role.quarantined.size ?? 0) + (prefill?.role.pendingPushCount ?? 0);
    if (moving > 0) {
      throw new HandoffError(
        'MEMORY_IN_DOUBT',
        `${moving} transfers may still access cache storage; drain first, or close({force: true})`,
        {
          sourceSafe: false,
          targetSafe: false,
        },
      );
    }
    const open = decode?.role.imports.size ?? 0;
    if (open > 0) {
      throw new HandoffError(
        'REQUESTS_OPEN',
        `${open} requests are running and their callers wait; drain first, or close({force: true})`,
      );
    }
    const pins = prefill?.role.ledger.size ?? 0;
    if (pins > 0)
      throw new HandoffError(
        'HANDOFF_STILL_PINNED',
        `handoff state of ${pins} requests remains pinned; drain first, or close({force: true})`,
      );
  }
}
