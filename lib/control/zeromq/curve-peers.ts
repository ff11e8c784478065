/**
 * Who may connect to a coordinator, and as what: the allow-list that binds a name to one key and one role. Also the file
 * that holds one end's own keys. Data and checks; opens no socket.
 */
import { argumentError } from '../../errors.js';
import { isRecord } from '../../json.js';
import type { ToCoordinator } from '../protocol/messages.js';
import { decodeKey, publicKeyOf, type CurveKeyPair } from './curve-key.js';

/** Engines register and answer; clients submit, release and signal; observers may only ask for the status. */
export type CurveRole = 'engine' | 'client' | 'observer';

/** One entry of the allow-list. */
export interface AllowedPeer {
  readonly role: CurveRole;
  /** Public. */
  readonly key: string;
}

/** Names to what they may be. */
export type AllowList = Readonly<Record<string, AllowedPeer>>;

/** How a coordinator uses CURVE. */
export interface CurveServer {
  readonly secretKey: string;
  readonly peers: AllowList;
}

/** How an engine or a client proves who it is. */
export interface CurvePeer {
  /** Its name in the coordinator's allow-list. */
  readonly name: string;
  readonly secretKey: string;
  /** The coordinator's public key. */
  readonly serverKey: string;
}

/** A file of `state-handoff keys`. */
export interface KeyFile extends CurveKeyPair {
  readonly name: string;
}

const roles: readonly CurveRole[] = ['engine', 'client', 'observer'];
const namePattern = /^[\dA-Za-z][\w-]{0,63}$/;
const peersMax = 65_536;

/** @throws `OPTION_INVALID` */
export function checkPeerName(name: unknown, path: string): string {
  if (typeof name === 'string' && namePattern.test(name)) return name;
  throw argumentError(path, 'up to 64 letters, digits, _ and -, beginning with no _ or -', name, 'OPTION_INVALID');
}

/**
 * @param parsed - `{"NAME": {"role": "engine", "key": "…"}, …}`
 * @throws `OPTION_INVALID`, also where two names have one key: a key says who somebody is
 */
export function checkAllowList(parsed: unknown, path: string): AllowList {
  if (!isRecord(parsed) || Object.keys(parsed).length > peersMax)
    throw argumentError(path, `a map of at most ${peersMax} names`, parsed, 'OPTION_INVALID');
  const names = new Map<string, string>();
  const list: Record<string, AllowedPeer> = {};
  for (const [name, entry] of Object.entries(parsed)) {
    checkPeerName(name, `${path}: name`);
    const at = `${path}.${name}`;
    if (!isRecord(entry) || Object.keys(entry).sort().join() !== 'key,role')
      throw argumentError(at, 'a map of role and key', isRecord(entry) ? Object.keys(entry) : entry, 'OPTION_INVALID');
    const role = roles.find((each) => each === entry['role']);
    if (role === undefined) throw argumentError(`${at}.role`, roles.join(', '), entry['role'], 'OPTION_INVALID');
    const key = entry['key'] as string;
    decodeKey(key, `${at}.key`);
    const other = names.get(key);
    if (other !== undefined) throw argumentError(`${at}.key`, 'a key of its own', `that of ${other}`, 'OPTION_INVALID');
    names.set(key, name);
    list[name] = { role, key };
  }
  return list;
}

/** @throws `OPTION_INVALID`, also where the two keys are no pair */
export function checkKeyFile(parsed: unknown, path: string): KeyFile {
  if (!isRecord(parsed)) throw argumentError(path, 'a file of `state-handoff keys`', typeof parsed, 'OPTION_INVALID');
  const name = checkPeerName(parsed['name'], `${path}.name`);
  const [publicKey, secretKey] = [parsed['public_key'] as string, parsed['secret_key'] as string];
  if (publicKeyOf(secretKey, `${path}.secret_key`) !== publicKey)
    throw argumentError(`${path}.public_key`, 'the key that belongs to secret_key', publicKey, 'OPTION_INVALID');
  return { name, publicKey, secretKey };
}

const observers: readonly ToCoordinator['header'][] = ['CONNECT', 'STATUS', 'DISCONNECT'];
const engines: readonly ToCoordinator['header'][] = [
  'REGISTER',
  'REGISTER_ROLE',
  'DISCONNECT',
  'ENGINE_REPLY',
  'ENGINE_REPLY_PARTIAL',
  'ENGINE_STATUS',
  'KV_READ_DONE',
  'KV_TRANSFER_READY',
  'REQUEST_ERROR',
  'REQUEST_ABORTED',
  'REGISTER_KV',
];

/** Whether a peer of this role has a say of this kind at all. */
export function mayReach(role: CurveRole, header: ToCoordinator['header']): boolean {
  if (role === 'engine') return engines.includes(header);
  if (role === 'observer') return observers.includes(header);
  return header === 'DISCONNECT' || !engines.includes(header);
}
