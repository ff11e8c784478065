/** The public calls that reach all ranks of an instance through the ordered log, whatever their role. */
import type { LogRecord } from '../control/rank-group.js';
import { argumentError } from '../errors.js';
import { isRecord } from '../json.js';
import type { Notices } from '../notices.js';
import type { CompiledOptions } from '../options.js';
import { checkName, travelling } from '../request-input.js';
import type { Life } from './life.js';
import type { PrefillCalls } from './prefill-calls.js';

export class LogCalls {
  constructor(
    private readonly life: Life,
    private readonly options: CompiledOptions,
    private readonly notices: Notices,
    private readonly prefillCalls: PrefillCalls,
  ) {}

  attestInstanceDead(instance: string, incarnation: string): void {
    const { log, prefill } = this.life.requireRunning();
    log.requireRankZero('attestInstanceDead');
    checkName(instance, 'instance');
    checkName(incarnation, 'incarnation');
    this.notices.call(() => {
      log.decide({ kind: 'attest-dead', instance, incarnation });
      if (prefill !== null) this.prefillCalls.releaseOwner(`${instance}/${incarnation}`);
    });
  }

  beginStep(): boolean {
    const { log } = this.life.requireRunning();
    return this.notices.call(() => log.beginStep());
  }

  drainHandoffCompletionNotifications(): readonly LogRecord[] {
    const { log } = this.life.requireRunning();
    log.requireRankZero('drainHandoffCompletionNotifications');
    return log.drainNotifications();
  }

  recordHandoffCompletionNotification(record: LogRecord): void {
    const { log } = this.life.requireRunning();
    this.notices.call(() => log.record(record));
  }

  carry(message: Readonly<Record<string, unknown>>): void {
    const { log } = this.life.requireRunning();
    log.requireRankZero('carry');
    if (!isRecord(message)) throw argumentError('message', 'a map of plain data', message);
    const carried = log.carrier === 'local' ? message : travelling(message, 'message');
    this.notices.call(() => log.decide({ kind: 'carried', message: carried }));
  }

  setGenerationEpoch(epoch: number): void {
    if (!Number.isSafeInteger(epoch) || epoch < 0) throw argumentError('epoch', 'an integer of at least 0', epoch);
    this.options.epoch = epoch;
    const { running } = this.life;
    if (running?.decode) this.notices.call(() => running.decode?.role.applyEpoch());
  }
}
