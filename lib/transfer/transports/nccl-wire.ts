/**
 * What the two ends of a pair say to each other beside NCCL: over TCP, one line of JSON a message. The target gives the
 * unique id of their communicator; then the source announces each push and waits for the word to go, so that both post in
 * one order. What comes from the other end is hostile until it is here.
 */
import type { Socket } from 'node:net';
import { isRecord, type JsonValue } from '../../json.js';
import { fieldError, integerField, listField, own, stringField, type Fields } from '../../json-fields.js';

const code = 'ARGUMENT_INVALID';
const lineBytesMax = 256 * 1024;
const regionsMax = 4096;
const regionBytesMax = 2n ** 52n;

/**
 * - `hello`, `push`, `drop`: the source's; a push that will not come is dropped.
 * - `join`, `go`, `no`: the target's.
 * - `watch`, `watched`: over a line of its own, which the target opens to notice the source's end.
 */
export type NcclMessage =
  | { readonly kind: 'hello'; readonly token: string; readonly regions: readonly string[] }
  | { readonly kind: 'join'; readonly uniqueId: string }
  | { readonly kind: 'push'; readonly tag: string; readonly bytes: number }
  | { readonly kind: 'drop'; readonly tag: string }
  | { readonly kind: 'go'; readonly tag: string }
  | { readonly kind: 'no'; readonly tag: string; readonly why: string }
  | { readonly kind: 'watch'; readonly token: string }
  | { readonly kind: 'watched' };

/** @throws `ARGUMENT_INVALID` naming the field */
export function parseNcclMessage(value: JsonValue): NcclMessage {
  if (!isRecord(value)) throw fieldError('', 'message', 'a map', value, code);
  const tag = (): string => stringField(value, 'tag', 'message', 512, code);
  const kind = own(value, 'kind');
  switch (kind) {
    case 'hello':
      return { kind, token: stringField(value, 'token', 'message', 32, code), regions: regionSizes(value, 'message') };
    case 'join':
      return { kind, uniqueId: stringField(value, 'uniqueId', 'message', 256, code) };
    case 'push':
      return { kind, tag: tag(), bytes: integerField(value, 'bytes', 'message', 0, Number.MAX_SAFE_INTEGER, code) };
    case 'go':
    case 'drop':
      return { kind, tag: tag() };
    case 'watch':
      return { kind, token: stringField(value, 'token', 'message', 32, code) };
    case 'watched':
      return { kind };
    case 'no':
      return { kind, tag: tag(), why: stringField(value, 'why', 'message', 4096, code) };
    default:
      throw fieldError('message', 'kind', 'a message of this release', kind, code);
  }
}

/** Sizes of regions as decimal strings. @throws `ARGUMENT_INVALID` */
export function regionSizes(value: Fields, path: string): string[] {
  const sizes = listField(value, 'regions', path, regionsMax, code);
  if (sizes.length === 0) throw fieldError(path, 'regions', 'at least one region', sizes, code);
  return sizes.map((size, index) => {
    const bytes = typeof size === 'string' && /^[1-9][0-9]{0,15}$/.test(size) ? BigInt(size) : 0n;
    if (bytes > 0n && bytes <= regionBytesMax) return size as string;
    throw fieldError(path, `regions[${index}]`, 'a size in bytes as a decimal string', size, code);
  });
}

/** Messages over a socket, each way. Ends the socket for what is no message. */
export class NcclLine {
  private rest = '';

  /** @param onEnd - called once, with why */
  constructor(
    private readonly socket: Socket,
    onMessage: (message: NcclMessage) => void,
    onEnd: (why: string) => void,
  ) {
    let ended = false;
    const end = (why: string): void => {
      socket.destroy();
      if (ended) return;
      ended = true;
      onEnd(why);
    };
    socket.setNoDelay(true);
    socket.setEncoding('utf8');
    socket.on('error', ({ message }) => end(message));
    socket.on('close', () => end('it hung up'));
    socket.on('data', (text) => {
      this.rest += String(text);
      for (let at = this.rest.indexOf('\n'); at >= 0 && !ended; at = this.rest.indexOf('\n')) {
        const line = this.rest.slice(0, at);
        this.rest = this.rest.slice(at + 1);
        try {
          onMessage(parseNcclMessage(JSON.parse(line) as JsonValue));
        } catch (error) {
          end(`it said what is no message: ${(error as Error).message}`);
        }
      }
      if (this.rest.length > lineBytesMax) end('it said too much');
    });
  }

  send(message: NcclMessage): void {
    if (!this.socket.destroyed) this.socket.write(`${JSON.stringify(message)}\n`);
  }

  close(): void {
    this.socket.destroy();
  }

  /** Neither end is held open by it. */
  unref(): void {
    this.socket.unref();
  }
}
