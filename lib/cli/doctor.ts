/**
 * `state-handoff doctor`: what this machine has, and with a peer what the two can use with each other. Exit status 0 when
 * there is a transport for it, 1 when there is none, 2 when it is called wrongly.
 */
import { readFileSync } from 'node:fs';
import { argumentError, isHandoffError } from '../errors.js';
import { isRecord, type JsonValue } from '../json.js';
import { parseInstanceCard } from '../compatibility.js';
import { describeMachine, type MachineReport } from './machine-report.js';
import { comparePair, parseMachineReport, type PairReport } from './pair-report.js';
import { fetchReport, parseAddress, portOf, serveReport } from './report-exchange.js';
import type { CommandOutput } from './state-handoff.js';

const usage = `usage: state-handoff doctor [--json] [--peer PEER] [--serve [HOST:]PORT]

  --json             the report as JSON
  --peer PEER        also what this machine and PEER can use with each other; PEER is HOST:PORT of a doctor that
                     serves, a file with what \`doctor --json\` printed there, or a file with an instance's card
  --serve ADDRESS    tell this machine's report to every doctor that asks, until interrupted; default host 127.0.0.1

Exit status: 0 when a transport can be used (with --peer: by both); 1 when none can; 2 for a wrong call.`;

interface Asked {
  readonly json: boolean;
  readonly peer: string | null;
  readonly serve: string | null;
}

/** @returns the exit status */
export async function doctor(args: readonly string[], { write, writeError }: CommandOutput): Promise<number> {
  if (args.includes('--help')) {
    for (const line of usage.split('\n')) write(line);
    return 0;
  }
  try {
    const asked = parseArguments(args);
    const peer = asked.peer === null ? null : await peerOf(asked.peer);
    const address = asked.serve === null ? null : parseAddress(asked.serve, '--serve');
    const machine = await describeMachine();
    const pair = peer === null ? null : comparePair(machine, peer);
    if (asked.json) write(JSON.stringify(pair === null ? machine : { ...machine, pair }, null, 2));
    else for (const line of linesOf(machine, pair)) write(line);
    if (address !== null) {
      const server = await serveReport(machine as unknown as JsonValue, address);
      write(`telling this report on ${address.host}:${portOf(server)} until interrupted`);
      await new Promise<void>((resolve) => {
        const stop = (): void => void server.close(() => resolve());
        process.once('SIGINT', stop);
        process.once('SIGTERM', stop);
      });
    }
    return (pair ?? machine.transports).some(({ usable }) => usable) ? 0 : 1;
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    writeError(`state-handoff doctor: ${error.message}`);
    return error.code === 'ARGUMENT_INVALID' ? 2 : 1;
  }
}

function parseArguments(args: readonly string[]): Asked {
  let json = false;
  const values: Record<'--peer' | '--serve', string | null> = { '--peer': null, '--serve': null };
  for (let index = 0; index < args.length; index += 1) {
    const flag = args[index] as string;
    if (flag === '--json') json = true;
    else if (flag === '--peer' || flag === '--serve') {
      const value = args[(index += 1)];
      if (value === undefined || value.startsWith('--')) throw argumentError(flag, 'a value', value ?? 'nothing');
      if (values[flag] !== null) throw argumentError(flag, 'at most one value', value);
      values[flag] = value;
    } else throw argumentError('flag', 'one of --json, --peer, --serve, --help', flag);
  }
  return { json, peer: values['--peer'], serve: values['--serve'] };
}

/** A file when there is one by that name, else an address. */
async function peerOf(text: string): Promise<MachineReport> {
  let content: string;
  try {
    content = readFileSync(text, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'ENOENT' || /[/\\]|\.json$/.test(text)) {
      throw argumentError('--peer', `a file that can be read (${code ?? 'unknown error'})`, text);
    }
    return parseMachineReport(await fetchReport(parseAddress(text, '--peer')));
  }
  let value: JsonValue;
  try {
    value = JSON.parse(content) as JsonValue;
  } catch {
    throw argumentError('--peer', 'a file of JSON', text);
  }
  return isRecord(value) && Object.hasOwn(value, 'protocolVersion') ? reportOfCard(value) : parseMachineReport(value);
}

/** A card tells which transports its instance opened, and nothing of the machine. */
function reportOfCard(value: JsonValue): MachineReport {
  const card = parseInstanceCard(value);
  return {
    format: 1,
    sdk: 'unknown',
    node: 'unknown',
    platform: 'unknown',
    machine: null,
    transports: card.transports.map((name) => ({
      ...{ name, usable: true, found: [], version: null, lacks: null, fix: null, notes: [] },
    })),
  };
}

function linesOf(machine: MachineReport, pair: readonly PairReport[] | null): string[] {
  const lines = [`state-handoff ${machine.sdk}, Node ${machine.node}, ${machine.platform}`, '', 'this machine:'];
  for (const { name, usable, found, version, lacks, fix, notes } of machine.transports) {
    lines.push(
      `  ${name.padEnd(9)} ${usable ? 'can be used' : 'cannot be used'}${version === null ? '' : `, ${version}`}`,
    );
    for (const path of found) lines.push(`            found: ${path}`);
    if (lacks !== null) lines.push(`            lacks: ${lacks}`);
    if (fix !== null) lines.push(`            fix:   ${fix}`);
    for (const note of notes) lines.push(`            note:  ${note}`);
  }
  if (pair === null) return lines;
  lines.push('', 'with the peer:');
  for (const { name, usable, why, fix } of pair) {
    lines.push(`  ${name.padEnd(9)} ${usable ? 'can be used' : `cannot be used: ${why}`}`);
    if (fix !== null) lines.push(`            fix:   ${fix}`);
  }
  const chosen = pair.find(({ usable }) => usable);
  lines.push(chosen === undefined ? "  'auto' finds no transport" : `  'auto' takes ${chosen.name}`);
  return lines;
}
