/** Files that the commands share: one end's CURVE keys, and the allow-list of a coordinator. Reads and checks, no more. */
import { readFileSync } from 'node:fs';
import {
  checkAllowList,
  checkKeyFile,
  type AllowList,
  type CurvePeer,
  type KeyFile,
} from '../control/zeromq/curve-peers.js';
import { decodeKey } from '../control/zeromq/curve-key.js';
import { HandoffError } from '../errors.js';

/** @param flag - for errors @throws `OPTION_INVALID` */
export function readJson(file: string, flag: string): unknown {
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    // What the file holds is not repeated: it may be a secret.
    const why = cause instanceof SyntaxError ? 'it is no JSON' : (cause as Error).message;
    throw new HandoffError('OPTION_INVALID', `${flag}: ${file} cannot be read because ${why}`, {
      details: { path: flag },
    });
  }
}

/** @throws `OPTION_INVALID` */
export function readKeyFile(file: string): KeyFile {
  return checkKeyFile(readJson(file, 'key-file'), 'key-file');
}

/** @throws `OPTION_INVALID` */
export function readAllowList(file: string): AllowList {
  return checkAllowList(readJson(file, 'peers'), 'peers');
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
