/**
 * `state-handoff keys NAME`: makes a CURVE key pair for a coordinator or a peer of one. The secret goes into a file that
 * only its owner may read, the public key to standard output, and with `--peers` onto a coordinator's allow-list.
 */
import { existsSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { makeKeyPair } from '../control/zeromq/curve-key.js';
import { checkAllowList, checkPeerName } from '../control/zeromq/curve-peers.js';
import { argumentError, HandoffError, isHandoffError } from '../errors.js';
import { readAllowList } from './key-file.js';
import type { Command } from './state-handoff.js';

const usage = `usage: state-handoff keys NAME [--out FILE] [--peers FILE --role ROLE]

  NAME          what the holder is called: letters, digits, _ and -; the coordinator's own can be any
  --out FILE    where the secret key goes (default NAME.key.json); is never overwritten
  --peers FILE  the allow-list of a coordinator, to which NAME is added; made when it is not there
  --role ROLE   what NAME may be there: engine, client or observer (status only)

Prints the public key. A coordinator takes its own file and the list:
  state-handoff coordinator --key-file coordinator.key.json --peers peers.json
Its peers take their file and the coordinator's public key:
  state-handoff status ADDRESS --key-file NAME.key.json --server-key KEY`;

const flags = {
  out: { type: 'string' },
  peers: { type: 'string' },
  role: { type: 'string' },
  help: { type: 'boolean' },
} as const;

export const keys: Command = (args, { write, writeError }) => {
  try {
    const { values, positionals } = parseFlags(args);
    if (values.help === true) {
      write(usage);
      return Promise.resolve(0);
    }
    const [name, ...more] = positionals;
    if (name === undefined || more.length > 0) {
      writeError(usage);
      return Promise.resolve(2);
    }
    checkPeerName(name, 'NAME');
    if ((values.peers === undefined) !== (values.role === undefined))
      throw new HandoffError('OPTION_INVALID', 'peers and role: expected both or neither, got one');
    const { publicKey, secretKey } = makeKeyPair();
    const file = values.out ?? `${name}.key.json`;
    const list = values.peers === undefined ? null : listWith(values.peers, name, values.role, publicKey);
    writeNew(file, { name, public_key: publicKey, secret_key: secretKey });
    if (list !== null) replaceFile(values.peers!, list);
    write(JSON.stringify({ name, public_key: publicKey, key_file: file, peers: values.peers ?? null }));
    return Promise.resolve(0);
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    writeError(`state-handoff keys: ${error.message}`);
    return Promise.resolve(2);
  }
};

function parseFlags(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: flags, allowPositionals: true });
  } catch (cause) {
    throw new HandoffError('OPTION_INVALID', (cause as Error).message, { cause });
  }
}

/** @throws `OPTION_INVALID` when the name is on it already, or the role is none */
function listWith(file: string, name: string, role: string | undefined, key: string): unknown {
  const before = existsSync(file) ? readAllowList(file) : {};
  if (Object.hasOwn(before, name)) throw argumentError('peers', 'a list without this name', name, 'OPTION_INVALID');
  return checkAllowList({ ...before, [name]: { role, key } }, 'peers');
}

/** @throws `OPTION_INVALID` when there is one */
function writeNew(file: string, content: object): void {
  try {
    writeFileSync(file, `${JSON.stringify(content, null, 2)}\n`, { mode: 0o600, flag: 'wx' });
  } catch (cause) {
    throw notWritten('out', file, cause);
  }
}

/** Whole or not at all: a coordinator may read it now. */
function replaceFile(file: string, content: unknown): void {
  const next = `${file}.${process.pid}`;
  try {
    writeFileSync(next, `${JSON.stringify(content, null, 2)}\n`, { flag: 'wx' });
    renameSync(next, file);
  } catch (cause) {
    rmSync(next, { force: true });
    throw notWritten('peers', file, cause);
  }
}

function notWritten(flag: string, file: string, cause: unknown): HandoffError {
  const { code } = cause as NodeJS.ErrnoException;
  return new HandoffError('OPTION_INVALID', `${flag}: ${file} cannot be written because ${code}`, {
    details: { path: flag },
  });
}
