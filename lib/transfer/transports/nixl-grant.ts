/**
 * What a NIXL transport tells a peer so that it can read: the agent's metadata, the granted memory and the staging into
 * which it gathers. Plain JSON; 64-bit numbers are decimal strings. What comes back from a peer is hostile until it is
 * here; an address in it is the peer's own, and NIXL compares it with what the peer registered.
 */
import { HandoffError } from '../../errors.js';
import { isRecord, type JsonObject, type JsonValue } from '../../json.js';
import { fieldError, integerField, listField, own, recordField, stringField, type Fields } from '../../json-fields.js';
import type { MemoryKind } from '../transport.js';

export interface NixlRegion {
  readonly address: bigint;
  readonly bytes: bigint;
  readonly kind: MemoryKind;
  readonly device: number;
}

/** Where peers find what was gathered for them: the headers of slots in host memory, and the slots themselves. */
export interface NixlSlots {
  readonly address: bigint;
  readonly slots: number;
  readonly slotBytes: number;
  readonly data: Omit<NixlRegion, 'bytes'>;
}

export interface NixlGrant {
  /** Null for a side that only reads. */
  readonly metadata: Uint8Array | null;
  readonly regions: readonly NixlRegion[];
  /** Null for a side that packs nothing. */
  readonly staging: NixlSlots | null;
}

/** The grant of a side that exports. */
export interface NixlExport extends NixlGrant {
  readonly metadata: Uint8Array;
}

const code = 'ARGUMENT_INVALID';
const version = 2;
const regionsMax = 4096;
const metadataBytesMax = 48 * 1024;
const addressMax = 2n ** 64n - 1n;
const regionBytesMax = 2n ** 52n;

export function encodeNixlGrant({ metadata, regions, staging }: NixlGrant): JsonObject {
  return {
    version,
    metadata: metadata === null ? null : Buffer.from(metadata).toString('base64'),
    regions: regions.map(({ address, bytes, kind, device }) => ({
      address: String(address),
      bytes: String(bytes),
      kind,
      device,
    })),
    staging: staging === null ? null : encodeSlots(staging),
  };
}

function encodeSlots({ address, slots, slotBytes, data }: NixlSlots): JsonObject {
  return {
    ...{ address: String(address), slots, slot_bytes: slotBytes },
    data: { address: String(data.address), kind: data.kind, device: data.device },
  };
}

/** @throws `ARGUMENT_INVALID` naming the field; `PEER_REFUSED` for another version */
export function decodeNixlGrant(value: JsonValue): NixlGrant {
  if (!isRecord(value)) throw fieldError('', 'grant', 'a map', value, code);
  if (own(value, 'version') !== version) {
    const theirs = integerField(value, 'version', 'grant', 1, 2 ** 31, code);
    throw new HandoffError(
      'PEER_REFUSED',
      `the peer's grant is of version ${theirs} of the nixl transport, and this side reads version ${version}; ` +
        'run one release of the SDK on both',
      { details: { theirs, ours: version } },
    );
  }
  const metadata = own(value, 'metadata') === null ? null : metadataField(value);
  const regions = listField(value, 'regions', 'grant', regionsMax, code).map(regionOf);
  if (metadata !== null && regions.length === 0) {
    throw fieldError('grant', 'regions', 'at least one region', regions, code);
  }
  return { metadata, regions, staging: own(value, 'staging') === null ? null : stagingField(value) };
}

function metadataField(value: Fields): Uint8Array {
  const text = stringField(value, 'metadata', 'grant', metadataBytesMax * 2, code);
  const bytes = Buffer.from(text, 'base64');
  if (bytes.length === 0 || bytes.length > metadataBytesMax || bytes.toString('base64') !== text) {
    throw fieldError('grant', 'metadata', `base64 of 1 to ${metadataBytesMax} bytes`, text, code);
  }
  return Uint8Array.from(bytes);
}

function regionOf(value: unknown, index: number): NixlRegion {
  const path = `grant.regions[${index}]`;
  if (!isRecord(value)) throw fieldError('grant', `regions[${index}]`, 'a map', value, code);
  const place = placeOf(value, path);
  const bytes = decimalField(value, 'bytes', path, regionBytesMax);
  if (bytes === 0n) throw fieldError(path, 'bytes', 'at least 1', '0', code);
  if (place.address > addressMax - bytes) {
    throw fieldError(path, 'address', 'an address below 2^64 - bytes', place.address, code);
  }
  return { ...place, bytes };
}

/** Where memory lies. `max`: of its address. */
function placeOf(value: Fields, path: string, max = addressMax): Omit<NixlRegion, 'bytes'> {
  const kind = own(value, 'kind');
  if (kind !== 'host' && kind !== 'cuda') throw fieldError(path, 'kind', "'host' or 'cuda'", kind, code);
  const address = decimalField(value, 'address', path, max);
  return { address, kind, device: integerField(value, 'device', path, 0, 1023, code) };
}

function stagingField(value: Fields): NixlSlots {
  const staging = recordField(value, 'staging', 'grant', code);
  const path = 'grant.staging';
  // Room for the largest staging above it.
  const max = addressMax - 2n ** 41n;
  return {
    address: decimalField(staging, 'address', path, max),
    slots: integerField(staging, 'slots', path, 1, 1024, code),
    slotBytes: integerField(staging, 'slot_bytes', path, 1, 2 ** 30, code),
    data: placeOf(recordField(staging, 'data', path, code), `${path}.data`, max),
  };
}

function decimalField(value: Fields, key: string, path: string, max: bigint): bigint {
  const text = own(value, key);
  const number = typeof text === 'string' && /^(?:0|[1-9][0-9]{0,19})$/.test(text) ? BigInt(text) : -1n;
  if (number < 0n || number > max) throw fieldError(path, key, `a decimal string of at most ${max}`, text, code);
  return number;
}
