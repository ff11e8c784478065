/**
 * Files that the commands share: one end's CURVE keys, and the allow-list of a coordinator. Reads and checks, no more; what
 * is no regular file is refused, since reading it may never end.
 */
import { closeSync, constants, fstatSync, openSync, readFileSync, type Stats } from 'node:fs';
import {
  checkAllowList,
  checkKeyFile,
  type AllowList,
  type CurvePeer,
  type KeyFile,
} from '../control/zeromq/curve-peers.js';
import { decodeKey } from '../control/zeromq/curve-key.js';
import { HandoffError, isHandoffError } from '../errors.js';

/**
 * @param flag - for errors
 * @param isSecret - others than its owner must have no right to it: what they can read they know, what they can write is theirs
 * @throws `OPTION_INVALID`
 */
function readJson(file: string, flag: string, isSecret: boolean): unknown {
  try {
    // What is looked at is what is read, whatever becomes of the name.
    // Without waiting: a pipe that nobody writes to would never open.
    const descriptor = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
    try {
      const stats = fstatSync(descriptor);
      if (!stats.isFile()) throw notRegular(kindOf(stats), file, flag);
      const { mode } = stats;
      if (isSecret) checkPrivate(mode, file, flag);
      // Who can write it decides who is let in.
      else if ((mode & 0o002) !== 0) throw tooOpen(mode, file, flag, 'written by its owner only', 'o-w');
      return JSON.parse(readFileSync(descriptor, 'utf8'));
    } finally {
      closeSync(descriptor);
    }
  } catch (cause) {
    if (isHandoffError(cause)) throw cause;
    // A socket cannot be opened at all.
    if ((cause as NodeJS.ErrnoException).code === 'ENXIO') throw notRegular('a socket', file, flag);
    // What the file holds is not repeated: it may be a secret.
    const why = cause instanceof SyntaxError ? 'it is no JSON' : (cause as Error).message;
    throw new HandoffError('OPTION_INVALID', `${flag}: ${file} cannot be read because ${why}`, {
      details: { path: flag },
    });
  }
}

function kindOf(stats: Stats): string {
  if (stats.isDirectory()) return 'a directory';
  return stats.isFIFO() ? 'a pipe' : 'a device';
}

function notRegular(got: string, file: string, flag: string): HandoffError {
  return new HandoffError('OPTION_INVALID', `${flag}: expected ${file} to be a regular file, got ${got}`, {
    details: { path: flag },
  });
}

function checkPrivate(mode: number, file: string, flag: string): void {
  if ((mode & 0o077) === 0) return;
  throw tooOpen(
    mode,
    file,
    flag,
    'for its owner alone (mode 600)',
    '600',
    ', and make new keys if somebody may have read it',
  );
}

function tooOpen(mode: number, file: string, flag: string, expected: string, change: string, more = ''): HandoffError {
  const got = (mode & 0o777).toString(8);
  return new HandoffError(
    'OPTION_INVALID',
    `${flag}: expected ${file} to be ${expected}, got mode ${got}; chmod ${change} it${more}`,
    { details: { path: flag } },
  );
}

/** @throws `OPTION_INVALID`, also for a file that others may read or write */
export function readKeyFile(file: string): KeyFile {
  return checkKeyFile(readJson(file, 'key-file', true), 'key-file');
}

/** @throws `OPTION_INVALID`, also for a file that everybody may write */
export function readAllowList(file: string): AllowList {
  return checkAllowList(readJson(file, 'peers', false), 'peers');
}

/** Both flags or neither. @throws `OPTION_INVALID` */
export function readCurvePeer(keyFile: string | undefined, serverKey: string | undefined): CurvePeer | undefined {
  if (keyFile === undefined && serverKey === undefined) return undefined;
  if (keyFile === undefined || serverKey === undefined)
    throw new HandoffError('OPTION_INVALID', 'key-file and server-key: expected both or neither, got one');
  const { name, secretKey } = readKeyFile(keyFile);
  decodeKey(serverKey, 'server-key');
  return { name, secretKey, serverKey };
}
