/**
 * `state-handoff coordinator`: the router process. Its first line on standard output is JSON and says where it listens;
 * its log goes to standard error. SIGTERM and SIGINT drain it. Owns flags and the configuration file, nothing of routing.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import type * as pino from 'pino';
import { Coordinator } from '../control/coordinator/coordinator.js';
import { expectedEngines, type ExpectedEngine } from '../control/coordinator/expected-engines.js';
import type { LogLevel } from '../control/coordinator/interface.js';
import { CoordinatorServer } from '../control/zeromq/coordinator-server.js';
import type { LogWriter } from '../control/zeromq/deliveries.js';
import type { CurveServer } from '../control/zeromq/curve-peers.js';
import { openMetrics, type MetricsEndpoint } from '../control/zeromq/metrics-endpoint.js';
import { argumentError, HandoffError, isHandoffError } from '../errors.js';
import { isRecord } from '../json.js';
import { parseInferenceShards, requireDisaggregated } from '../topology/inference-shards.js';
import { growHeapFreely } from './heap-growth.js';
import { readAllowList, readKeyFile } from './key-file.js';
import type { Command } from './state-handoff.js';

const usage = `usage: state-handoff coordinator [flags]

  --address ADDRESS     tcp://HOST:PORT, ipc://PATH (default tcp://127.0.0.1:5757; a free port when that is taken)
  --aggregated          engines without a role: each computes and generates
  --inference-shards SPEC
                        the engines of the deployment, for example tp=2,role=prefill+tp=1,dp=2,role=decode: says
                        whether they have roles; the first line names each under "engines", and no
                        other may register
  --profile PROFILE     multi-frame (default) or single-frame: how messages are cut into frames
  --behaviour GEN       gen-c (default) or gen-b: how engines are scored
  --policy POLICY       load_balanced (default), longest_prefix or first_prefix_block
  --push-transports NAMES
                        transports whose source sends once decode is ready, with commas (default nccl)
  --key-file FILE       the coordinator's own keys (state-handoff keys); encrypts by CURVE
  --peers FILE          with it, the allow-list: {"NAME": {"role": "engine|client|observer", "key": PUBLIC}, …};
                        SIGHUP has it read again
  --insecure            plain TCP beyond this machine
  --heartbeat-ms N      peers whose machine is gone are found within twice this (default 5000)
  --prompt-mib N        how much of waiting prompts is kept (default 1024); what comes on top is refused
  --metrics-port N      Prometheus metrics at http://127.0.0.1:N/metrics (0: a free port; default: none)
  --drain-ms N          how long SIGTERM waits for living requests (default 30000)
  --log-level LEVEL     debug, info (default), warn, error
  --config FILE         JSON with the same names without dashes, for example {"log-level": "warn"}; flags win`;

const flags = {
  address: { type: 'string' },
  aggregated: { type: 'boolean' },
  'inference-shards': { type: 'string' },
  profile: { type: 'string' },
  behaviour: { type: 'string' },
  policy: { type: 'string' },
  'push-transports': { type: 'string' },
  'key-file': { type: 'string' },
  peers: { type: 'string' },
  insecure: { type: 'boolean' },
  'heartbeat-ms': { type: 'string' },
  'prompt-mib': { type: 'string' },
  'metrics-port': { type: 'string' },
  'drain-ms': { type: 'string' },
  'log-level': { type: 'string' },
  config: { type: 'string' },
  help: { type: 'boolean' },
} as const;

type Settings = Readonly<Record<string, string | boolean | undefined>>;

/** Runs until it was drained or shut down. */
export const coordinator: Command = async (args, { write, writeError }) => {
  let settings: Settings;
  try {
    settings = readSettings(args);
    if (settings['help'] === true) {
      write(usage);
      return 0;
    }
    const drainMs = numberOf(settings, 'drain-ms', 30_000);
    const log = logWriter(choiceOf(settings, 'log-level', ['info', 'debug', 'warn', 'error']));
    const curve = readCurve(settings);
    const { isDisaggregated, engines } = deploymentOf(settings);
    const instance = randomBytes(16).toString('hex');
    const core = new Coordinator({
      instance,
      isDisaggregated,
      behaviour: choiceOf(settings, 'behaviour', ['gen-c', 'gen-b']),
      policy: choiceOf(settings, 'policy', ['load_balanced', 'longest_prefix', 'first_prefix_block']),
      engines,
      pushTransports: textOf(settings, 'push-transports', 'nccl').split(','),
      limits: { promptBytesMax: numberOf(settings, 'prompt-mib', 1_024) * 2 ** 20 },
      // Above every id of the run before, which engines may still hold.
      firstRequestId: Date.now() * 1_000,
    });
    growHeapFreely();
    const server = await CoordinatorServer.start({
      core,
      address: textOf(settings, 'address', 'tcp://127.0.0.1:5757'),
      profile: choiceOf(settings, 'profile', ['multi-frame', 'single-frame']),
      ...(curve === undefined ? {} : { curve }),
      insecure: settings['insecure'] === true,
      heartbeatMs: numberOf(settings, 'heartbeat-ms', 5_000),
      log,
    });
    const metrics = await startMetrics(settings, server, core);
    const onSignal = (): void => void server.drain(drainMs);
    process.once('SIGTERM', onSignal).once('SIGINT', onSignal);
    const onHangUp = (): void => readPeersAgain(settings['peers'] as string, server, log);
    if (curve !== undefined) process.on('SIGHUP', onHangUp);
    const where = {
      address: server.address,
      fell_back: server.fellBack,
      instance,
      metrics: metrics?.url ?? null,
      engines: engines?.map(({ identity }) => identity) ?? null,
    };
    write(JSON.stringify({ event: 'listening', ...where }));
    try {
      await server.ended;
    } finally {
      await metrics?.close();
      process.off('SIGTERM', onSignal).off('SIGINT', onSignal).off('SIGHUP', onHangUp);
    }
    return 0;
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    writeError(`state-handoff coordinator: ${error.message}`);
    return error.code === 'ZEROMQ_UNAVAILABLE' ? 1 : 2;
  }
};

/** `engines`: null where nobody told. */
function deploymentOf(settings: Settings): {
  readonly isDisaggregated: boolean;
  readonly engines: readonly ExpectedEngine[] | null;
} {
  const [spec, isAggregated] = [settings['inference-shards'], settings['aggregated'] === true];
  if (typeof spec !== 'string') return { isDisaggregated: !isAggregated, engines: null };
  try {
    const parsed = parseInferenceShards(spec);
    if (parsed.isDisaggregated) requireDisaggregated(parsed);
    if (parsed.isDisaggregated && isAggregated) throw argumentError('shards', 'no role beside aggregated', spec);
    return { isDisaggregated: parsed.isDisaggregated, engines: expectedEngines(parsed) };
  } catch (cause) {
    if (!isHandoffError(cause)) throw cause;
    throw new HandoffError('OPTION_INVALID', `inference-shards: ${cause.message}`, { cause });
  }
}

/** Both files or neither. */
function readCurve(settings: Settings): CurveServer | undefined {
  const [keyFile, peers] = [settings['key-file'], settings['peers']];
  if (keyFile === undefined && peers === undefined) return undefined;
  if (typeof keyFile !== 'string' || typeof peers !== 'string')
    throw new HandoffError('OPTION_INVALID', 'key-file and peers: expected both or neither, got one');
  return { secretKey: readKeyFile(keyFile).secretKey, peers: readAllowList(peers) };
}

/** What cannot be read or taken changes nothing. */
function readPeersAgain(file: string, server: CoordinatorServer, log: LogWriter): void {
  try {
    const peers = readAllowList(file);
    server.allowPeers(peers);
    log('info', 'allow-list read again', { names: Object.keys(peers).length });
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    log('error', 'allow-list kept', { reason: error.message });
  }
}

async function startMetrics(
  settings: Settings,
  server: CoordinatorServer,
  core: Coordinator,
): Promise<MetricsEndpoint | null> {
  if (settings['metrics-port'] === undefined) return null;
  try {
    return await openMetrics(numberOf(settings, 'metrics-port', 0), server, core);
  } catch (error) {
    await server.close();
    throw error;
  }
}

function readSettings(args: readonly string[]): Settings {
  let values: Settings;
  try {
    ({ values } = parseArgs({ args: [...args], options: flags, strict: true }));
  } catch (cause) {
    throw new HandoffError('OPTION_INVALID', (cause as Error).message, { cause });
  }
  const file = values['config'];
  if (typeof file !== 'string') return values;
  let parsed: unknown;
  try {
    parsed = JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    throw new HandoffError('OPTION_INVALID', `config: ${file} cannot be read because ${(cause as Error).message}`, {
      cause,
    });
  }
  if (!isRecord(parsed)) throw argumentError('config', 'a map', parsed, 'OPTION_INVALID');
  const configured: Record<string, string | boolean> = {};
  for (const [key, value] of Object.entries(parsed)) {
    if (!Object.hasOwn(flags, key) || key === 'config' || key === 'help')
      throw argumentError(`config.${key}`, 'no such key', value, 'OPTION_INVALID');
    const isSwitch = flags[key as keyof typeof flags].type === 'boolean';
    if (isSwitch ? typeof value !== 'boolean' : typeof value !== 'string' && typeof value !== 'number')
      throw argumentError(`config.${key}`, isSwitch ? 'true or false' : 'text or a number', value, 'OPTION_INVALID');
    configured[key] = isSwitch ? (value as boolean) : String(value);
  }
  return { ...configured, ...values };
}

function textOf(settings: Settings, key: string, otherwise: string): string {
  return (settings[key] as string | undefined) ?? otherwise;
}

function choiceOf<T extends string>(settings: Settings, key: string, choices: readonly [T, ...T[]]): T {
  const value = settings[key] ?? choices[0];
  if (choices.includes(value as T)) return value as T;
  throw argumentError(key, choices.join(', '), value, 'OPTION_INVALID');
}

function numberOf(settings: Settings, key: string, otherwise: number): number {
  const value = settings[key];
  if (value === undefined) return otherwise;
  if (typeof value === 'string' && /^\d{1,9}$/.test(value)) return Number(value);
  throw argumentError(key, 'an integer of at least 0', value, 'OPTION_INVALID');
}

/** JSON lines on standard error. */
function logWriter(level: LogLevel): LogWriter {
  let library: typeof pino;
  try {
    // eslint-disable-next-line @typescript-eslint/no-require-imports -- an optional package: only this command needs it
    library = require('pino') as typeof pino;
  } catch (cause) {
    throw new HandoffError(
      'ZEROMQ_UNAVAILABLE',
      `pino does not load because ${(cause as Error).message}; install it beside state-handoff`,
      { cause },
    );
  }
  const logger = library.pino({ level, base: null }, library.destination({ dest: 2, sync: true }));
  return (at, event, fields) => logger[at](fields, event);
}
