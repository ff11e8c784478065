/**
 * Starts a coordinator as a child process, for rank 0 of an engine or for a demo: waits for its first line, which says
 * where it listens, and ends it. The child lives as long as this process does, however this process ends. Knows no flag of
 * the command but its form.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { argumentError, HandoffError } from '../errors.js';
import { isRecord } from '../json.js';

/** The command's flags without their dashes, as in its configuration file: `{ policy: 'longest_prefix', insecure: true }`. */
export type CoordinatorSettings = Readonly<Record<string, string | number | boolean>>;

/** How a coordinator is started. */
export interface SpawnCoordinatorOptions {
  /** How long it may take until it listens, in milliseconds. Default 30,000. */
  readonly startMs?: number;
  /** How long it may take to end once `close` was called, in milliseconds; then it is killed. Default 35,000. */
  readonly closeMs?: number;
  /** Gets each line of its log (JSON, without the line break). Default: standard error of this process. */
  readonly onLog?: (line: string) => void;
  /** The command's program, for bundles that keep it elsewhere. Default: this package's own. */
  readonly program?: string;
}

const lineMax = 65_536;

/** A coordinator in a process of its own. Made by {@link spawnCoordinator}. */
export class SpawnedCoordinator {
  /** Resolves when the process has gone and its log is complete; `status` is null when a signal ended it. */
  readonly ended: Promise<{ readonly status: number | null; readonly signal: NodeJS.Signals | null }>;
  private isClosing = false;

  /** @internal */
  constructor(
    private readonly child: ChildProcess,
    /** Where it listens, with the port that it got: what engines and clients connect to. */
    readonly address: string,
    /** Whether the wanted port was taken and another one is used. */
    readonly fellBack: boolean,
    /** All that its first line says, `instance` among it. */
    readonly listening: Readonly<Record<string, unknown>>,
    private readonly closeMs: number,
  ) {
    this.ended = new Promise((resolve) => child.once('close', (status, signal) => resolve({ status, signal })));
  }

  /** Of the process. */
  get processId(): number {
    return this.child.pid ?? 0;
  }

  /**
   * Has it drain (its `drain-ms` setting: how long living requests may take to end) and resolves when the process has gone.
   * Idempotent.
   */
  async close(): Promise<void> {
    if (!this.isClosing) {
      this.isClosing = true;
      this.child.kill('SIGTERM');
      const impatience = setTimeout(() => this.child.kill('SIGKILL'), this.closeMs);
      void this.ended.then(() => clearTimeout(impatience));
    }
    await this.ended;
  }
}

/**
 * Starts `state-handoff coordinator` and resolves when it listens. Rank 0 of one engine calls it and tells the others the
 * address. Without `settings.address` it takes a free port of the loopback address; a port that is taken is replaced by a
 * free one, and `fellBack` says so.
 *
 * @throws (rejects) `OPTION_INVALID` with what the command said of its settings; `PEER_UNREACHABLE` when it ended or said
 *   nothing in time
 */
export async function spawnCoordinator(
  settings: CoordinatorSettings = {},
  { startMs = 30_000, closeMs = 35_000, onLog, program }: SpawnCoordinatorOptions = {},
): Promise<SpawnedCoordinator> {
  const command = program ?? join(__dirname, '..', 'cli', 'state-handoff.js');
  const child = fork(command, ['coordinator', ...argumentsOf({ address: 'tcp://127.0.0.1:0', ...settings })], {
    execArgv: [],
    // A terminal's Ctrl-C is for the process that started it, which decides what becomes of it.
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
  // The channel tells it when this process has gone, and is no reason for either to stay.
  child.channel?.unref();
  const log = onLog ?? ((line: string) => void process.stderr.write(`${line}\n`));
  let lastWord = '';
  child.stderr!.setEncoding('utf8');
  let rest = '';
  child.stderr!.on('data', (text: string) => {
    const lines = (rest + text).split('\n');
    rest = lines.pop()!.slice(-lineMax);
    for (const line of lines) {
      lastWord = line;
      log(line);
    }
  });
  try {
    const listening = await firstLine(child, startMs, () => lastWord);
    const { address, fell_back: fellBack } = listening;
    if (listening['event'] !== 'listening' || typeof address !== 'string' || typeof fellBack !== 'boolean')
      throw notStarted(`its first line was ${JSON.stringify(listening).slice(0, 200)}`);
    return new SpawnedCoordinator(child, address, fellBack, listening, closeMs);
  } catch (error) {
    child.kill('SIGKILL');
    throw error;
  }
}

function argumentsOf(settings: CoordinatorSettings): string[] {
  const args: string[] = [];
  for (const [name, value] of Object.entries(settings)) {
    if (!/^[a-z][a-z-]{0,63}$/.test(name))
      throw argumentError(`settings.${name}`, 'a flag of `state-handoff coordinator`', value, 'OPTION_INVALID');
    if (value === true) args.push(`--${name}`);
    else if (typeof value === 'string' || Number.isFinite(value)) args.push(`--${name}=${value}`);
    else if (value !== false)
      throw argumentError(`settings.${name}`, 'text, a number or a boolean', value, 'OPTION_INVALID');
  }
  return args;
}

function firstLine(child: ChildProcess, startMs: number, lastWord: () => string): Promise<Record<string, unknown>> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(notStarted(`it said nothing for ${startMs} ms`)), startMs);
    let text = '';
    child.stdout!.setEncoding('utf8');
    child.stdout!.on('data', (data: string) => {
      if (text.includes('\n')) return;
      text += data;
      if (text.length > lineMax && !text.includes('\n')) return reject(notStarted('its first line has no end'));
      if (text.includes('\n')) {
        clearTimeout(timer);
        try {
          resolve(parsed(text.slice(0, text.indexOf('\n'))));
        } catch (error) {
          reject(error as Error);
        }
      }
    });
    child.once('error', (error) => reject(notStarted(error.message, error)));
    // When both streams have ended, too: what it said last is known.
    child.once('close', (status, signal) => {
      clearTimeout(timer);
      const how = `it ended with ${signal ?? status}${lastWord() === '' ? '' : `: ${lastWord()}`}`;
      const isRefusal = status === 2 && lastWord() !== '';
      reject(isRefusal ? new HandoffError('OPTION_INVALID', lastWord()) : notStarted(how));
    });
  });
}

function parsed(line: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    throw notStarted(`its first line was ${JSON.stringify(line.slice(0, 200))}`);
  }
  if (!isRecord(value)) throw notStarted(`its first line was ${line.slice(0, 200)}`);
  return value;
}

function notStarted(why: string, cause?: unknown): HandoffError {
  return new HandoffError('PEER_UNREACHABLE', `the coordinator did not start because ${why}`, {
    phase: 'setup',
    cause,
  });
}
