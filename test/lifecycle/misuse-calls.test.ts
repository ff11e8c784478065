/**
 * Goal: every public call of `StateHandoff` in every state has one defined answer: its effect, or an error code, and then
 * nothing has changed. Method: one table of calls, made in each of `situations`; a call that is missing from the table
 * fails the test that reads the class.
 */
import { join } from 'node:path';
import ts from 'typescript';
import type { Finished } from '../../lib/engine-context.js';
import type { HandoffError } from '../../lib/errors.js';
import type { StateHandoff } from '../../lib/state-handoff.js';
import { InProcessRankGroup } from '../../lib/control/in-process-rank-group.js';
import { nameOf, situations, stage, type Situation, type Staged } from '../support/misuse-situations.js';

/** What a call answers where nothing forbids it: what it returns, or the code of what it throws or rejects with. */
type Answer = { readonly value: unknown } | { readonly code: string };

interface Call {
  readonly invoke: (sdk: StateHandoff, staged: Staged) => unknown;
  /** What must be there: nothing, a setup, or a setup with that role. */
  readonly needs: 'nothing' | 'setup' | 'prefill' | 'decode';
  /** Whether only rank 0 may: `group`, when the log is carried by the group; `always`, whatever the carrier. */
  readonly leader?: 'group' | 'always';
  /** Whether the engine's own broadcast must carry the log. */
  readonly hostCarrier?: true;
  readonly answer: (situation: Situation) => Answer;
}

const value = (returned: unknown) => (): Answer => ({ value: returned });
const code = (thrown: string) => (): Answer => ({ code: thrown });
/** A value that only has to be there. */
const something = value(expect.anything());
const onWorkerOfGroup =
  (there: unknown, elsewhere: unknown) =>
  (situation: Situation): Answer => ({
    value: situation.carrier === 'group' && situation.rank > 0 ? there : elsewhere,
  });
const ref = { instance: 'prefill', incarnation: 'first', handoffId: 77, epoch: 0 };
const result: Omit<Finished, 'requestId' | 'attemptId'> = {
  generatedTokens: [],
  generatedLogProbs: null,
  finishReason: 'stop',
  cachedTokens: 0,
};

const calls: Readonly<Record<string, Call>> = {
  setupKvTransfer: {
    invoke: (sdk, { rank }) => sdk.setupKvTransfer('prefill', rank.transport),
    needs: 'nothing',
    answer: ({ life }) =>
      life === 'new' ? { value: undefined } : { code: life === 'closed' ? 'CLOSED' : 'ALREADY_SET_UP' },
  },
  setupHandoffCompletionTracking: {
    invoke: (sdk) => sdk.setupHandoffCompletionTracking(InProcessRankGroup.create(1)[0]!),
    needs: 'nothing',
    answer: ({ life }) => (life === 'new' ? { value: undefined } : { code: 'ALREADY_SET_UP' }),
  },
  tryPinPermit: {
    invoke: (sdk) => sdk.tryPinPermit('r', 1),
    needs: 'prefill',
    answer: ({ life }) => ({ value: life === 'running' }),
  },
  dropPinPermit: { invoke: (sdk) => sdk.dropPinPermit('r'), needs: 'prefill', answer: value(false) },
  prepareHandoffMetadataBatch: {
    invoke: (sdk) => sdk.prepareHandoffMetadataBatch([]),
    needs: 'prefill',
    answer: value({ byRequest: new Map() }),
  },
  captureHandoffMeta: {
    invoke: (sdk) => sdk.captureHandoffMeta('r', { byRequest: new Map() }),
    needs: 'prefill',
    answer: code('UNKNOWN_REQUEST'),
  },
  pushHandoffKv: { invoke: (sdk) => sdk.pushHandoffKv('r', []), needs: 'prefill', answer: value(undefined) },
  blocksReused: {
    invoke: (sdk) => sdk.blocksReused(new Int32Array(0)),
    needs: 'nothing',
    answer: code('ARGUMENT_INVALID'),
  },
  setGenerationEpoch: { invoke: (sdk) => sdk.setGenerationEpoch(3), needs: 'nothing', answer: value(undefined) },
  pollPendingKvPushes: { invoke: (sdk) => sdk.pollPendingKvPushes(), needs: 'prefill', answer: value(0) },
  pendingKvPushCount: { invoke: (sdk) => sdk.pendingKvPushCount, needs: 'nothing', answer: value(0) },
  releaseHandoffBlocks: {
    invoke: (sdk) => sdk.releaseHandoffBlocks('r'),
    needs: 'prefill',
    leader: 'group',
    answer: value(false),
  },
  claimHandoff: {
    invoke: (sdk) => sdk.claimHandoff(ref, 'owner'),
    needs: 'prefill',
    leader: 'always',
    answer: value(false),
  },
  releaseOwner: { invoke: (sdk) => sdk.releaseOwner('owner'), needs: 'prefill', leader: 'always', answer: value(0) },
  attestInstanceDead: {
    invoke: (sdk) => sdk.attestInstanceDead('other', 'first'),
    needs: 'setup',
    leader: 'always',
    answer: value(undefined),
  },
  addRequestWithKvHandoff: {
    invoke: (sdk) => sdk.addRequestWithKvHandoff('r', [1], {}, {}, [0]),
    needs: 'decode',
    leader: 'group',
    answer: ({ life }) => ({ code: life === 'draining' ? 'CLOSED' : 'TICKET_INVALID' }),
  },
  rejectKvHandoff: {
    invoke: (sdk) => sdk.rejectKvHandoff('r', {}),
    needs: 'decode',
    leader: 'always',
    answer: value(undefined),
  },
  abortKvHandoff: { invoke: (sdk) => sdk.abortKvHandoff('r'), needs: 'decode', leader: 'always', answer: value(false) },
  pollPendingKvImports: { invoke: (sdk) => sdk.pollPendingKvImports(), needs: 'decode', answer: value(0) },
  beginStep: { invoke: (sdk) => sdk.beginStep(), needs: 'setup', answer: onWorkerOfGroup(false, true) },
  stepReady: { invoke: (sdk) => sdk.stepReady, needs: 'setup', answer: onWorkerOfGroup(false, true) },
  admitPendingKvImports: {
    invoke: (sdk) => sdk.admitPendingKvImports(),
    needs: 'decode',
    answer: onWorkerOfGroup(-1, 0),
  },
  scheduleWaitingRequests: {
    invoke: (sdk) => sdk.scheduleWaitingRequests(0),
    needs: 'decode',
    answer: onWorkerOfGroup(-1, 0),
  },
  finishRequest: { invoke: (sdk) => sdk.finishRequest(9, result), needs: 'decode', answer: code('UNKNOWN_REQUEST') },
  failRequest: {
    invoke: (sdk) => sdk.failRequest(9, new Error('x')),
    needs: 'decode',
    answer: code('UNKNOWN_REQUEST'),
  },
  pendingKvImportCount: { invoke: (sdk) => sdk.pendingKvImportCount, needs: 'nothing', answer: value(0) },
  hasAdmittableKvImport: { invoke: (sdk) => sdk.hasAdmittableKvImport, needs: 'nothing', answer: value(false) },
  drainHandoffCompletionNotifications: {
    invoke: (sdk) => sdk.drainHandoffCompletionNotifications(),
    needs: 'setup',
    leader: 'always',
    hostCarrier: true,
    answer: value([]),
  },
  recordHandoffCompletionNotification: {
    invoke: (sdk) => sdk.recordHandoffCompletionNotification({ kind: 'attest-dead', instance: 'a', incarnation: 'b' }),
    needs: 'setup',
    hostCarrier: true,
    answer: value(undefined),
  },
  resetPendingKvImports: {
    invoke: (sdk) => sdk.resetPendingKvImports({ deadlineMs: 0 }),
    needs: 'setup',
    answer: value(undefined),
  },
  drain: { invoke: (sdk) => sdk.drain(), needs: 'setup', answer: value(undefined) },
  close: { invoke: (sdk) => sdk.close(), needs: 'nothing', answer: value(undefined) },
  inspect: { invoke: (sdk) => sdk.inspect(), needs: 'setup', answer: something },
  load: { invoke: (sdk) => sdk.load(), needs: 'setup', answer: something },
  metrics: { invoke: (sdk) => sdk.metrics(), needs: 'setup', answer: something },
  describeInstance: { invoke: (sdk) => sdk.describeInstance(), needs: 'setup', answer: something },
  instanceMeta: {
    invoke: (sdk) => sdk.instanceMeta.length,
    needs: 'setup',
    answer: ({ carrier }) => ({ value: carrier === 'local' ? 1 : 2 }),
  },
  carry: { invoke: (sdk) => sdk.carry({ a: 1 }), needs: 'setup', leader: 'always', answer: value(undefined) },
  carrier: {
    invoke: (sdk) => sdk.carrier,
    needs: 'setup',
    answer: ({ carrier }) => ({ value: carrier }),
  },
  rank: { invoke: (sdk) => sdk.rank, needs: 'setup', answer: ({ rank }) => ({ value: rank }) },
  identity: {
    invoke: (sdk) => sdk.identity,
    needs: 'nothing',
    answer: value({ instance: expect.any(String), incarnation: 'first' }),
  },
};

/** The one answer of a call in a situation: the first thing that is wrong, or its own answer. */
function expected(call: Call, situation: Situation): Answer {
  const { life, role, rank, carrier } = situation;
  if (call.needs !== 'nothing') {
    if (life === 'closed') return { code: 'CLOSED' };
    if (life === 'new' || life === 'settingUp') return { code: 'NOT_SET_UP' };
    if (call.needs !== 'setup' && call.needs !== role) return { code: 'WRONG_ROLE' };
    if (rank > 0 && (call.leader === 'always' || (call.leader === 'group' && carrier === 'group')))
      return { code: 'NOT_RANK_ZERO' };
    if (call.hostCarrier === true && carrier !== 'host') return { code: 'LOG_CARRIER_MIXED' };
  }
  return call.answer(situation);
}

/** What really happens, and whether an error came synchronously. */
async function answerOf(call: Call, staged: Staged): Promise<{ answer: Answer; threw: boolean; isPromise: boolean }> {
  let returned: unknown;
  try {
    returned = call.invoke(staged.rank.sdk, staged);
  } catch (error) {
    return { answer: { code: (error as HandoffError).code }, threw: true, isPromise: false };
  }
  const isPromise = returned instanceof Promise;
  try {
    return { answer: { value: await returned }, threw: false, isPromise };
  } catch (error) {
    return { answer: { code: (error as HandoffError).code }, threw: false, isPromise };
  }
}

const asyncCalls = ['setupKvTransfer', 'resetPendingKvImports', 'drain', 'close'];

describe.each(situations.map((situation) => [nameOf(situation), situation] as const))('%s', (_name, situation) => {
  test.each(Object.entries(calls))('%s', async (name, call) => {
    const staged = await stage(situation);
    const { engine, sdk } = staged.rank;
    const before = [engine.blocks.digest(), engine.blocks.freeCount];
    const wanted = expected(call, situation);
    const { answer, threw, isPromise } = await answerOf(call, staged);
    expect(answer).toEqual(wanted);
    // Only what is asynchronous by nature rejects; programming errors come at once.
    if ('code' in wanted) expect(threw).toBe(!asyncCalls.includes(name) && !isPromise);
    expect([engine.blocks.digest(), engine.blocks.freeCount]).toEqual(before);
    await staged.finish();
    // A call that was refused leaves an object that can still be closed.
    await sdk.close();
    expect([sdk.pendingKvImportCount, sdk.pendingKvPushCount]).toEqual([0, 0]);
  });
});

test('the table has every public member of the class', () => {
  const path = join(__dirname, '../../lib/state-handoff.ts');
  const source = ts.createSourceFile(path, ts.sys.readFile(path)!, ts.ScriptTarget.ES2022, true);
  const found = new Set<string>();
  const hidden = new Set([ts.SyntaxKind.PrivateKeyword, ts.SyntaxKind.ProtectedKeyword]);
  const visit = (node: ts.Node): void => {
    if (ts.isClassDeclaration(node) && node.name?.text === 'StateHandoff') {
      for (const member of node.members) {
        const isHidden = ts.canHaveModifiers(member) && ts.getModifiers(member)?.some(({ kind }) => hidden.has(kind));
        if (isHidden !== true && member.name !== undefined && !ts.isPrivateIdentifier(member.name))
          found.add(member.name.getText(source));
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  expect(found.size).toBeGreaterThan(30);
  expect([...found].sort()).toEqual(Object.keys(calls).sort());
});
