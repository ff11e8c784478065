/**
 * `npm run demo:llama`: questions to a real model, prefilled by llama.cpp in one process and answered by llama.cpp in another
 * that evaluates no prompt token. Ends with status 0 only if everything went as expected and every bit is the same.
 */
import { basename } from 'node:path';
import { isHandoffError } from 'state-handoff';
import { EarlyEnd } from '../demo/early-end.js';
import { provideAssets, type Assets } from './assets.js';
import { Columns } from './columns.js';
import { loadModel, type LlamaModel } from './llama.js';
import type { EngineSetting } from './messages.js';
import { help, parseOptions, type LlamaDemoOptions } from './options.js';
import { legendOf, linesOf, reportOf, type Report } from './report.js';
import { ReferenceProcess } from './reference-process.js';
import { LlamaRouter } from './router.js';
import { scenarioOf, type Scenario, type Stage } from './scenario.js';

/** Prompt tokens of one evaluation; prefixes are reused in multiples of it. */
const chunk = 64;

class Demo {
  private readonly router: LlamaRouter;
  private readonly base: EngineSetting;
  private reference: ReferenceProcess | null = null;
  private columns: Columns | null = null;

  constructor(
    private readonly options: LlamaDemoOptions,
    assets: Assets,
    private readonly llama: LlamaModel,
    private readonly scenario: Scenario,
    private readonly say: (line: string) => void,
  ) {
    const { lanes, maxSequenceLength, decodeBlocks, prefillBlocks } = scenario;
    this.base = {
      ...assets,
      dtype: 'float16',
      blockTokens: options.blockTokens,
      blocks: prefillBlocks,
      lanes: 1,
      shared: false,
      maxSequenceLength,
      chunk,
      transport: 'host',
      corrupt: false,
    };
    this.router = new LlamaRouter({
      prefill: this.base,
      decode: { ...this.base, blocks: decodeBlocks, lanes, shared: options.batched, corrupt: options.corrupt },
      coordinator: options.coordinator,
      say,
      onToken: (id, token) => this.stream(id, token),
    });
  }

  async run(): Promise<Report> {
    const { router, scenario } = this;
    await router.open();
    const coordinator = router.coordinator === null ? '' : `coordinator ${router.coordinator}, `;
    this.say(
      `processes: router ${process.pid}, ${coordinator}prefill ${router.processIdOf('prefill')}, decode ${router.processIdOf('decode')}`,
    );
    for (const stage of scenario.stages) await this.runStage(stage);
    const ends = await router.stop();
    const replayed = await this.compare();
    return reportOf(scenario, { seen: router.observations, ends, evaluated: router.evaluated, replayed });
  }

  async end(): Promise<void> {
    await Promise.all([this.router.end(), this.reference?.end()]);
  }

  private async runStage({ title, requests, together }: Stage): Promise<void> {
    this.say('');
    this.say(`-- ${title} --`);
    for (const { id, question, prompt } of requests) this.say(`${id.padEnd(10)} ${prompt.length} tokens: ${question}`);
    this.columns = new Columns(
      requests.map(({ id }) => id),
      process.stdout.columns ?? 132,
      this.say,
    );
    const holds = together && !this.options.coordinator;
    const seen = requests.map((request) => this.router.submit(request, holds));
    if (holds) {
      await this.router.until('all prompts to be computed', () =>
        seen.every(({ prefilled, isSettled }) => prefilled !== null || isSettled),
      );
      this.router.handOver(seen);
    }
    await this.router.until(`the stage "${title}"`, () => {
      for (const each of seen) {
        if (!each.isSettled) continue;
        this.columns?.end(each.request.id);
      }
      return seen.every(({ isOver }) => isOver);
    });
  }

  private stream(id: string, token: number): void {
    const seen = this.router.observations.get(id)!;
    const request = this.scenario.stages.flatMap(({ requests }) => requests).find((each) => each.id === id)!;
    if (!this.llama.endsText(token)) this.columns?.add(id, this.llama.piece(token));
    if (request.abortAfter !== null && seen.tokenTimes.length === request.abortAfter) {
      this.say(`${id.padEnd(10)} is aborted after ${request.abortAfter} tokens`);
      this.router.abort(id);
    }
  }

  /** Everything once more without a handoff. Batched: as decode did it, all requests in one engine. */
  private async compare(): Promise<ReadonlyMap<string, { drawn: number; agreeing: number }> | null> {
    const { observations, operations } = this.router;
    const due = [...observations.values()].filter(({ finished }) => finished !== null);
    const { batched } = this.options;
    this.say('');
    this.say(`-- comparing ${due.length} results with those of one engine without a handoff --`);
    this.reference = new ReferenceProcess({ ...this.base, blocks: 2 });
    for (const seen of due) seen.reference = await this.reference.run(seen.request);
    await this.reference.end();
    if (!batched) return null;
    this.reference = new ReferenceProcess({ ...this.base, blocks: 2, lanes: this.scenario.lanes, shared: true });
    const requests = [...observations.values()].map(({ request }) => request);
    const { requests: counts } = await this.reference.replay(requests, operations);
    await this.reference.end();
    return new Map(counts.map(({ id, drawn, agreeing }) => [id, { drawn, agreeing }]));
  }
}

async function runDemo(options: LlamaDemoOptions, early: EarlyEnd): Promise<number> {
  const say = (line: string): void => void (options.json ? process.stderr : process.stdout).write(`${line}\n`);
  const fetching = new AbortController();
  let demo: Demo | null = null;
  early.onAsked(say, () => {
    fetching.abort();
    return demo === null ? null : demo.end();
  });
  let assets: Assets;
  let llama: LlamaModel;
  let scenario: Scenario;
  try {
    assets = await provideAssets(options.modelFile, say, fetching.signal);
    llama = loadModel(assets.libraryFolder, assets.modelFile);
    scenario = scenarioOf(llama, options);
  } catch (error) {
    if (early.status !== null) return early.status;
    process.stderr.write(`demo:llama: ${(error as Error).message}\n`);
    return 2;
  }
  const { description, layers, heads, headDim } = llama.facts;
  say(`model: ${basename(assets.modelFile)} ${assets.model}`);
  say(
    `${description}, ${layers} layers, ${heads} KV heads of ${headDim} float16; blocks of ${options.blockTokens} tokens, ` +
      `${scenario.decodeBlocks - 1} on decode; prefill chunks of ${chunk} tokens; ` +
      (options.batched ? 'all running requests in one evaluation' : 'one request an evaluation'),
  );
  // Asked to end while the engine was checked or loaded.
  if (early.status !== null) return early.status;
  demo = new Demo(options, assets, llama, scenario, say);
  let report: Report;
  try {
    report = await demo.run();
  } catch (error) {
    await demo.end();
    await early.over();
    say(`demo:llama: failed because ${(error as Error).message}`);
    return 1;
  }
  for (const line of [...linesOf(report, options.batched), '', ...legendOf(options.batched)]) say(line);
  say(verdictOf(report, options.batched));
  if (options.json) process.stdout.write(`${JSON.stringify(report, null, 2)}\n`);
  return report.ok ? 0 : 1;
}

function verdictOf({ rows, ok, identical }: Report, batched: boolean): string {
  const saved = rows.reduce((sum, { savedMs }) => sum + (savedMs ?? 0), 0);
  const drawn = rows.reduce((sum, { agreeing }) => sum + (agreeing?.drawn ?? 0), 0);
  const alike = rows.reduce((sum, { agreeing }) => sum + (agreeing?.agreeing ?? 0), 0);
  const verdict = batched
    ? `drawn alike: ${alike} of ${drawn} tokens`
    : `identical: ${identical === true ? 'yes' : 'no'}`;
  const well = ok ? 'all as expected' : 'not all as expected';
  return `demo:llama: ${rows.length} requests, ${well}, ${(saved / 1000).toFixed(1)} s of prefill saved on decode, ${verdict}`;
}

async function main(): Promise<void> {
  const early = new EarlyEnd();
  try {
    const options = parseOptions(process.argv.slice(2));
    if (options.help) process.stdout.write(help);
    else process.exitCode = await runDemo(options, early);
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    process.stderr.write(`demo:llama: ${error.message}\nSee npm run demo:llama -- --help\n`);
    process.exitCode = 2;
  }
}

void main();
