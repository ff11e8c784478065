/**
 * What an NCCL transport tells a peer: how it cuts, the sizes of its regions, and for a side that is pushed to where it
 * listens. Plain JSON. What comes back from a peer is hostile until it is here.
 */
import { HandoffError } from '../../errors.js';
import { isRecord, type JsonValue } from '../../json.js';
import { fieldError, integerField, own, recordField, stringField } from '../../json-fields.js';
import { regionSizes } from './nccl-wire.js';

const code = 'ARGUMENT_INVALID';

export interface NcclGrant {
  readonly chunkBytes: number;
  readonly regionBytes: BigUint64Array;
  /** Null for a side that pushes. */
  readonly listener: { readonly host: string; readonly port: number; readonly token: string } | null;
}

/** @throws `ARGUMENT_INVALID` naming the field; `PEER_REFUSED` for another version */
export function decodeNcclGrant(value: JsonValue): NcclGrant {
  if (!isRecord(value)) throw fieldError('', 'grant', 'a map', value, code);
  if (integerField(value, 'version', 'grant', 1, 2 ** 31, code) !== 1) {
    throw new HandoffError('PEER_REFUSED', "the peer's grant is of another version of the nccl transport");
  }
  const listener = own(value, 'listener') === null ? null : recordField(value, 'listener', 'grant', code);
  return {
    chunkBytes: integerField(value, 'chunk_bytes', 'grant', 4096, 2 ** 30, code),
    regionBytes: BigUint64Array.from(regionSizes(value, 'grant'), BigInt),
    listener:
      listener === null
        ? null
        : {
            host: stringField(listener, 'host', 'grant.listener', 255, code),
            port: integerField(listener, 'port', 'grant.listener', 1, 65_535, code),
            token: stringField(listener, 'token', 'grant.listener', 32, code),
          },
  };
}
