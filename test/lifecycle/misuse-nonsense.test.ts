/**
 * Goal: whatever a public method of `StateHandoff` is given, it answers with a `HandoffError` or does what it can, and the
 * next handoff goes through. Method: right arguments with one value after another replaced, each on an engine of its own.
 */
import { HandoffError } from '../../lib/errors.js';
import { StateHandoff } from '../../lib/state-handoff.js';
import { spoiled, type Values } from '../support/nonsense.js';
import {
  add,
  compute,
  finishedOf,
  handOff,
  newRanks,
  pair,
  promptOf,
  settle,
  until,
  world,
  type Rank,
} from '../support/misuse-world.js';

interface Staged {
  readonly prefill: Rank;
  readonly decode: Rank;
}

/** Right arguments of a method on that role's engine, and whether the engine can serve afterwards. */
interface Row {
  readonly role: 'prefill' | 'decode';
  readonly values: (staged: Staged) => Values;
  readonly ends?: true;
}

const ref = (): Values => [{ instance: 'prefill', incarnation: 'first', handoffId: 1, epoch: 0 }];
const ticketArguments = ({ prefill }: Staged): Values => {
  const { ticket, prompt } = handOff(prefill, 'r');
  return ['r', prompt, { num_tokens_to_generate: 3 }, { ...ticket.kvMeta }, [...ticket.blockIds], { cacheSalt: 's' }];
};
const result = { generatedTokens: [], generatedLogProbs: null, finishReason: 'stop', cachedTokens: 0, extra: {} };

const rows: Readonly<Record<string, Row>> = {
  tryPinPermit: { role: 'prefill', values: () => ['r', 1] },
  dropPinPermit: { role: 'prefill', values: () => ['r'] },
  prepareHandoffMetadataBatch: {
    role: 'prefill',
    values: ({ prefill }) => [[{ ...finishedOf(compute(prefill, 'r', promptOf(10))) }]],
  },
  captureHandoffMeta: {
    role: 'prefill',
    values: ({ prefill }) => [
      { requestId: 'r' },
      prefill.sdk.prepareHandoffMetadataBatch([finishedOf(compute(prefill, 'r', promptOf(10)))]),
      { ready: { isComplete: () => true } },
    ],
  },
  pushHandoffKv: {
    role: 'prefill',
    values: ({ prefill }) => {
      handOff(prefill, 'r');
      return ['r', [{}], 0, { instance: 'decode', incarnation: 'first' }];
    },
  },
  blocksReused: { role: 'prefill', values: () => [Int32Array.of(1), Int32Array.of()] },
  releaseHandoffBlocks: { role: 'prefill', values: ref },
  claimHandoff: { role: 'prefill', values: () => [...ref(), 'an owner'] },
  releaseOwner: { role: 'prefill', values: () => ['an owner'] },
  attestInstanceDead: { role: 'prefill', values: () => ['other', 'first'] },
  addRequestWithKvHandoff: { role: 'decode', values: ticketArguments },
  rejectKvHandoff: {
    role: 'decode',
    values: (staged) => ticketArguments(staged).filter((_, at) => at === 0 || at === 3),
  },
  abortKvHandoff: { role: 'decode', values: () => ['r'] },
  scheduleWaitingRequests: { role: 'decode', values: () => [0] },
  finishRequest: { role: 'decode', values: () => [1, result] },
  failRequest: { role: 'decode', values: () => [1, new Error('why')] },
  recordHandoffCompletionNotification: {
    role: 'decode',
    values: () => [{ kind: 'abort', attemptId: 1, reason: 'caller' }],
  },
  carry: { role: 'decode', values: () => [{ a: 1, b: [2], c: { d: 'e' } }] },
  setGenerationEpoch: { role: 'decode', values: () => [0], ends: true },
  resetPendingKvImports: { role: 'decode', values: () => [{ deadlineMs: 5 }] },
  drain: { role: 'decode', values: () => [{ deadlineMs: 5 }], ends: true },
  close: { role: 'decode', values: () => [{ force: false }], ends: true },
};
/** Called on a new engine below. */
const setup = ['constructor', 'setupKvTransfer', 'setupHandoffCompletionTracking'];

async function errorOf(call: () => unknown): Promise<unknown> {
  try {
    const returned = call();
    if (!(returned instanceof Promise)) return null;
    return await Promise.race([
      returned.then(
        () => null,
        (error: unknown) => error,
      ),
      settle().then(settle),
    ]);
  } catch (error) {
    return error;
  }
}

const isNamed = (error: unknown): boolean => error === null || error === undefined || error instanceof HandoffError;

test('every method that takes arguments has a row', () => {
  const descriptors = Object.entries(Object.getOwnPropertyDescriptors(StateHandoff.prototype));
  const methods = descriptors.filter(([, { value }]) => typeof value === 'function').map(([name]) => name);
  const takesNone = methods.filter((name) => /^(async )?\w+\(\)/.test(String((StateHandoff.prototype as never)[name])));
  const isPrivate = ['requireRunning', 'requireRole', 'isClosed', 'requireQuiet', 'openWork', 'pollOnce', 'abortOn'];
  const left = methods.filter((name) => ![...takesNone, ...isPrivate, ...setup, ...Object.keys(rows)].includes(name));
  expect(left).toEqual([]);
});

describe.each(Object.entries(rows))('%s', (name, { role, values, ends }) => {
  test('given nonsense, names it, and the next handoff goes through', async () => {
    const bare: string[] = [];
    const probe = await pair(world());
    const count = [...spoiled(values(probe), '')].length;
    for (let at = 0; at < count; at += 1) {
      const staged = await pair(world());
      const [path, bad] = [...spoiled(values(staged), 'arguments')][at]!;
      if (!Array.isArray(bad)) continue;
      const { sdk } = staged[role];
      const error = await errorOf(() =>
        (sdk as unknown as Record<string, (...given: unknown[]) => unknown>)[name]!(...(bad as unknown[])),
      );
      if (!isNamed(error)) bare.push(`${path}: ${String(error)}`);
      if (ends === true) continue;
      const next = add(staged.decode, handOff(staged.prefill, 'next', promptOf(6, 1)), {}, 'next');
      await until(next, staged.decode);
      if (next.error !== null) bare.push(`${path}, the next one: ${String(next.error)}`);
    }
    expect(bare).toEqual([]);
  });
});

test('setting up with nonsense names it, and the next attempt works', async () => {
  const bare: string[] = [];
  const rightly = (rank: Rank): Values => [
    'decode',
    rank.transport,
    { carrier: undefined, balance: 'first', group: null },
  ];
  const [probe] = newRanks({ role: 'decode', network: world() });
  for (let at = 0; at < [...spoiled(rightly(probe!), '')].length; at += 1) {
    const [rank] = newRanks({ role: 'decode', network: world() });
    const [path, bad] = [...spoiled(rightly(rank!), 'arguments')][at]!;
    if (!Array.isArray(bad)) continue;
    const [role, backend, options] = bad as Parameters<StateHandoff['setupKvTransfer']>;
    const error = await rank!.sdk.setupKvTransfer(role, backend, options).then(
      () => null,
      (reason: unknown) => reason,
    );
    if (!isNamed(error)) bare.push(`${path}: ${String(error)}`);
    if (error !== null) await rank!.sdk.setupKvTransfer('decode', rank!.transport);
    await rank!.sdk.close({ force: true });
  }
  const { engine, sdk } = newRanks({ role: 'decode', network: world() })[0]!;
  const made = [
    engine,
    { instance: 'i', incarnation: 'j', epoch: 0, deadlines: { queueMs: 1 }, limits: { maxDeferred: 1 } },
  ];
  for (const [path, bad] of spoiled(made, 'arguments')) {
    if (!Array.isArray(bad)) continue;
    const error = await errorOf(() => new StateHandoff(...(bad as ConstructorParameters<typeof StateHandoff>)));
    if (!isNamed(error)) bare.push(`new StateHandoff, ${path}: ${String(error)}`);
  }
  for (const [path, bad] of spoiled([null], 'arguments')) {
    if (!Array.isArray(bad)) continue;
    const error = await errorOf(() => sdk.setupHandoffCompletionTracking((bad as never[])[0]!));
    if (!isNamed(error)) bare.push(`setupHandoffCompletionTracking, ${path}: ${String(error)}`);
  }
  expect(bare).toEqual([]);
});
