/** Promise: what a peer says of its NIXL memory is taken whole or refused with the name of the field. */
import type { JsonObject, JsonValue } from '../../lib/json.js';
import { decodeNixlGrant, encodeNixlGrant, type NixlGrant } from '../../lib/transfer/transports/nixl-grant.js';

const grant: NixlGrant = {
  metadata: Uint8Array.of(1, 2, 3),
  regions: [
    { address: 140_422_680_674_304n, bytes: 4096n, kind: 'host', device: 0 },
    { address: 2n ** 63n, bytes: 2n ** 52n, kind: 'cuda', device: 7 },
  ],
  staging: { address: 65_536n, slots: 8, slotBytes: 2 << 20, data: { address: 2n ** 40n, kind: 'cuda', device: 7 } },
};

const encoded = encodeNixlGrant(grant);
const [host, cuda] = encoded['regions'] as [JsonObject, JsonObject];
const staging = encoded['staging'] as JsonObject;
const data = staging['data'] as JsonObject;

test('a grant comes back from JSON as it went', () => {
  expect(decodeNixlGrant(JSON.parse(JSON.stringify(encoded)) as JsonValue)).toEqual(grant);
  const reader: NixlGrant = { metadata: null, regions: [], staging: null };
  expect(decodeNixlGrant(encodeNixlGrant(reader))).toEqual(reader);
});

test.each<[string, JsonValue, RegExp]>([
  ['nothing', null, /^grant: expected a map/],
  ['a list', [], /^grant: expected a map/],
  ['no version', { ...encoded, version: null }, /^grant\.version: /],
  ['text for a version', { ...encoded, version: '1' }, /^grant\.version: /],
  ['no metadata', { ...encoded, metadata: '' }, /^grant\.metadata: /],
  ['metadata that is no base64', { ...encoded, metadata: 'A' }, /^grant\.metadata: /],
  ['metadata without end', { ...encoded, metadata: 'AAAA'.repeat(30_000) }, /^grant\.metadata: /],
  ['metadata and no region', { ...encoded, regions: [] }, /^grant\.regions: /],
  ['regions without end', { ...encoded, regions: new Array<JsonValue>(5000).fill(host) }, /^grant\.regions: /],
  ['a region that is text', { ...encoded, regions: ['x'] }, /^grant\.regions\[0\]: expected a map/],
  ['another kind of memory', { ...encoded, regions: [{ ...host, kind: 'disk' }] }, /^grant\.regions\[0\]\.kind: /],
  ['an address as a number', { ...encoded, regions: [{ ...host, address: 5 }] }, /^grant\.regions\[0\]\.address: /],
  ['a negative address', { ...encoded, regions: [{ ...host, address: '-1' }] }, /^grant\.regions\[0\]\.address: /],
  [
    'an address with leading zeros',
    { ...encoded, regions: [{ ...host, address: '01' }] },
    /^grant\.regions\[0\]\.address: /,
  ],
  [
    'an end beyond all addresses',
    { ...encoded, regions: [host, { ...cuda, address: String(2n ** 64n - 1n) }] },
    /^grant\.regions\[1\]\.address: /,
  ],
  ['a region of nothing', { ...encoded, regions: [{ ...host, bytes: '0' }] }, /^grant\.regions\[0\]\.bytes: /],
  [
    'a region of 2^53 bytes',
    { ...encoded, regions: [{ ...host, bytes: String(2n ** 53n) }] },
    /^grant\.regions\[0\]\.bytes: /,
  ],
  ['a negative device', { ...encoded, regions: [{ ...host, device: -1 }] }, /^grant\.regions\[0\]\.device: /],
  ['staging as text', { ...encoded, staging: 'x' }, /^grant\.staging: /],
  ['staging of no slots', { ...encoded, staging: { ...staging, slots: 0 } }, /^grant\.staging\.slots: /],
  ['slots of nothing', { ...encoded, staging: { ...staging, slot_bytes: 0 } }, /^grant\.staging\.slot_bytes: /],
  [
    'staging that ends beyond all addresses',
    { ...encoded, staging: { ...staging, address: String(2n ** 64n - 1n) } },
    /^grant\.staging\.address: /,
  ],
  ['slots that lie nowhere', { ...encoded, staging: { ...staging, data: null } }, /^grant\.staging\.data: /],
  [
    'slots in another kind of memory',
    { ...encoded, staging: { ...staging, data: { ...data, kind: 'disk' } } },
    /^grant\.staging\.data\.kind: /,
  ],
  [
    'slots that end beyond all addresses',
    { ...encoded, staging: { ...staging, data: { ...data, address: String(2n ** 64n - 1n) } } },
    /^grant\.staging\.data\.address: /,
  ],
  [
    'slots on no device',
    { ...encoded, staging: { ...staging, data: { ...data, device: -1 } } },
    /^grant\.staging\.data\.device: /,
  ],
])('%s is refused by name', (_, value, message) => {
  expect(() => decodeNixlGrant(value)).toThrow(
    expect.objectContaining({ code: 'ARGUMENT_INVALID', message: expect.stringMatching(message) }),
  );
});

test('another version is refused as such', () => {
  expect(() => decodeNixlGrant({ ...encoded, version: 1 })).toThrow(expect.objectContaining({ code: 'PEER_REFUSED' }));
});
