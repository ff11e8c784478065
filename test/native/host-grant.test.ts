/**
 * Promise: a grant is plain JSON and is believed in nothing; whatever comes back from a peer gives a peer that works or
 * one that failed, with a code.
 */
import fc from 'fast-check';
import { isRecord, type JsonValue } from '../../lib/json.js';
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import { HostTransport } from '../../lib/transfer/transports/host.js';
import { twoEnds } from '../support/host-ends.js';
import { blockProgram, requestOf, settled } from '../support/host-fixture.js';

describe('a grant', () => {
  test('is not to be had before a region is registered', async () => {
    const transport = new HostTransport();
    expect(() => transport.grant()).toThrow(expect.objectContaining({ code: 'NOT_SET_UP' }));
    await transport.close();
  });

  test('is plain JSON that survives its own text, and covers what was registered', async () => {
    const { exporter, importer } = await twoEnds(4096);
    const first = exporter.grant();
    const later = allocateHostRegion({ bytes: 100 });
    expect(exporter.register(later)).toBe(1);
    const second = exporter.grant();
    expect(JSON.parse(JSON.stringify(first))).toEqual(first);
    expect([first.regions, second.regions]).toEqual([['4096'], ['4096', '100']]);
    expect(second.token).toBe(first.token);
    // Both serve: the older one for the regions of its day.
    const [narrow, wide] = [await settled(importer.connect(first)), await settled(importer.connect(second))];
    expect([narrow.status(), wide.status()]).toEqual(['ready', 'ready']);
    later.close();
  });

  const bad: [string, (grant: Record<string, JsonValue>) => JsonValue, string, string][] = [
    ['null', () => null, 'ARGUMENT_INVALID', 'grant: expected a map, got null'],
    ['text', () => 'grant', 'ARGUMENT_INVALID', 'grant: expected a map'],
    ['an empty map', () => ({}), 'ARGUMENT_INVALID', 'grant.version: expected'],
    ['another version', (grant) => ({ ...grant, version: 2 }), 'PEER_REFUSED', 'version 2'],
    ['no socket', (grant) => ({ ...grant, socket: null }), 'ARGUMENT_INVALID', 'grant.socket: expected a map'],
    [
      'a socket of another kind',
      (grant) => ({ ...grant, socket: { kind: 'tcp', name: 'x' } }),
      'ARGUMENT_INVALID',
      'grant.socket.kind',
    ],
    [
      'a long name',
      (grant) => ({ ...grant, socket: { kind: 'path', name: 'x'.repeat(108) } }),
      'ARGUMENT_INVALID',
      'grant.socket.name',
    ],
    [
      'a name with NUL',
      (grant) => ({ ...grant, socket: { kind: 'path', name: 'a\0b' } }),
      'ARGUMENT_INVALID',
      'grant.socket.name',
    ],
    ['a short token', (grant) => ({ ...grant, token: 'ab' }), 'ARGUMENT_INVALID', 'grant.token'],
    ['a token of words', (grant) => ({ ...grant, token: 'z'.repeat(32) }), 'ARGUMENT_INVALID', 'grant.token'],
    ['no regions', (grant) => ({ ...grant, regions: [] }), 'ARGUMENT_INVALID', 'grant.regions'],
    [
      'too many regions',
      (grant) => ({ ...grant, regions: new Array<string>(4097).fill('1') }),
      'ARGUMENT_INVALID',
      'grant.regions',
    ],
    ['sizes as numbers', (grant) => ({ ...grant, regions: [4096] }), 'ARGUMENT_INVALID', 'grant.regions[0]'],
    ['a size of 0', (grant) => ({ ...grant, regions: ['0'] }), 'ARGUMENT_INVALID', 'grant.regions[0]'],
    ['a size in hexadecimal', (grant) => ({ ...grant, regions: ['0x10'] }), 'ARGUMENT_INVALID', 'grant.regions[0]'],
    [
      'a size beyond 2^52',
      (grant) => ({ ...grant, regions: ['9007199254740991'] }),
      'ARGUMENT_INVALID',
      'grant.regions[0]',
    ],
    [
      'negative generations',
      (grant) => ({ ...grant, block_generations: -1 }),
      'ARGUMENT_INVALID',
      'grant.block_generations',
    ],
    ['another machine', (grant) => ({ ...grant, machine: 'elsewhere' }), 'PEER_UNREACHABLE', 'another machine'],
    ['a machine that is none', (grant) => ({ ...grant, machine: 7 }), 'ARGUMENT_INVALID', 'grant.machine'],
    [
      'another token',
      (grant) => ({ ...grant, token: '0'.repeat(32) }),
      'PEER_REFUSED',
      'not of its present incarnation',
    ],
    [
      'a size that is not true',
      (grant) => ({ ...grant, regions: ['8192'] }),
      'PEER_REFUSED',
      'where 8192 were granted',
    ],
    ['generations that are not there', (grant) => ({ ...grant, slot_generations: 3 }), 'PEER_REFUSED', 'than granted'],
    [
      'nobody listens',
      (grant) => ({ ...grant, socket: { kind: 'abstract', name: 'nobody' } }),
      'PEER_UNREACHABLE',
      'not reached',
    ],
    [
      'a path that is not there',
      (grant) => ({ ...grant, socket: { kind: 'path', name: './nothing-here' } }),
      'PEER_UNREACHABLE',
      'not reached',
    ],
  ];
  test.each(bad)('with %s gives a failed peer', async (_, change, code, words) => {
    const { exporter, importer } = await twoEnds(4096);
    const peer = await settled(importer.connect(change(exporter.grant())));
    expect(peer.status()).toBe('failed');
    expect(peer.error).toMatchObject({ code, message: expect.stringContaining(words) });
    const handle = importer.begin(requestOf(blockProgram(Int32Array.of(0), Int32Array.of(0), 64)), peer);
    expect(handle.poll()).toBe('failed-quiet');
    expect(handle.error?.code).toBe(code);
  });

  test('field report 113: of arbitrary JSON gives a failed peer and nothing else', async () => {
    const { exporter, importer } = await twoEnds(4096);
    const good = exporter.grant();
    const field = fc.constantFrom(...Object.keys(good));
    await fc.assert(
      fc.asyncProperty(fc.oneof(fc.jsonValue(), fc.record({ replace: field, by: fc.jsonValue() })), async (value) => {
        const grant = (
          isRecord(value) && 'replace' in value ? { ...good, [String(value.replace)]: value.by } : value
        ) as JsonValue;
        // A machine that is not told is no contradiction.
        fc.pre(!isRecord(grant) || JSON.stringify({ ...grant, machine: good.machine }) !== JSON.stringify(good));
        const peer = await settled(importer.connect(grant));
        expect(peer.status()).toBe('failed');
        peer.close();
      }),
      { numRuns: 300 },
    );
  });
});
