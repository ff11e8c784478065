/**
 * What an NCCL transport tells a peer: whether it pushes, how it cuts, the sizes of its regions, and where it listens.
 * Plain JSON. What comes back from a peer is hostile until it is here.
 */
import { HandoffError } from '../../errors.js';
import { isRecord, type JsonValue } from '../../json.js';
import { fieldError, integerField, own, recordField, stringField, type Fields } from '../../json-fields.js';
import { regionSizes } from './nccl-wire.js';

const code = 'ARGUMENT_INVALID';

export interface NcclGrant {
  /** Else it is pushed to. */
  readonly pushes: boolean;
  readonly chunkBytes: number;
  readonly packed: boolean;
  readonly regionBytes: BigUint64Array;
  readonly listener: { readonly host: string; readonly port: number; readonly token: string };
}

/** @throws `ARGUMENT_INVALID` naming the field; `PEER_REFUSED` for another version */
export function decodeNcclGrant(value: JsonValue): NcclGrant {
  if (!isRecord(value)) throw fieldError('', 'grant', 'a map', value, code);
  if (integerField(value, 'version', 'grant', 1, 2 ** 31, code) !== 1) {
    throw new HandoffError('PEER_REFUSED', "the peer's grant is of another version of the nccl transport");
  }
  const listener = recordField(value, 'listener', 'grant', code);
  return {
    pushes: flag(value, 'pushes'),
    chunkBytes: integerField(value, 'chunk_bytes', 'grant', 4096, 2 ** 30, code),
    packed: flag(value, 'packed'),
    regionBytes: BigUint64Array.from(regionSizes(value, 'grant'), BigInt),
    listener: {
      host: stringField(listener, 'host', 'grant.listener', 255, code),
      port: integerField(listener, 'port', 'grant.listener', 1, 65_535, code),
      token: stringField(listener, 'token', 'grant.listener', 32, code),
    },
  };
}

function flag(value: Fields, name: string): boolean {
  const given = own(value, name);
  if (typeof given !== 'boolean') throw fieldError('grant', name, 'a boolean', given, code);
  return given;
}
