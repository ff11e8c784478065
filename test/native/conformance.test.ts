/**
 * The library against the vectors, and the runner against doctored ones: whatever a vector promises, changing it fails.
 * Each change is made alone, in a file that holds just its case.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { conformance } from '../../lib/cli/conformance.js';
import { JsonFloat, parseExactJson, type ExactObject, type ExactValue } from '../../lib/conformance/exact-json.js';
import { runDocument, runValue } from '../../lib/conformance/run-document.js';
import { sections } from '../../lib/conformance/sections.js';

const directory = join(__dirname, '..', 'vectors');
const owned = [
  'block_hashes',
  'completion_report_bytes',
  'completion_tracker',
  'decode_admission',
  'drop_prefix',
  'kv_block_allocator',
  'kv_layout_errors',
  'kv_reshard',
  'nccl_op_order',
  'nixl_descriptors',
  'nixl_ssm_descriptors',
  'ssm_layout_errors',
  'ssm_reshard',
  'ssm_slot_pool',
  'transfer_records',
];

type Path = readonly (string | number)[];
const textOf = (value: ExactValue): string => {
  if (value instanceof JsonFloat) return Number.isInteger(value.value) ? value.value.toFixed(1) : String(value.value);
  if (Array.isArray(value)) return `[${value.map(textOf).join(',')}]`;
  if (typeof value === 'object' && value !== null) {
    return `{${Object.entries(value)
      .map(([key, inner]) => `${JSON.stringify(key)}:${textOf(inner as ExactValue)}`)
      .join(',')}}`;
  }
  return typeof value === 'bigint' ? String(value) : JSON.stringify(value);
};

function changedAt(value: ExactValue, path: Path, change: (inner: ExactValue) => ExactValue): ExactValue {
  const [key, ...rest] = path;
  if (key === undefined) return change(value);
  if (Array.isArray(value))
    return value.map((entry: ExactValue, index) => (index === key ? changedAt(entry, rest, change) : entry));
  const object = value as ExactObject;
  return { ...object, [key]: changedAt(object[key]!, rest, change) };
}

function placesOf(value: ExactValue, path: Path = []): Path[] {
  if (typeof value !== 'object' || value === null || value instanceof JsonFloat) return [path];
  const inner = Object.entries(value) as [string, ExactValue][];
  return [path, ...inner.flatMap(([key, each]) => placesOf(each, [...path, Array.isArray(value) ? Number(key) : key]))];
}

const at = (value: ExactValue, path: Path): ExactValue =>
  path.reduce((inner, key) => (inner as ExactObject)[key]!, value);
const isMap = (value: ExactValue): value is ExactObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof JsonFloat);

async function failures(document: ExactValue): Promise<readonly string[]> {
  return (await runValue(document, 'file', sections)).failures;
}

/** One file a case: everything that is no case stays. */
function singleCases(document: ExactObject): { file: ExactObject; group: string }[] {
  const groups = ['cases', 'errors'].filter((key) => document[key] !== undefined);
  const rest = Object.fromEntries(Object.entries(document).filter(([key]) => !groups.includes(key)));
  return groups.flatMap((group) =>
    (document[group] as readonly ExactValue[]).map((each) => ({ file: { ...rest, [group]: [each] }, group })),
  );
}

/** Names, and input that may change without changing what is promised. */
const isFree = (path: Path, group: string, file: ExactObject): boolean =>
  path.includes('name') ||
  (group === 'errors' && path[2] !== 'error') ||
  // Where the reference is wrong, its plan and the reason are for people; the recommendation is what counts.
  path[2] === 'reference_defect' ||
  (path[2] === 'plan' && at(file, [path[0]!, path[1]!, 'reference_defect']) !== undefined);

/** What the section promises: the outputs. */
const outputs: Readonly<Record<string, (path: Path) => boolean>> = {
  block_hashes: (path) => path[2] === 'blocks' || path[2] === 'parent_hashes',
  completion_report_bytes: () => true,
  completion_tracker: (path) => path[4] === 'drain' || path[4] === 'error',
  decode_admission: (path) => !['prompt', 'resume_tokens', 'block_size'].includes(path[2] as string),
  drop_prefix: (path) => path[2] === 'result' || path[2] === 'error',
  kv_block_allocator: (path) => ['init', 'result', 'state', 'observer', 'error'].includes(path[4] as string),
  kv_layout_errors: (path) => path[2] === 'error',
  kv_reshard: (path) => path[2] === 'plan' || path[4] === 'layer_range' || path[4] === 'head_range',
  nccl_op_order: (path) => path[2] === 'sends' || path[2] === 'recvs',
  nixl_descriptors: (path) => path[2] === 'reads',
  nixl_ssm_descriptors: (path) => path[2] === 'reads',
  ssm_layout_errors: (path) => path[2] === 'error',
  ssm_reshard: (path) => path[2] === 'recommended_plan' || path[2] === 'plan' || path[4] === 'local',
  ssm_slot_pool: (path) => ['init', 'result', 'state', 'error'].includes(path[4] as string),
  transfer_records: (path) => ['records', 'block_count', 'error'].includes(path[2] as string),
};

function otherThan(value: ExactValue): ExactValue {
  if (typeof value === 'number') return value + 1;
  if (typeof value === 'boolean') return !value;
  if (typeof value === 'string') return /^\d+$/.test(value) ? String(BigInt(value) + 1n) : `${value}0`;
  if (value === null) return 0;
  return Array.isArray(value) ? [...(value as readonly ExactValue[]), 0] : { ...(value as ExactObject), extra: 0 };
}

describe.each(owned)('vectors of %s', (name) => {
  const document = parseExactJson(readFileSync(join(directory, `${name}.json`), 'utf8')) as ExactObject;
  const single = singleCases(document);

  it('pass whole', async () => {
    const result = await runDocument(textOf(document), 'file', sections);
    expect(result.failures).toEqual([]);
    expect(result.passed).toBe(single.length);
  });

  it('fail when a promise is changed, by its place', async () => {
    let changes = 0;
    for (const { file, group } of single) {
      for (const path of placesOf(file)) {
        if (path[0] !== group || path.length < 3 || isFree(path, group, file) || !outputs[name]!(path)) continue;
        const changed = changedAt(file, path, otherThan);
        const found = await failures(changed);
        if (found.length !== 1)
          throw new Error(`${path.join('.')} of ${textOf(at(file, path))}: ${found.join('; ') || 'not noticed'}`);
        changes++;
      }
    }
    expect(changes).toBeGreaterThan(single.length);
  });

  it('fail when an integer becomes a float of the same value', async () => {
    for (const { file, group } of single) {
      for (const path of placesOf(file)) {
        const value = at(file, path);
        if (path[0] !== group || typeof value !== 'number' || isFree(path, group, file)) continue;
        const found = await failures(changedAt(file, path, () => new JsonFloat(value)));
        if (found.length !== 1) throw new Error(`${path.join('.')}: ${value} as ${value}.0 is not noticed`);
      }
    }
  });

  it('fail on a key that nobody knows, wherever it stands', async () => {
    for (const { file, group } of single) {
      expect(await failures({ ...file, extra: 1 })).toEqual(['extra: expected no such key, got 1']);
      for (const path of placesOf(file)) {
        // Metadata may hold any key; how those come out is a promise of its own (above).
        if (path[0] !== group || path.length < 2 || path.includes('peer_meta') || !isMap(at(file, path))) continue;
        const found = await failures(changedAt(file, path, (map) => ({ ...(map as ExactObject), extra: 1 })));
        if (found.length !== 1) throw new Error(`${path.join('.')}: an extra key is not noticed`);
      }
    }
  });

  it('fail without a case', async () => {
    const { cases, errors, ...rest } = document;
    expect(await failures(rest)).toEqual(['expected at least one case, got none']);
    expect(await failures({ ...rest, cases: [] })).toEqual(['cases: expected at least one case, got []']);
    expect(cases).toBeDefined();
    if (errors !== undefined)
      expect(await failures({ ...document, cases: [] })).toEqual(['cases: expected at least one case, got []']);
  });

  it('fail when a key of a case is missing', async () => {
    for (const { file, group } of single) {
      const value = at(file, [group, 0]) as ExactObject;
      for (const key of Object.keys(value)) {
        if (['name', 'cache_salt'].includes(key) || (group === 'errors' && key !== 'error')) continue;
        const { [key]: _left, ...rest } = value;
        expect(await failures({ ...file, [group]: [rest] })).toHaveLength(1);
      }
    }
  });
});

describe('traces', () => {
  const file = (section: string, value: unknown) => JSON.stringify({ section, cases: [value] });
  const failure = async (section: string, value: unknown) =>
    (await runDocument(file(section, value), 'file', sections)).failures[0];
  const state = { pool_avail: 1, free_stack: [0], allocatable: 1 };

  it.each<[string, unknown, string]>([
    [
      'kv_block_allocator',
      { pool: 2, policy: null, trace: [{ op: ['fly'], result: null, state }] },
      'trace[0].op[0]: expected alloc, release',
    ],
    [
      'kv_block_allocator',
      { pool: 2, policy: null, trace: [{ op: ['alloc'], result: null, state }] },
      'trace[0].op: expected 1 arguments, got 0',
    ],
    [
      'kv_block_allocator',
      { pool: 2, policy: 'fifo', trace: [] },
      'policy: expected null, "ref_zero" or "lru", got "fifo"',
    ],
    [
      'kv_block_allocator',
      { pool: 2, policy: null, trace: [{ init: state, op: ['alloc', 1] }] },
      'trace[0].op: expected no such key',
    ],
    [
      'kv_block_allocator',
      { pool: 2, policy: null, trace: [{ op: ['alloc', 1], state }] },
      'trace[0].result: expected a value, got nothing',
    ],
    [
      'ssm_slot_pool',
      {
        max_requests: 1,
        trace: [{ init: { free_stack: [0], bound: [-1], dummy: null } }, { op: ['fly'], result: null, state: {} }],
      },
      'trace[1].op[0]: expected allocate',
    ],
    ['ssm_slot_pool', { max_requests: 1, trace: [] }, 'trace[0]: expected a map, got nothing'],
    ['completion_tracker', { world_size: 1, trace: [{}] }, 'trace[0]: expected either a report or a drain, got {}'],
    [
      'completion_tracker',
      { world_size: 1, trace: [{ report: [1, 0, false, true], drain: [] }] },
      'trace[0]: expected either a report or a drain',
    ],
    [
      'completion_tracker',
      { world_size: 1, trace: [{ report: [1, 0, false] }] },
      'trace[0].report: expected request_id, rank, failed, source_safe',
    ],
    [
      'completion_tracker',
      { world_size: 1, trace: [{ drain: [], error: { type: 'ValueError' } }] },
      'trace[0].error: expected none for a drain',
    ],
  ])('of %s fail on what they cannot mean: %#', async (section, value, text) => {
    expect(await failure(section, value)).toContain(text);
  });

  it('read tuples in the order that the file gives', async () => {
    const document = {
      section: 'completion_tracker',
      report_columns: ['rank', 'request_id', 'source_safe', 'failed'],
      drain_columns: ['source_safe', 'request_id', 'failed'],
      cases: [{ world_size: 1, trace: [{ report: [0, 7, true, false] }, { drain: [[true, 7, false]] }] }],
    };
    expect((await runDocument(JSON.stringify(document), 'file', sections)).failures).toEqual([]);
    const odd = { ...document, drain_columns: ['source_safe', 'request_id'] };
    expect((await runDocument(JSON.stringify(odd), 'file', sections)).failures[0]).toContain('drain_columns: expected');
  });

  it('know a dummy slot by the first state', async () => {
    const init = { free_stack: [0], bound: [-1], dummy: 1 };
    const trace = [{ init }, { op: ['bind_dummy'], result: null, state: { free_stack: [0], bound: [1], dummy: 1 } }];
    expect(await failure('ssm_slot_pool', { max_requests: 1, trace })).toBeUndefined();
  });
});

describe('npm run conformance', () => {
  const call = async (...args: string[]) => {
    const lines: string[] = [];
    return { status: await conformance(args, (line) => lines.push(line)), lines };
  };

  it("passes the project's own vectors", async () => {
    const { status, lines } = await call(directory);
    expect(status).toBe(0);
    for (const name of owned) expect(lines).toContainEqual(expect.stringMatching(new RegExp(`^${name}: (\\d+)/\\1$`)));
    const details = lines.filter((line) => line.startsWith('  '));
    expect(details).toEqual([
      expect.stringMatching(/^ {2}the reference is wrong here, .*"stage with zero SSM layers contributes nothing": /),
    ]);
    expect(lines).toHaveLength(readdirSync(directory).length + 1 + details.length);
    expect(lines.at(-1)).toMatch(/^conformance: \d+ passed, 0 failed, \d+ skipped$/);
  });

  it('gives the same hashes and states in another process (field report 83)', () => {
    const runner = join(__dirname, '..', '..', 'dist', 'lib', 'cli', 'conformance.js');
    const { status, stdout } = spawnSync(process.execPath, [runner, directory], { encoding: 'utf8' });
    expect(stdout).toContain('block_hashes: 10/10\n');
    expect(stdout).toMatch(/\nconformance: \d+ passed, 0 failed, \d+ skipped\n$/);
    expect(status).toBe(0);
    expect(spawnSync(process.execPath, [runner], { encoding: 'utf8' }).status).toBe(2);
  });

  it('says how to call it', async () => {
    expect((await call('--help')).status).toBe(0);
    for (const args of [[], ['--fast'], [directory, directory]]) {
      const { status, lines } = await call(...args);
      expect(status).toBe(2);
      expect(lines[0]).toContain('usage: npm run conformance -- DIR');
    }
  });
});
