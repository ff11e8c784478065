/**
 * How large a part of a message may be. Who gets a larger one drops the connection, and with it all that others wait for; so
 * nothing larger is sent.
 */
import { argumentError } from '../../errors.js';
import type { Frames } from '../protocol/codec.js';

/** Bytes of one frame. */
export const frameBytesMax = 64 * 2 ** 20;

/** @throws `ARGUMENT_INVALID` */
export function checkFrameSizes(frames: Frames, path: string): void {
  const largest = frames.reduce((max, { byteLength }) => Math.max(max, byteLength), 0);
  if (largest > frameBytesMax) throw argumentError(path, `at most ${frameBytesMax} bytes on the wire`, largest);
}
