/**
 * `npm run demo`: hands requests from a prefill process to a decode process and shows that nothing is lost on the way.
 * This process is the router. It ends with status 0 only if every request went as expected and every bit is the same.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { isHandoffError } from 'state-handoff';
import { badInput } from '../engine/bad-input.js';
import { EarlyEnd } from './early-end.js';
import { demoModel } from './engine-setting.js';
import { help, parseOptions, type DemoOptions } from './options.js';
import { planLines, plansOf, type InstancePlan } from './plan-drawing.js';
import { planPicture } from './plan-picture.js';
import { chaosOf, headingOf, legendOf, linesOf, reportOf, verdictOf, type ModelReport } from './report.js';
import { Router } from './router.js';
import { scenarioOf, type Texts } from './scenario.js';

/** Compiled or not, the texts lie in the package's own folder. */
function readTexts(): Texts {
  let root = __dirname;
  while (!existsSync(join(root, 'package.json'))) root = dirname(root);
  const folder = join(root, 'examples', 'prompts');
  return new Map(
    readdirSync(folder)
      .filter((name) => name.endsWith('.txt'))
      .map((name) => [name.slice(0, -'.txt'.length), readFileSync(join(folder, name), 'utf8')]),
  );
}

/** @throws `ARGUMENT_INVALID` when it cannot be written */
function drawPlans(file: string, plans: readonly InstancePlan[]): void {
  try {
    writeFileSync(file, planPicture(plans));
  } catch (error) {
    throw badInput('--svg', `a file that can be written (${(error as NodeJS.ErrnoException).code})`, file);
  }
}

async function runDemo(options: DemoOptions, early: EarlyEnd): Promise<number> {
  const say = (line: string): void => void (options.json ? process.stderr : process.stdout).write(`${line}\n`);
  const scenarios = options.models.map((kind) => scenarioOf(kind, options, readTexts()));
  const plans = scenarios.map((scenario) => plansOf(demoModel({ ...options, ...scenario }), options));
  if (options.svg !== null) drawPlans(options.svg, plans.flat());
  let router: Router | null = null;
  early.onAsked(say, async () => router?.end());
  const reports: ModelReport[] = [];
  try {
    for (const [index, scenario] of scenarios.entries()) {
      say(headingOf(scenario, options));
      for (const line of plans[index]!.flatMap(planLines)) say(line);
      router = new Router(scenario, options, say);
      const report = reportOf(scenario, await router.run());
      reports.push(report);
      for (const line of linesOf(report)) say(line);
      say('');
    }
  } catch (error) {
    await router?.end();
    await early.over();
    say(`demo: failed because ${(error as Error).message}`);
    return 1;
  }
  const verdict = verdictOf(reports);
  for (const line of legendOf(options)) say(line);
  const last = `demo: ${verdict.requests} requests, ${verdict.asExpected} as expected, identical: ${verdict.identical ? 'yes' : 'no'}${chaosOf(reports)}`;
  say(last);
  if (options.json) process.stdout.write(`${JSON.stringify({ ...verdict, models: reports }, null, 2)}\n`);
  return verdict.ok ? 0 : 1;
}

async function main(): Promise<void> {
  const early = new EarlyEnd();
  try {
    const options = parseOptions(process.argv.slice(2));
    if (options.help) process.stdout.write(help);
    else process.exitCode = await runDemo(options, early);
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    process.stderr.write(`demo: ${error.message}\nSee npm run demo -- --help\n`);
    process.exitCode = 2;
  }
}

void main();
