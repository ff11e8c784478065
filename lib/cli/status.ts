/** `state-handoff status ADDRESS`: asks a running coordinator how it is, and prints that for people or as JSON. */
import { parseArgs } from 'node:util';
import { decodeMessage, encodeMessage } from '../control/protocol/codec.js';
import type { ToCoordinator } from '../control/protocol/messages.js';
import { Float64, type Wire, type WireMap } from '../control/protocol/wire-value.js';
import { parseEndpoint } from '../control/zeromq/address.js';
import type { CurvePeer } from '../control/zeromq/curve-peers.js';
import { curveIdentity } from '../control/zeromq/socket-identity.js';
import { loadZeromq } from '../control/zeromq/load-zeromq.js';
import { isHandoffError } from '../errors.js';
import { readCurvePeer } from './key-file.js';
import type { Command, WriteLine } from './state-handoff.js';

const usage = `usage: state-handoff status ADDRESS [--json] [--timeout-ms N] [--key-file FILE --server-key KEY]

  ADDRESS is what the coordinator printed when it started, for example tcp://127.0.0.1:5757
  --key-file and --server-key: for one that encrypts, your own keys (state-handoff keys) and its public key`;

const flags = {
  json: { type: 'boolean' },
  'timeout-ms': { type: 'string' },
  'key-file': { type: 'string' },
  'server-key': { type: 'string' },
  help: { type: 'boolean' },
} as const;

export const status: Command = async (args, { write, writeError }) => {
  let values, positionals;
  try {
    ({ values, positionals } = parseArgs({
      args: [...args],
      options: flags,
      allowPositionals: true,
    }));
  } catch (error) {
    writeError(`state-handoff status: ${(error as Error).message}`);
    return 2;
  }
  if (values.help === true) {
    write(usage);
    return 0;
  }
  const [address, ...more] = positionals;
  const timeoutMs = Number(values['timeout-ms'] ?? 5_000);
  if (address === undefined || more.length > 0 || !(timeoutMs >= 1)) {
    writeError(usage);
    return 2;
  }
  try {
    parseEndpoint(address, 'ADDRESS');
    const curve = readCurvePeer(values['key-file'], values['server-key']);
    const answer = await ask(address, timeoutMs, curve);
    if (answer === null) {
      const why =
        curve === undefined
          ? 'one that encrypts answers only with --key-file and --server-key'
          : `--server-key must be its public key, and ${curve.name} on its list as client or observer; its log says whom it refuses`;
      writeError(`state-handoff status: no answer from ${address} within ${timeoutMs} ms; ${why}`);
      return 1;
    }
    if (values.json === true) write(JSON.stringify(plain(answer)));
    else print(answer, write);
    return 0;
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    writeError(`state-handoff status: ${error.message}`);
    return error.code === 'OPTION_INVALID' ? 2 : 1;
  }
};

async function ask(address: string, timeoutMs: number, curve: CurvePeer | undefined): Promise<WireMap | null> {
  const { Dealer } = loadZeromq();
  const identity = curve === undefined ? {} : curveIdentity(curve, 'key-file');
  const socket = new Dealer({ ...identity, linger: 0, receiveTimeout: timeoutMs, sendTimeout: timeoutMs });
  const say = async (message: ToCoordinator): Promise<void> => {
    await socket.send(encodeMessage('multi-frame', 'coordinator', message) as Uint8Array[]);
  };
  try {
    socket.connect(address);
    // Who only asks is no client: nothing of it stays.
    await say({ header: 'STATUS' });
    for (;;) {
      const heard = decodeMessage('multi-frame', 'client', await socket.receive());
      if (heard.header === 'STATUS_REPLY') return heard.status;
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return null;
    throw error;
  } finally {
    socket.close();
  }
}

function print(answer: WireMap, write: WriteLine): void {
  const text = (map: WireMap, key: string): string => shown(map.get(key) ?? null);
  const requests = mapOf(answer.get('requests'));
  const draining = answer.get('draining') === true ? ', draining: no new request is taken' : '';
  write(`coordinator ${text(answer, 'instance')} at ${text(answer, 'address')}: ${text(answer, 'state')}${draining}`);
  write(
    `clients ${text(answer, 'clients')}, requests ${[...requests].map(([key, value]) => `${key} ${shown(value)}`).join(', ')}`,
  );
  for (const entry of listOf(answer.get('engines'))) {
    const engine = mapOf(entry);
    const silent = engine.get('silent') === true ? `, STOPPED: not heard for ${text(engine, 'silent_ms')} ms` : '';
    write(
      `engine ${text(engine, 'peer')}: ${text(engine, 'role')}, ${text(engine, 'active')} active, ${text(engine, 'queued')} queued of ${text(engine, 'request_capacity')}, slots ${text(engine, 'slots_used')} of ${text(engine, 'slot_capacity')}${silent}`,
    );
    const load = mapOf(engine.get('load'));
    if (load.has('blocks_usable'))
      write(
        `  blocks ${text(load, 'blocks_free')} free, ${text(load, 'blocks_evictable')} evictable, ${text(load, 'blocks_pinned')} pinned, ${text(load, 'blocks_quarantined')} quarantined of ${text(load, 'blocks_usable')}; ${text(load, 'imports_quarantined')} imports in quarantine`,
      );
  }
  const missing = listOf(answer.get('missing'));
  if (missing.length > 0) write(`not registered: ${missing.map(shown).join(', ')}`);
  for (const entry of listOf(answer.get('pins'))) {
    const pin = mapOf(entry);
    write(
      `pin ${text(pin, 'request_id')} on ${text(pin, 'prefill')}: ${text(pin, 'state')}, decode ${text(pin, 'decode')}, owner ${text(pin, 'owner')}, ${text(pin, 'age_ms')} ms`,
    );
  }
}

function mapOf(value: Wire | undefined): WireMap {
  return value instanceof Map ? (value as WireMap) : new Map();
}

function listOf(value: Wire | undefined): readonly Wire[] {
  return Array.isArray(value) ? (value as readonly Wire[]) : [];
}

function shown(value: Wire): string {
  return typeof value === 'string' ? value : JSON.stringify(plain(value));
}

/** As JSON: integers beyond 2^53 as text, bytes as hexadecimal text. */
function plain(value: Wire): unknown {
  if (value instanceof Float64) return Math.round(value.value * 1e3) / 1e3;
  if (typeof value === 'bigint') return String(value);
  if (value instanceof Uint8Array) return Buffer.from(value).toString('hex');
  if (Array.isArray(value)) return (value as readonly Wire[]).map(plain);
  if (value instanceof Map)
    return Object.fromEntries([...(value as WireMap)].map(([key, inner]) => [key, plain(inner)]));
  return value;
}
