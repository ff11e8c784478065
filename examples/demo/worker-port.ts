/**
 * A worker's end of its channel to the router. A worker lives as long as the channel does: when the router ends, however
 * it ends, the worker ends too, and its memory with it. An error that nobody handles is told before the end.
 */
import { parseMessage, type Message } from './messages.js';

type Schema = Parameters<typeof parseMessage>[0];

export interface WorkerPort<Answers extends Schema> {
  send(message: Message<Answers>): void;
  /** Tells the router why this process cannot go on, and ends it. */
  fail(error: unknown): void;
}

/** @param receive - gets each checked command, in order */
export function openPort<Commands extends Schema, Answers extends Schema>(
  name: string,
  commands: Commands,
  _answers: Answers,
  receive: (command: Message<Commands>) => void | Promise<void>,
): WorkerPort<Answers> {
  const fail = (error: unknown): void => {
    const message = error instanceof Error ? error.message : String((error as { message?: unknown } | null)?.message);
    const { code } = (error ?? {}) as { code?: unknown };
    const isConsequence = code === 'PEER_RANK_FAILED' || code === 'RANK_LOST';
    const failure = { kind: 'failure', message: message.slice(0, 4096), isConsequence };
    if (process.connected) process.send!(failure, () => process.exit(1));
    else process.exit(1);
  };
  if (process.send === undefined) {
    process.stderr.write(`${name}: this process is started by the demo; run \`npm run demo\`\n`);
    process.exit(2);
  }
  // Ctrl-C in a terminal reaches every process; the router decides what it means.
  process.on('SIGINT', () => undefined);
  process.on('disconnect', () => process.exit(0));
  process.on('uncaughtException', fail);
  process.on('message', (value) => {
    void (async () => receive(parseMessage(commands, value, name)))().catch(fail);
  });
  return {
    send: (message) => {
      if (process.connected) process.send!(message);
    },
    fail,
  };
}
