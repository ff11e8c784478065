/**
 * The demo with several ranks on each side, one process a rank: what comes out is, to the bit, what one engine of one
 * rank computes; every process and all memory is gone afterwards, however it ended.
 */
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseOptions } from '../../examples/demo/options.js';
import { planLines, plansOf } from '../../examples/demo/plan-drawing.js';
import { planPicture } from '../../examples/demo/plan-picture.js';
import { demoModel } from '../../examples/demo/engine-setting.js';
import type { ModelReport, Verdict } from '../../examples/demo/report.js';
import { childrenOf, endDemos, gone, startDemo, type DemoRun } from '../support/demo-run.js';

afterEach(endDemos);

const small = ['--layers', '4', '--block-size', '8', '--tokens', '6'];

function ranksOf({ processIds }: ModelReport): [prefill: number, decode: number] {
  return [processIds.prefill.length, processIds.decode.length];
}

/** The sockets between the ranks of a run, which no file shows. */
function rankSockets({ process: router }: DemoRun): string[] {
  return readFileSync('/proc/net/unix', 'utf8')
    .split('\n')
    .filter((line) => line.includes(`@state-handoff-demo-${router.pid}-`));
}

/** A killed process lets go of its sockets when the last of its threads ends. */
async function socketsGone(run: DemoRun): Promise<void> {
  while (rankSockets(run).length > 0) await new Promise((resolve) => setTimeout(resolve, 20));
}

const layouts: readonly [model: string, flags: string, ranks: [number, number]][] = [
  ['attention', '--prefill tp=2,pp=1 --decode tp=1,pp=2 --proposals 2', [2, 2]],
  ['attention', '--prefill tp=4 --decode tp=2,pp=2', [4, 4]],
  ['attention', '--prefill pp=3 --decode tp=2', [3, 2]],
  ['hybrid', '--prefill tp=2,pp=2 --decode tp=1', [4, 1]],
  ['hybrid', '--decode pp=4', [1, 4]],
  ['hybrid', '--prefill tp=2,pp=2 --prefill-stages 3,1 --decode pp=3 --decode-stages 1,0,3', [4, 3]],
  ['moe', '--prefill dp=2,ep=2 --decode tp=2', [2, 2]],
  ['moe', '--prefill tp=2,ep=2,expt_tp=1 --decode dp=2,ep=2,pp=2 --proposals 1', [2, 4]],
  ['hybrid', '--inference-shards role=prefill,tp=2+role=prefill,pp=2+role=decode,tp=1;role=decode,tp=2', [4, 3]],
];

test.each(layouts)('%s, %s', async (model, flags, ranks) => {
  const run = startDemo('--json', '--model', model, ...small, ...flags.split(' '));
  const { status } = await run.ended;
  expect(`${status} ${run.err()}`).toMatch(/^0 /);
  const report = JSON.parse(run.out()) as Verdict & { models: [ModelReport] };
  expect(report).toMatchObject({ requests: 15, asExpected: 15, identical: true, ok: true });
  expect(ranksOf(report.models[0])).toEqual(ranks);
  const { processIds, rows } = report.models[0];
  const ids = [processIds.router, ...processIds.prefill, ...processIds.decode];
  expect(new Set(ids).size).toBe(1 + ranks[0] + ranks[1]);
  await gone(ids);
  expect(rows.filter(({ cachedBlocks }) => cachedBlocks > 0).map(({ id }) => id)).toEqual(['shared', 'stop']);
});

test('one flipped bit on the ranks of a stage is found', async () => {
  const run = startDemo('--json', '--model', 'attention', '--corrupt', ...small, '--decode', 'tp=2');
  expect((await run.ended).status).toBe(1);
  expect(JSON.parse(run.out())).toMatchObject({ identical: false, ok: false });
});

describe('ends in the middle', () => {
  async function midway(): Promise<{ run: DemoRun; children: number[] }> {
    const sizes = ['--layers', '2', '--blocks', '128', '--tokens', '128'];
    const run = startDemo('--json', '--model', 'attention', ...sizes, '--prefill', 'tp=2', '--decode', 'tp=2');
    await run.sees(/cold +> /);
    const children = childrenOf(run.process.pid!);
    expect(children).toHaveLength(4);
    return { run, children };
  }

  test('Ctrl-C leaves no process, no memory and no socket', async () => {
    const { run, children } = await midway();
    expect(rankSockets(run).length).toBeGreaterThan(0);
    run.process.kill('SIGINT');
    expect(await run.ended).toEqual({ status: 130, signal: null });
    // Memory of these processes has no name: it ends with them.
    expect(children.filter((id) => existsSync(`/proc/${id}`))).toEqual([]);
    await socketsGone(run);
  });

  test('a router that is killed takes all ranks with it', async () => {
    const { run, children } = await midway();
    run.process.kill('SIGKILL');
    await gone(children);
    await socketsGone(run);
  });

  test.each([
    ['prefill rank 0', 0],
    ['prefill rank 1', 1],
    ['decode rank 0', 2],
    ['decode rank 1', 3],
  ])('the death of %s ends the demo, and is named', async (name, index) => {
    const { run, children } = await midway();
    process.kill(children[index]!, 'SIGKILL');
    expect((await run.ended).status).toBe(1);
    expect(run.err()).toContain(`demo: failed because the ${name} process ended uncalled with SIGKILL`);
    await gone(children);
    await socketsGone(run);
  });
});

describe('the plan', () => {
  const optionsOf = (...flags: string[]) => parseOptions(['--model', 'hybrid', ...flags]);
  const plans = (...flags: string[]) => {
    const options = optionsOf(...flags);
    return plansOf(demoModel({ ...options, kind: 'hybrid', proposals: 0 }), options);
  };

  test('is said in words, pair by pair', () => {
    expect(plans('--prefill', 'tp=2', '--decode', 'tp=1,pp=4').flatMap(planLines)).toEqual([
      '-- who gives what to whom, demo-hybrid: prefill TP 2, PP 1 to decode TP 1, PP 4 --',
      'prefill rank 0 -> decode rank 0: SSM layer 0, heads 0-3',
      'prefill rank 0 -> decode rank 1: attention layer 0, KV heads 0-1',
      'prefill rank 0 -> decode rank 2: SSM layer 1, heads 0-3',
      'prefill rank 0 -> decode rank 3: attention layer 1, KV heads 0-1',
      'prefill rank 1 -> decode rank 0: SSM layer 0, heads 4-7',
      'prefill rank 1 -> decode rank 1: attention layer 0, KV heads 2-3',
      'prefill rank 1 -> decode rank 2: SSM layer 1, heads 4-7',
      'prefill rank 1 -> decode rank 3: attention layer 1, KV heads 2-3',
    ]);
    expect(plans('--decode', 'tp=2,dp=2,ep=4,expt_tp=1')[0]!.title).toBe(
      'demo-hybrid: prefill TP 1, PP 1 to decode TP 2, PP 1, EP 4, DP 2, expert TP 1',
    );
  });

  test('a head that several ranks share comes from one source to each of them', () => {
    const [heading, ...lines] = plans('--prefill', 'tp=4', '--decode', 'tp=8').flatMap(planLines);
    expect(heading).toContain('prefill TP 4, PP 1 to decode TP 8, PP 1');
    expect(lines).toContain('prefill rank 3 -> decode rank 6: attention layers 0-1, KV head 3; SSM layers 0-1, head 6');
    expect(lines).toContain('prefill rank 3 -> decode rank 7: attention layers 0-1, KV head 3; SSM layers 0-1, head 7');
    expect(lines).toHaveLength(8);
  });

  test('is drawn once for each pair of layouts: every rank, and a line for each pair that exchanges something', () => {
    const shards = 'role=prefill,tp=2+role=decode,pp=2+role=decode,pp=2+role=decode,tp=4';
    const drawn = plans('--inference-shards', shards);
    expect(drawn).toHaveLength(2);
    const picture = planPicture(drawn);
    const count = (pattern: RegExp): number => picture.match(pattern)?.length ?? 0;
    expect(count(/<path /g)).toBe(drawn.flatMap(({ links }) => links).length);
    expect(count(/>prefill rank \d</g)).toBe(2 + 2);
    expect(count(/>decode rank \d</g)).toBe(2 + 4);
    expect(picture).toContain('>from 1: attention layer 0, KV heads 2-3<');
    expect(picture).not.toMatch(/NaN|undefined/);
  });

  test('is written where --svg says, before anything is started', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'state-handoff-plan-'));
    try {
      const file = join(folder, 'plan.svg');
      const run = startDemo('--json', '--model', 'attention', '--prompt', 'hello', '--tokens', '2', '--svg', file);
      expect((await run.ended).status).toBe(0);
      expect(readFileSync(file, 'utf8')).toMatch(/^<svg [^]*<\/svg>\n$/);
      expect(run.err()).toContain('prefill rank 0 -> decode rank 0: attention layers 0-3, KV heads 0-3');
      const refused = startDemo('--svg', join(folder, 'none', 'plan.svg'));
      expect((await refused.ended).status).toBe(2);
      expect(refused.err()).toMatch(/^demo: --svg: expected a file that can be written \(ENOENT\), got ".*plan.svg"\n/);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

describe('flags', () => {
  test.each([
    [['--prefill', 'tp=0'], '--prefill shards[0].tp: expected an integer of at least 1, got 0'],
    [['--prefill', 'tp=3'], '--prefill parallelism: expected a divisor of the 8 heads, got 3'],
    [['--prefill', 'tp=2,tp=4'], '--prefill shards[0].tp: expected one value, got "several"'],
    [['--decode', 'pp=5'], '--decode pp: expected at most the 4 layers of the model, got 5'],
    [['--decode', 'role=prefill'], '--decode role: expected decode, got "prefill"'],
    [
      ['--decode', 'dp=3,ep=2'],
      '--decode shards[0]: expected its 3 ranks (tp 1 × pp 1 × dp 3) to be a multiple of expt_tp 1 × ep 2 × pp 1, got a remainder of 1',
    ],
    [['--prefill', 'dp=30', '--decode', 'dp=3'], '--prefill and --decode: expected at most 32 ranks together, got 33'],
    [
      ['--inference-shards', 'role=prefill,tp=2'],
      '--inference-shards shards: expected at least one with role=decode, got "none"',
    ],
    [
      ['--inference-shards', 'role=prefill+tp=2+role=decode'],
      '--inference-shards shards[1].role: expected prefill or decode, as other shards have one, got null',
    ],
    [['--inference-shards', 'role=both'], '--inference-shards shards[0].role: expected prefill or decode, got "both"'],
    [
      ['--inference-shards', 'role=prefill+role=decode', '--decode', 'tp=2'],
      '--inference-shards: expected neither --prefill nor --decode beside it, got "role=prefill+role=decode"',
    ],
    [['--decode-stages', '2,2'], '--decode-stages: expected 1 numbers, one a stage (pp), got "2,2"'],
    [
      ['--decode', 'pp=2', '--decode-stages', '2;2'],
      '--decode-stages: expected numbers of layers with commas between, got "2;2"',
    ],
    [
      ['--decode', 'pp=2', '--decode-stages', '2,1'],
      '--decode-stages stages: expected the 4 layers of the model in all, got 3',
    ],
    [
      ['--prefill', 'pp=2', '--prefill-stages', '5,0'],
      '--prefill-stages stages[0]: expected an integer in [0, 4], got 5',
    ],
  ])('%j is refused', (flags, message) => {
    expect(() => parseOptions(flags)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID', message }));
  });

  test('shards make engines in the order of the ranks, several of a side too', () => {
    const one = { tp: 1, pp: 1, ep: 1, dp: 1, expertTp: 1 };
    const { prefill, decode } = parseOptions([
      '--inference-shards',
      'role=decode,tp=2; role = prefill +role=decode,dp=2',
    ]);
    expect(prefill).toEqual([one]);
    expect(decode).toEqual([
      { ...one, tp: 2, expertTp: 2 },
      { ...one, dp: 2 },
    ]);
    expect(parseOptions(['--prefill', 'role=prefill,pp=2+tp=4,expt_tp=2']).prefill).toEqual([
      { ...one, pp: 2 },
      { ...one, tp: 4, expertTp: 2 },
    ]);
    expect(parseOptions([])).toMatchObject({ prefill: [one], decode: [one] });
    const stages = parseOptions(['--prefill', 'pp=2+pp=2,tp=2', '--prefill-stages', '4,0']).prefill;
    expect(stages).toMatchObject([
      { pp: 2, stages: [4, 0] },
      { pp: 2, tp: 2, stages: [4, 0] },
    ]);
  });
});
