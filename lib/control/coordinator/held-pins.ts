/**
 * Pins that another run of the coordinator began: what restarted engines say they still hold. One is released when its
 * reader has registered as the same process without it, has said that it is done, or is attested dead; until then it is
 * shown and stays.
 */
import type { EngineRecord } from './engine-record.js';
import { Remembered } from './remembered.js';

export interface HeldPin {
  readonly requestId: number;
  readonly engine: EngineRecord;
  /** Its reader as `instance/incarnation`; null while nobody has said who that is. */
  owner: string | null;
  /** When it was made, on the coordinator's clock. */
  readonly since: number;
}

export class HeldPins {
  readonly #pins = new Set<HeldPin>();
  /** Owners that can read nothing more. */
  readonly #dead = new Remembered<string>();

  get pins(): ReadonlySet<HeldPin> {
    return this.#pins;
  }

  has(requestId: number): boolean {
    for (const pin of this.#pins) if (pin.requestId === requestId) return true;
    return false;
  }

  add(pin: HeldPin): void {
    this.#pins.add(pin);
  }

  /** The engine is gone; when it comes back it says again what it holds. */
  drop(engine: EngineRecord): void {
    for (const pin of this.#pins) if (pin.engine === engine) this.#pins.delete(pin);
  }

  /** Takes out and returns the pins that are proven to have no reader, given all registered engines. */
  settle(engines: Iterable<EngineRecord>): HeldPin[] {
    if (this.#pins.size === 0) return [];
    const readers = [...engines].filter(({ role }) => role === 'decode');
    return this.#take((pin) => isProven(pin, readers) || (pin.owner !== null && this.#dead.has(pin.owner)));
  }

  /** The same for the pins of an owner that is attested dead. */
  attest(owner: string): HeldPin[] {
    this.#dead.add(owner);
    return this.#take((pin) => pin.owner === owner);
  }

  #take(isOver: (pin: HeldPin) => boolean): HeldPin[] {
    const over = [...this.#pins].filter(isOver);
    for (const pin of over) this.#pins.delete(pin);
    return over;
  }
}

function isProven(pin: HeldPin, readers: readonly EngineRecord[]): boolean {
  pin.owner ??= readers.find((reader) => reads(reader, pin))?.owner ?? null;
  const reader = readers.find(({ owner }) => owner === pin.owner);
  if (reader === undefined) return false;
  return !reader.held.has(pin.requestId);
}

/** Whether this engine said that it reads, or has read, the pin. */
function reads(reader: EngineRecord, { requestId, engine }: HeldPin): boolean {
  const held = reader.held.get(requestId) ?? reader.readBefore.get(requestId);
  const source = engine.extension;
  return held !== undefined && source !== null && held.peerInstance === source.instance;
}
