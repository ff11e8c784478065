/** What a prefill’s reply must hold to be a handoff, and what its reader gets of it (spec 1.5.3). */
import { decodeValue } from '../../lib/control/protocol/wire-bytes.js';
import { Float64, type Wire } from '../../lib/control/protocol/wire-value.js';
import { handoffBody, openDesk, wire } from '../support/coordinator-desk.js';

test('agents’ own metadata is put back for decode, and strangers are refused', () => {
  const desk = openDesk();
  desk.engine('p1', { meta: { agent_name: 'a', agent_metadata_b64: 'QUJD' } });
  desk.engine('d1');
  const replies = [{ requestId: 0, needsDetokenize: false, body: handoffBody(wire({ agent_name: 'a', x: 1 })) }];
  desk.submit('c1', 1);
  const sent = desk.hear('p1', { header: 'ENGINE_REPLY', replies }).find((effect) => effect.kind === 'send');
  const { kvMeta } = (sent as unknown as { message: { kvMeta: Uint8Array } }).message;
  expect(decodeValue(kvMeta)).toEqual(wire({ agent_name: 'a', x: 1, agent_metadata_b64: 'QUJD' }));
  const refused = [
    wire({ agent_name: 'b' }),
    wire({ agent_name: 5 }),
    wire({ agent_name: 'a', agent_metadata_b64: 'QUJE' }),
    wire({ agent_name: 'a', tp_metas: [wire({ agent_name: 'b' })] }),
  ];
  refused.forEach((kvMeta, index) => {
    desk.submit('c1', 2 + index);
    expect(desk.prefilled('p1', 1 + index, handoffBody(kvMeta))).toEqual([
      `c1 REQUEST_ERROR ${2 + index} safe`,
      `p1 RELEASE_KV ${1 + index}`,
    ]);
  });
});

test.each<[string, Wire, Wire]>([
  [
    'of every rank',
    { tp_metas: [{ agent_name: 'a' }, { agent_name: 'a', y: 2 }] },
    {
      tp_metas: [
        { agent_name: 'a', agent_metadata_b64: 'QUJD' },
        { agent_name: 'a', y: 2, agent_metadata_b64: 'QUJD' },
      ],
    },
  ],
  [
    'that was not left out',
    { agent_name: 'a', agent_metadata_b64: 'QUJD', x: 1 },
    { agent_name: 'a', agent_metadata_b64: 'QUJD', x: 1 },
  ],
  [
    'beside fifteen keys',
    { agent_name: 'a', ...Object.fromEntries(Array.from({ length: 14 }, (_, at) => [`k${at}`, at])) },
    {
      agent_name: 'a',
      ...Object.fromEntries(Array.from({ length: 14 }, (_, at) => [`k${at}`, at])),
      agent_metadata_b64: 'QUJD',
    },
  ],
] as unknown as [string, Wire, Wire][])('agents’ metadata %s is as registered', (_title, given, expected) => {
  const desk = openDesk();
  desk.engine('p1', { meta: { agent_name: 'a', agent_metadata_b64: 'QUJD' } });
  desk.engine('d1');
  desk.submit('c1', 1);
  const replies = [{ requestId: 0, needsDetokenize: false, body: handoffBody(mapsOf(given)) }];
  const sent = desk.hear('p1', { header: 'ENGINE_REPLY', replies }).find((effect) => effect.kind === 'send');
  const { kvMeta } = (sent as unknown as { message: { kvMeta: Uint8Array } }).message;
  expect(decodeValue(kvMeta)).toEqual(mapsOf(expected));
});

test.each<[string, Wire]>([
  ['no list', wire({})],
  ['a fraction', [1, new Float64(2)]],
  ['text', ['4']],
  ['more than a number holds', [2n ** 60n]],
  ['nil', [null]],
])('source blocks that are %s make no handoff', (_title, blockIds) => {
  const desk = openDesk();
  desk.engine('p1');
  desk.engine('d1');
  desk.submit('c1', 1);
  expect(desk.prefilled('p1', 0, handoffBody(wire({}), blockIds))).toEqual([
    'c1 REQUEST_ERROR 1 safe',
    'p1 RELEASE_KV 0',
  ]);
  desk.submit('c1', 2);
  expect(desk.prefilled('p1', 1, handoffBody(wire({}), [-1, 200, 70_000, 2 ** 40]))).toEqual([
    'd1 SUBMIT_REQUEST_WITH_KV 1',
  ]);
});

/** Plain objects as maps of the wire, at any depth. */
function mapsOf(value: unknown): Wire {
  if (Array.isArray(value)) return value.map(mapsOf);
  if (typeof value !== 'object' || value === null) return value as Wire;
  return new Map(Object.entries(value).map(([key, inner]) => [key, mapsOf(inner)]));
}
