/** The three sections of the protocol against vectors, and against vectors that promise something else. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseExactJson, type ExactObject } from '../../../lib/conformance/exact-json.js';
import { runDocument } from '../../../lib/conformance/run-document.js';
import { sections } from '../../../lib/conformance/sections.js';

const textOf = (name: string): string => readFileSync(join(__dirname, '..', '..', 'vectors', `${name}.json`), 'utf8');
const run = (text: string) => runDocument(text, 'file', sections);

it.each([
  ['headers_gen_b', 1],
  ['message_bytes', 13],
  ['nixl_agent_metadata', 3],
])('%s passes whole', async (name, cases) => {
  expect(await run(textOf(name))).toMatchObject({ passed: cases, failures: [], isKnown: true });
});

it.each<[string, RegExp, string, string]>([
  ['headers_gen_b', /"SEND_KV": 26/, '"SEND_KV": 99', 'values.SEND_KV: expected 99, got 26'],
  ['headers_gen_b', /"SEND_KV": 26/, '"SEND_KV": 26.0', 'values.SEND_KV: expected 26.0, got 26'],
  ['headers_gen_b', /"SHUTDOWN": 61/, '"SHUTDOWN": 61, "SHUTUP": 62', 'values.SHUTUP: expected 62, got nothing'],
  ['headers_gen_b', /"CONNECT",/, '"CONNECTED",', 'categories.Connection[0]: expected "CONNECTED"'],
  ['headers_gen_b', /"categories"/, '"category"', 'category: expected no such key'],
  ['nixl_agent_metadata', /"unknown agent"/, '"another"', 'expected unknown agent or mismatch, got another'],
  [
    'nixl_agent_metadata',
    /"type": "ValueError"/,
    '"type": "KeyError"',
    'error: expected KeyError, which stands for no code',
  ],
  [
    'nixl_agent_metadata',
    /"x": 1\n {3}\},\n {3}\{\n {4}"agent_name": "p-r1"\n/,
    '"x": 2\n},{"agent_name": "p-r1"',
    'stripped.tp_metas[0].x: expected 2',
  ],
  [
    'nixl_agent_metadata',
    /"x": 1,\n {4}"agent_metadata_b64": "AAA="/,
    '"x": 1, "agent_metadata_b64": "AAB="',
    'restored.tp_metas[0].agent_metadata_b64',
  ],
])('%s fails when %s says %s', async (name, from, to, failure) => {
  const text = textOf(name);
  const changed = text.replace(from, to);
  expect(changed).not.toBe(text);
  const { failures } = await run(changed);
  expect(failures.join('\n')).toContain(failure);
});

it('message_bytes fails on every other byte and every other value', async () => {
  const document = parseExactJson(textOf('message_bytes')) as ExactObject;
  for (const each of document['cases'] as readonly ExactObject[]) {
    const hex = each['hex'] as string;
    const value = JSON.stringify(each['value'], (_key, inner: unknown) => inner);
    for (let at = 0; at < hex.length; at += 2) {
      const other = (parseInt(hex.slice(at, at + 2), 16) ^ 1).toString(16).padStart(2, '0');
      const changed = { value: '@', hex: hex.slice(0, at) + other + hex.slice(at + 2) };
      const text = JSON.stringify({ section: 'message_bytes', cases: [changed] }).replace('"@"', value);
      expect((await run(text)).passed).toBe(0);
    }
  }
});

it('message_bytes takes integer-like keys in the order of the bytes', async () => {
  const text = (hex: string) =>
    JSON.stringify({ section: 'message_bytes', cases: [{ value: [100, { 9: 1, 10: 2, a: 3 }], hex }] });
  expect(await run(text('926483a2313002a13901a16103'))).toMatchObject({ passed: 1, failures: [] });
  expect(await run(text('926483a2313003a13901a16103'))).toMatchObject({ passed: 0 });
});

it.each([
  [{ value: [999], hex: '91cd03e7' }, 'value[0]: expected a header, got 999'],
  [{ value: [0], hex: '9' }, 'hex: expected pairs of lower-case hex digits'],
  [{ value: [0], hex: '92' }, 'hex: expected msgpack'],
])('message_bytes refuses %j', async (each, failure) => {
  expect((await run(JSON.stringify({ section: 'message_bytes', cases: [each] }))).failures[0]).toContain(failure);
});
