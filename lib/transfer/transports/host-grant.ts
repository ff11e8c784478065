/**
 * What a host transport tells a peer so that it can read: where the broker listens, the token, and the sizes of what it
 * will hand over. Plain JSON; 64-bit sizes are decimal strings. What comes back from a peer is hostile until it is here.
 */
import { HandoffError } from '../../errors.js';
import { isRecord, type JsonObject, type JsonValue } from '../../json.js';
import { fieldError, integerField, listField, own, recordField, stringField, type Fields } from '../../json-fields.js';
import type { NativeAddress } from '../../native/transfer-types.js';

export interface HostGrant {
  readonly address: NativeAddress;
  /** 16 random bytes, of one incarnation of the exporter. */
  readonly token: Uint8Array;
  /** The machine, as far as the exporter can tell; null when it cannot. */
  readonly machine: string | null;
  readonly regionBytes: BigUint64Array;
  /** 0: none. */
  readonly blockGenerations: number;
  readonly slotGenerations: number;
}

const version = 1;
const regionsMax = 4096;
const regionBytesMax = 2n ** 52n;
const generationsMax = 2 ** 31;

export function encodeHostGrant(grant: HostGrant): JsonObject {
  return {
    version,
    socket: { kind: grant.address.abstract ? 'abstract' : 'path', name: grant.address.name },
    token: Buffer.from(grant.token).toString('hex'),
    machine: grant.machine,
    regions: [...grant.regionBytes].map(String),
    block_generations: grant.blockGenerations,
    slot_generations: grant.slotGenerations,
  };
}

/** @throws `ARGUMENT_INVALID` naming the field; `PEER_REFUSED` for another version */
export function decodeHostGrant(value: JsonValue): HostGrant {
  const code = 'ARGUMENT_INVALID';
  if (!isRecord(value)) throw fieldError('', 'grant', 'a map', value, code);
  if (own(value, 'version') !== version) {
    const theirs = integerField(value, 'version', 'grant', 1, 2 ** 31, code);
    throw new HandoffError(
      'PEER_REFUSED',
      `the peer's grant is of version ${theirs} of the host transport, and this side reads version ${version}; ` +
        'run one release of the SDK on both',
      { details: { theirs, ours: version } },
    );
  }
  const socket = recordField(value, 'socket', 'grant', code);
  const kind = own(socket, 'kind');
  if (kind !== 'abstract' && kind !== 'path') {
    throw fieldError('grant.socket', 'kind', "'abstract' or 'path'", kind, code);
  }
  const name = stringField(socket, 'name', 'grant.socket', 107, code);
  if (name.includes('\0') || Buffer.byteLength(name) > 107) {
    throw fieldError('grant.socket', 'name', 'at most 107 bytes without NUL', name, code);
  }
  const machine = own(value, 'machine');
  const regions = listField(value, 'regions', 'grant', regionsMax, code);
  if (regions.length === 0) throw fieldError('grant', 'regions', 'at least one region', regions, code);
  return {
    address: { abstract: kind === 'abstract', name },
    token: tokenField(value),
    machine: machine === null ? null : stringField(value, 'machine', 'grant', 64, code),
    regionBytes: BigUint64Array.from(regions, regionSize),
    blockGenerations: integerField(value, 'block_generations', 'grant', 0, generationsMax, code),
    slotGenerations: integerField(value, 'slot_generations', 'grant', 0, generationsMax, code),
  };
}

function tokenField(value: Fields): Uint8Array {
  const token = own(value, 'token');
  if (typeof token !== 'string' || !/^[0-9a-f]{32}$/.test(token)) {
    throw fieldError('grant', 'token', '32 hexadecimal digits', token, 'ARGUMENT_INVALID');
  }
  return Uint8Array.from(Buffer.from(token, 'hex'));
}

function regionSize(value: unknown, index: number): bigint {
  const bytes = typeof value === 'string' && /^[1-9][0-9]{0,15}$/.test(value) ? BigInt(value) : 0n;
  if (bytes === 0n || bytes > regionBytesMax) {
    throw fieldError('grant', `regions[${index}]`, 'a size in bytes as a decimal string', value, 'ARGUMENT_INVALID');
  }
  return bytes;
}
