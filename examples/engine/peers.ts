/**
 * How the ranks of one engine talk while they compute: messages between pairs of ranks, in order, nothing else.
 *
 * A computation that waits for others is a generator: it yields when it cannot go on before something arrives, and is
 * resumed when something has. So the same code runs with all ranks in one thread (`in-process-peers.ts`) and with one
 * process a rank (`socket-peers.ts`), and a rank that is alone never yields at all.
 */
import { HandoffError } from 'state-handoff';

/** Yields when it has to wait; returns its result. */
export type Steps<Result> = Generator<void, Result, void>;

export interface Peers {
  /** This rank, of `size`. */
  readonly rank: number;
  readonly size: number;
  /** Never blocks. The bytes are the receiver's from now on: do not write into them again. */
  send(to: number, bytes: Uint8Array): void;
  /** The next message of a rank, in the order it was sent; null when it has not come. @throws `PEER_RANK_FAILED` */
  take(from: number): Uint8Array | null;
  /** Whether some message has come that was not taken. */
  readonly hasMail: boolean;
  /** Called when something has arrived, or a rank was lost. */
  onArrival: (() => void) | null;
}

/** Waits for the next message of a rank. */
export function* receive(peers: Peers, from: number): Steps<Uint8Array> {
  for (;;) {
    const bytes = peers.take(from);
    if (bytes !== null) return bytes;
    yield;
  }
}

/** Numbers as a message; they are the receiver's then. Of scratch memory send a `slice()`. */
export function bytesIn({ buffer, byteOffset, byteLength }: Float32Array | Float64Array | Int32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

const kinds = { float32: Float32Array, float64: Float64Array, int32: Int32Array };
type Numbers = { readonly [Kind in keyof typeof kinds]: InstanceType<(typeof kinds)[Kind]> };

/**
 * The numbers of a message.
 *
 * @param count - how many there must be; whoever sends more or fewer computes something else
 * @throws `DIVERGENCE`
 */
export function numbersOf<Kind extends keyof Numbers>(
  kind: Kind,
  bytes: Uint8Array,
  from: number,
  count = bytes.byteLength / kinds[kind].BYTES_PER_ELEMENT,
): Numbers[Kind] {
  const expected = count * kinds[kind].BYTES_PER_ELEMENT;
  if (bytes.byteLength !== expected || !Number.isInteger(count)) {
    const message = `rank ${from} sent ${bytes.byteLength} bytes where ${expected} were expected; the ranks do not compute the same step`;
    throw new HandoffError('DIVERGENCE', message, { details: { rank: from } });
  }
  // A message may start anywhere in what was received; numbers start at multiples of their size.
  const isAligned = bytes.byteOffset % kinds[kind].BYTES_PER_ELEMENT === 0;
  const { buffer, byteOffset } = isAligned ? bytes : new Uint8Array(bytes);
  return new kinds[kind](buffer as ArrayBuffer, byteOffset, count) as Numbers[Kind];
}

/** Runs to the end what needs nobody else. @throws `INVARIANT` when it waits for another rank */
export function runAlone<Result>(steps: Steps<Result>, what: string): Result {
  const { done, value } = steps.next();
  if (done !== true) throw new HandoffError('INVARIANT', `${what} waits for other ranks; run the steps of all of them`);
  return value;
}
