/**
 * Frames on a byte stream between ranks: four bytes of payload length (big-endian), one byte of kind, the payload.
 *
 * Refuses a length above the bound before it keeps one byte of the payload. Pure: bytes in, frames out.
 */
import { argumentError } from '../../errors.js';

/** Version of everything ranks say to each other; both ends must have the same. */
export const rankProtocolVersion = 1;

/** Kinds of frames, by who sends them and when. */
export const frameKind = {
  /** Either: the beginning of a message whose end, with its kind, follows in later frames. */
  part: 0,
  /** Rank 0 to a newcomer: its nonce. */
  hello: 1,
  /** Worker: who it says it is, with proof of the token. */
  join: 2,
  /** Rank 0: its own proof. */
  welcome: 3,
  /** Rank 0: why not. */
  refuse: 4,
  /** Rank 0: all ranks are here. */
  ready: 5,
  /** Worker: its value of a gather. */
  gather: 6,
  /** Rank 0: everybody's values. */
  gathered: 7,
  /** Worker: a completion report (spec 1.2), and the placement's digest behind it where there is one. */
  report: 8,
  /** Rank 0: one step of the log. */
  step: 9,
  /** Rank 0: another worker is gone. */
  lost: 10,
  /** Either: this rank closes its group on purpose. */
  bye: 11,
} as const;

/** Length and kind. */
export const frameHeaderBytes = 5;

/** A frame ready to be written. */
export function frameBytes(kind: number, payload: Uint8Array): Uint8Array {
  const bytes = Buffer.allocUnsafe(frameHeaderBytes + payload.length);
  bytes.writeUInt32BE(payload.length, 0);
  bytes[4] = kind;
  bytes.set(payload, frameHeaderBytes);
  return bytes;
}

/** Cuts a stream into frames. A payload is only good until the next `push`. */
export class FrameReader {
  private chunks: Uint8Array[] = [];
  private size = 0;
  /** Bytes without which nothing can be cut. */
  private needed = frameHeaderBytes;

  /** @param payloadMax - bytes of one payload; may change while the stream runs */
  constructor(public payloadMax: number) {}

  /** Bytes that wait for the rest of their frame. */
  get pendingBytes(): number {
    return this.size;
  }

  /**
   * Takes bytes and gives every frame that is complete.
   *
   * @throws `ARGUMENT_INVALID` for a payload above `payloadMax`, and whatever `onFrame` throws; the stream is over then
   */
  push(chunk: Uint8Array, onFrame: (kind: number, payload: Uint8Array) => void): void {
    this.chunks.push(chunk);
    this.size += chunk.length;
    while (this.size >= this.needed) {
      const joined = this.chunks.length === 1 ? (this.chunks[0] as Uint8Array) : Buffer.concat(this.chunks, this.size);
      const length = new DataView(joined.buffer, joined.byteOffset, frameHeaderBytes).getUint32(0);
      if (length > this.payloadMax) throw argumentError('frame', `at most ${this.payloadMax} bytes`, length);
      const end = frameHeaderBytes + length;
      if (joined.length < end) {
        this.chunks = [joined];
        this.needed = end;
        return;
      }
      this.chunks = [joined.subarray(end)];
      this.size -= end;
      this.needed = frameHeaderBytes;
      onFrame(joined[4] as number, joined.subarray(frameHeaderBytes, end));
    }
  }
}
