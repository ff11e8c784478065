/** Everything that exists once an engine is set up, wired together. */
import type { LogRecord, RankGroup } from '../control/rank-group.js';
import type { ImportIdentity } from '../decode/decode-dependencies.js';
import { DecodeSide } from '../decode/decode-side.js';
import { parseKvMeta } from '../decode/handoff-parser.js';
import type { PendingImport } from '../decode/pending-import.js';
import { Transfers } from '../decode/transfers.js';
import type { EngineContext, RequestId } from '../engine-context.js';
import type { HandoffRef } from '../events.js';
import { asyncTokensMin, computeBlockHashes, computeBlockHashesAsync } from '../memory/block-hash.js';
import { modelBytes } from '../memory/model-bytes.js';
import { engineCallError } from '../engine-call-error.js';
import type { Notices } from '../notices.js';
import { Metrics } from '../observe/metrics.js';
import type { Observed } from '../observe/inspection.js';
import type { CompiledOptions } from '../options.js';
import { PrefillSide } from '../prefill/prefill-side.js';
import { ScheduleLog, type LogCarrier } from '../schedule-log.js';
import { PeerDescriptorCache } from '../transfer/peer-descriptor-cache.js';
import { parseInstanceMeta } from '../transfer/peer-description.js';
import { pullPairs, pushDuties, type Balance } from '../transfer/peer-pairing.js';
import { PeerPlans } from '../transfer/peer-plans.js';
import type { Transport } from '../transfer/transport.js';
import { checkTicketSeal } from '../ticket-seal.js';
import { TransportChoice } from '../transfer/transport-choice.js';
import type { BuiltTransports } from './build-transports.js';
import type { Role } from './check-context.js';
import { ssmLayers, type InstanceDescription } from './instance-description.js';
import { startImport, startPush, transportTraits, type StartDependencies } from './start-transfers.js';

export interface Running extends Observed {
  readonly role: Role;
  readonly group: RankGroup | null;
  readonly transports: readonly Transport[];
  readonly plans: PeerPlans;
  readonly description: InstanceDescription;
  readonly metrics: Metrics;
}

export interface RunningInput {
  readonly role: Role;
  readonly context: EngineContext;
  readonly options: CompiledOptions;
  readonly built: BuiltTransports;
  readonly description: InstanceDescription;
  readonly group: RankGroup | null;
  readonly carrier: LogCarrier;
  readonly notices: Notices;
  /** Decode: which of several replicas of a source shard is read. */
  readonly balance: Balance;
}

type Shared = StartDependencies &
  Pick<Running, 'context' | 'options' | 'log' | 'group' | 'metrics'> & { readonly transfers: Transfers };

export function startRunning(input: RunningInput): Running {
  const { role, context, options, built, description, group, carrier, notices, balance } = input;
  const transports = built.open.map(({ transport }) => transport);
  const apply = (record: LogRecord, index: number): void => {
    try {
      context.blocks.setClock(index);
    } finally {
      if (record.kind === 'carried') notices.tell('carried', record.message);
      else if (decode !== null) decode.apply(record);
      else prefill?.apply(record);
    }
    // What an attestation made quiet shows in the next poll, and an idle engine polls when it is woken.
    if (record.kind === 'attest-dead') notices.tell('wake');
  };
  const log = new ScheduleLog(carrier, group, { apply });
  const shared: Shared = {
    context,
    options,
    log,
    group,
    metrics: new Metrics({ role, instance: options.instance, rank: log.rank }),
    transfers: new Transfers(() => transports),
    plans: peerPlans(role, context, built, description, options, balance),
    peers: new PeerDescriptorCache(),
    handshakeDeadline: () => options.clock.now() + options.deadlines.handshakeMs,
    warn: (message, error) => notices.tell('warning', { message, error }),
    engineFailed: (error) => notices.engineFailed(error),
  };
  const decode = role === 'decode' ? decodeSide(shared, notices, description) : null;
  const prefill = role === 'prefill' ? prefillSide(shared, notices, description, transports) : null;
  return { ...shared, role, transports, description, decode, prefill };
}

function peerPlans(
  role: Role,
  { kv, ssm }: EngineContext,
  { open, missing }: BuiltTransports,
  { instanceMeta }: InstanceDescription,
  { clock, deadlines }: CompiledOptions,
  balance: Balance,
): PeerPlans {
  const patience = { now: () => clock.now(), connectMs: deadlines.handshakeMs };
  if (role === 'decode') {
    const instance = parseInstanceMeta(instanceMeta, 'this instance');
    const choice = new TransportChoice(open, missing, undefined, (ranks) => pullPairs(instance, ranks, balance));
    return new PeerPlans({ kv, ssm }, choice, 'pull', undefined, undefined, patience, balance);
  }
  const duties = pushDuties(parseInstanceMeta(instanceMeta, 'this instance'), kv.layout.globalRank);
  // What decode pulls over another transport is not ours to push.
  const choice = new TransportChoice(open, missing, ({ beginPush }) =>
    beginPush === undefined ? 'it is read by its peers and does not push' : null,
  );
  return new PeerPlans({ kv, ssm }, choice, 'push-source', undefined, duties, patience);
}

function decodeSide(shared: Shared, notices: Notices, description: InstanceDescription): DecodeSide {
  const { context, plans, peers, log } = shared;
  return new DecodeSide({
    ...shared,
    ...modelBytes(context, description.kv, ssmLayers(description)),
    parse: (kvMeta, sourceBlockIds) => {
      const { ticketSecret } = shared.options;
      if (ticketSecret !== null) checkTicketSeal(ticketSecret, kvMeta, sourceBlockIds);
      return parseKvMeta(kvMeta, sourceBlockIds, { cache: peers });
    },
    startTransfer: (pending, reservation) => startImport(shared, pending, reservation),
    transportTraits: (pending) => transportTraits(plans, pending),
    hash: (prompt, salt) => hashPrompt(prompt, context.blockSize, salt, log.carrier),
    notices: {
      transferReady: (pending, cachedPrefixBlocks) =>
        notices.tellControlPlane('kvTransferReady', { ...identityOf(pending), cachedPrefixBlocks }),
      readDone: (pending) => notices.tellControlPlane('kvReadDone', identityOf(pending)),
      failed: (pending, error, sourceSafe) =>
        notices.tellControlPlane('requestError', { ...identityOf(pending), error, sourceSafe }),
      aborted: (pending, sourceSafe) =>
        notices.tellControlPlane('requestAborted', { ...identityOf(pending), sourceSafe }),
      admitted: (pending) => notices.tell('handoffAdmitted', identityOf(pending)),
      quarantined: (pending) => notices.tell('quarantined', { ...identityOf(pending), ...heldBy(pending) }),
      instanceFailed: (error) => notices.engineFailed(error),
      engineCallFailed: (error) => notices.tell('engineFailed', engineCallError(error)),
      reclaimed: (pending) => notices.tell('reclaimed', { ...identityOf(pending), ...heldBy(pending) }),
    },
  });
}

function prefillSide(
  shared: Shared,
  notices: Notices,
  description: InstanceDescription,
  transports: readonly Transport[],
): PrefillSide {
  const side: PrefillSide = new PrefillSide({
    ...shared,
    description,
    startPush: (pushId, pin, record) => startPush(shared, pushId, pin, side.ref(pin), record),
    grantsGenerations: () => transports.some(({ capabilities }) => capabilities.detectsLateReads),
    lateReadsAreNoticed: () =>
      transports.every(({ capabilities }) => capabilities.direction === 'push' || capabilities.detectsLateReads),
    notices: {
      pinned: ({ requestId, handoffId, blocks }) =>
        notices.tell('pinned', { requestId, handoffId, blocks: blocks.length }),
      ready: ({ requestId, handoffId }) => notices.tell('ticketReady', { requestId, handoffId }),
      released: ({ requestId, handoffId }, reason) => notices.tell('released', { requestId, handoffId, reason }),
      overdue: ({ requestId, handoffId, owner }, ageMs) =>
        notices.tell('pinOverdue', { requestId, handoffId, ageMs, owner }),
      pushFailed: (pin, error, sourceSafe) =>
        notices.tellControlPlane('requestError', {
          requestId: pin.requestId,
          attemptId: 0,
          source: side.ref(pin),
          error,
          sourceSafe,
        }),
      instanceFailed: (error) => notices.engineFailed(error),
      warning: shared.warn,
    },
  });
  return side;
}

/** The `host` carrier needs every rank's add applied where it is called, so there hashing stays on the spot. */
function hashPrompt(
  prompt: Int32Array,
  blockSize: number,
  salt: string | null,
  carrier: LogCarrier,
): BigInt64Array | Promise<BigInt64Array> {
  const options = salt === null ? {} : { salt };
  if (prompt.length < asyncTokensMin || carrier === 'host') return computeBlockHashes(prompt, blockSize, options);
  return computeBlockHashesAsync(prompt, blockSize, options);
}

function identityOf({ attemptId, requestId, source }: ImportIdentity): {
  readonly attemptId: number;
  readonly requestId: RequestId;
  readonly source: HandoffRef | null;
} {
  return { attemptId, requestId, source: source.handoff };
}

function heldBy({ reservation }: PendingImport): { readonly blocks: number; readonly slot: number | null } {
  return {
    blocks: (reservation?.blocks.length ?? 0) + (reservation?.continuation.length ?? 0),
    slot: reservation?.slot ?? null,
  };
}
