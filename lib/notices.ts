/**
 * What listeners hear, and when: after the public call that caused it is over, so that no listener runs in the middle of
 * a transition. A listener that throws harms nobody but itself.
 */
import type { EventEmitter } from 'eventemitter3';
import { engineCallError } from './engine-call-error.js';
import type { HandoffError, HandoffErrorCode } from './errors.js';
import type { StateHandoffEvents } from './events.js';

type Name = keyof StateHandoffEvents;
type Arguments<N extends Name> = Parameters<StateHandoffEvents[N]>;

/** Errors after which the engine must stop: its state is not what the log says. */
const fatalCodes: ReadonlySet<HandoffErrorCode> = new Set([
  'INVARIANT',
  'DIVERGENCE',
  'RANK_LOST',
  'ENGINE_FATAL',
  'COMPLETION_CONTRADICTED',
  'ENGINE_CALL_FAILED',
]);

export class Notices {
  private readonly outbox: (() => void)[] = [];
  private readonly told = new WeakSet<HandoffError>();
  private depth = 0;

  /** @param speaks - whether this rank tells the control plane (rank 0 does) */
  constructor(
    private readonly emitter: EventEmitter<StateHandoffEvents>,
    private readonly speaks: () => boolean,
  ) {}

  /** Runs one public call. An error that means the engine is broken is also an `engineFailed` event, once. */
  call<T>(body: () => T): T {
    this.depth += 1;
    try {
      return body();
    } catch (thrown) {
      const error = engineCallError(thrown);
      if (fatalCodes.has(error.code)) this.engineFailed(error);
      throw error;
    } finally {
      this.depth -= 1;
      this.flush();
    }
  }

  tell<N extends Name>(name: N, ...args: Arguments<N>): void {
    this.outbox.push(() => this.emitNow(name, ...args));
    this.flush();
  }

  /** The engine must stop; said once for each error, however often it is thrown. */
  engineFailed(error: HandoffError): void {
    if (this.told.has(error)) return;
    this.told.add(error);
    this.tell('engineFailed', error);
  }

  /** What the control plane hears comes from rank 0 alone, once for the instance. */
  tellControlPlane<N extends Name>(name: N, ...args: Arguments<N>): void {
    if (this.speaks()) this.tell(name, ...args);
  }

  private flush(): void {
    if (this.depth > 0) return;
    for (let next = this.outbox.shift(); next !== undefined; next = this.outbox.shift()) next();
  }

  private emitNow<N extends Name>(name: N, ...args: Arguments<N>): void {
    try {
      this.emitter.emit(name, ...(args as Parameters<EventEmitter.EventListener<StateHandoffEvents, N>>));
    } catch (error) {
      if (name !== 'warning') this.emitNow('warning', { message: `a listener of ${name} threw`, error });
    }
  }
}
