/** How far an engine has come, and what runs once it is set up. Refuses calls before, after, and of the other role. */
import type { DecodeSide } from '../decode/decode-side.js';
import { HandoffError } from '../errors.js';
import type { PrefillSide } from '../prefill/prefill-side.js';
import type { Role } from '../setup/check-context.js';
import type { Running } from '../setup/running.js';

export class Life {
  state: 'new' | 'settingUp' | 'running' | 'draining' | 'closed' = 'new';
  running: Running | null = null;

  /** Asked again after an await, where the state may have changed. */
  isClosed(): boolean {
    return this.state === 'closed';
  }

  requireRunning(): Running {
    if (this.state === 'closed') throw new HandoffError('CLOSED', 'this StateHandoff was closed');
    if (this.running === null)
      throw new HandoffError('NOT_SET_UP', 'setupKvTransfer has not been called, or has not finished');
    return this.running;
  }

  requireRole(role: 'prefill'): Running & { readonly prefill: PrefillSide };
  requireRole(role: 'decode'): Running & { readonly decode: DecodeSide };
  requireRole(role: Role): Running {
    const running = this.requireRunning();
    if (running.role !== role)
      throw new HandoffError('WRONG_ROLE', `this is a ${running.role} engine; the call belongs to ${role}`);
    return running;
  }
}
