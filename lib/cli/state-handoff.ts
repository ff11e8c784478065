#!/usr/bin/env node
/**
 * `state-handoff COMMAND`: the operator's door. Finds the command, hands it its arguments and ends with its status; knows
 * nothing else of it. A command's code is loaded when it is called, so that none pays for another's packages.
 */

import { ownPackage } from '../package-root.js';

/** Writes one line; to standard output unless told otherwise. */
export type WriteLine = (line: string) => void;

/** What a command is given beside its arguments. */
export interface CommandOutput {
  readonly write: WriteLine;
  readonly writeError: WriteLine;
}

/** Resolves with the exit status: 0 done, 1 failed, 2 called wrongly. */
export type Command = (args: readonly string[], output: CommandOutput) => Promise<number>;

interface CommandEntry {
  readonly summary: string;
  readonly load: () => Promise<Command>;
}

/** In the order of the help. */
export const commands: Readonly<Record<string, CommandEntry>> = {
  coordinator: {
    summary: 'the router process of prefill and decode engines',
    load: async () => (await import('./coordinator.js')).coordinator,
  },
  status: {
    summary: 'how a running coordinator is: engines, requests, pins',
    load: async () => (await import('./status.js')).status,
  },
  keys: {
    summary: 'a key pair for a coordinator that encrypts, or for a peer of one',
    load: async () => (await import('./keys.js')).keys,
  },
  doctor: {
    summary: 'what this machine has for handoffs, what it lacks, and what two machines can use with each other',
    load: async () => (await import('./doctor.js')).doctor,
  },
  conformance: {
    summary: "hold the library against a directory of the reference's cases",
    load: async () => {
      const { conformance } = await import('./conformance.js');
      return (args, { write }) => conformance(args, write);
    },
  },
};

function usage(table: Readonly<Record<string, CommandEntry>>): string[] {
  const width = Math.max(...Object.keys(table).map((name) => name.length));
  return [
    'usage: state-handoff COMMAND [arguments]',
    '',
    ...Object.entries(table).map(([name, { summary }]) => `  ${name.padEnd(width)}  ${summary}`),
    '',
    'state-handoff COMMAND --help tells more of one; state-handoff --version says which this is.',
  ];
}

/** @returns the exit status */
export async function runCommand(
  args: readonly string[],
  output: CommandOutput,
  table: Readonly<Record<string, CommandEntry>> = commands,
): Promise<number> {
  const [name, ...rest] = args;
  if (name === '--help' || name === undefined) {
    for (const line of usage(table)) (name === undefined ? output.writeError : output.write)(line);
    return name === undefined ? 2 : 0;
  }
  if (name === '--version') {
    output.write(ownPackage()?.version ?? 'unknown');
    return 0;
  }
  if (!Object.hasOwn(table, name)) {
    output.writeError(
      `state-handoff: expected one of ${Object.keys(table).join(', ')}, got ${JSON.stringify(name.slice(0, 64))}`,
    );
    return 2;
  }
  const command = await (table[name] as CommandEntry).load();
  return command(rest, output);
}

if (require.main === module) {
  if (process.channel !== undefined) {
    // Started by a program of this package (`spawnCoordinator`): lives no longer than that one, and not because of it.
    process.once('disconnect', () => process.exit(1));
    process.channel.unref();
  }
  // Who reads may have seen enough (`state-handoff status … | head -1`); a coordinator goes on.
  for (const stream of [process.stdout, process.stderr])
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EPIPE') throw error;
    });
  const output = {
    write: (line: string) => void process.stdout.write(`${line}\n`),
    writeError: (line: string) => void process.stderr.write(`${line}\n`),
  };
  void runCommand(process.argv.slice(2), output).then((status) => {
    process.exitCode = status;
  });
}
