/**
 * The simulated control plane: it carries tickets, releases and attestations between instances over messages that are
 * late, lost and doubled, retries what it must, and judges every answer.
 */
import type { HandoffRef, ImportNotice } from '../../lib/events.js';
import type { Finished } from '../../lib/engine-context.js';
import { isHandoffError } from '../../lib/errors.js';
import { decodeTicket, encodeTicket } from '../../lib/ticket-codec.js';
import type { Ticket } from '../../lib/ticket.js';
import { tokenAt, type SeededRandom } from '../../lib/testing/index.js';
import type { SimInstance, SimRank } from './sim-instance.js';
import { drawRequests, type SimRequest, type SimTry } from './sim-request.js';
import type { World } from './world.js';

const triesMax = 4;
const resendMs = 25;

/** One answer that a decode instance owes. */
interface Owed {
  readonly each: SimTry;
  readonly decode: SimInstance;
  readonly incarnation: number;
  readonly isDuplicate: boolean;
  answers: number;
}

export class SimRouter {
  readonly requests: readonly SimRequest[];
  readonly outcomes = new Map<string, number>();
  readonly #tries = new Map<string, SimTry>();
  readonly #owed: Owed[] = [];
  /** How often each attempt of each decode incarnation said that it reads no more. */
  readonly #readDone = new Map<string, number>();
  readonly #pins = new Map<SimInstance, number>();
  readonly #random: SeededRandom;

  constructor(
    readonly world: World,
    random: SeededRandom,
  ) {
    this.#random = random;
    this.requests = drawRequests(world.plan, random.fork());
  }

  tryOf(label: string): SimTry {
    const found = this.#tries.get(label);
    if (found === undefined) throw new Error(`the simulation knows no try ${label}`);
    return found;
  }

  /** Handoffs that a prefill instance has pinned. */
  pinned(instance: SimInstance): number {
    return this.#pins.get(instance) ?? 0;
  }

  /** Answers that living instances still owe, and requests that the router itself still has in hand. */
  get openCount(): number {
    const owed = this.#owed.filter(
      ({ answers, decode, incarnation }) => answers === 0 && isAlive(decode, incarnation),
    ).length;
    return owed + this.requests.filter(({ answer, abandoned }) => answer === null && !abandoned).length;
  }

  /** The last tries of requests that have no answer, for messages. */
  get openLabels(): readonly string[] {
    return this.requests
      .filter(({ answer, abandoned }) => answer === null && !abandoned)
      .map(({ id, tries }) =>
        tries.at(-1) === undefined ? `r${id}` : `${tries.at(-1)!.label} ${tries.at(-1)!.state}`,
      );
  }

  /** Requests arrive over the plan's time. */
  start(): void {
    for (const request of this.requests) {
      this.world.clock.after(this.#random.float() * this.world.plan.arrivalMs, () => {
        this.#submit(request);
        if (request.abortAfterMs !== null) this.world.clock.after(request.abortAfterMs, () => this.#abort(request));
      });
    }
  }

  // --- prefill ---------------------------------------------------------------------------------------------------------

  #submit(request: SimRequest): void {
    if (request.answer !== null || request.abandoned) return;
    const prefills = this.world.instances.filter(({ plan, ranks }) => plan.role === 'prefill' && ranks !== null);
    if (request.tries.length >= triesMax || (this.world.isOver && prefills.length === 0)) {
      request.abandoned = true;
      return;
    }
    if (prefills.length === 0) {
      this.world.clock.after(5, () => this.#submit(request));
      return;
    }
    const prefill = this.#random.pick(prefills);
    const label = `r${request.id}.${request.tries.length}`;
    const each: SimTry = {
      label,
      request,
      state: 'waiting',
      ticket: null,
      ref: null,
      unready: 0,
      capturedAtStep: 0,
      prefill: prefill.index,
      prefillIncarnation: prefill.incarnation,
      decode: -1,
      decodeIncarnation: 0,
      abortAsked: false,
      sourceLetGo: false,
      released: false,
    };
    request.tries.push(each);
    this.#tries.set(label, each);
    prefill.waiting.push(label);
    prefill.wakeAll();
  }

  /** A rank has pinned a prompt. Rank 0's ticket is the one that travels. */
  captured(prefill: SimInstance, rank: SimRank, label: string, ticket: Ticket, isLate: boolean): void {
    const each = this.tryOf(label);
    if (isLate) each.unready++;
    if (rank.rank > 0) return;
    prefill.waiting.splice(prefill.waiting.indexOf(label), 1);
    this.#pins.set(prefill, this.pinned(prefill) + 1);
    each.state = 'captured';
    each.ticket = ticket;
    each.capturedAtStep = rank.steps + 1;
    each.ref = ticket.handoff;
    // Other ranks may not have come to this step yet; a ticket waits until all of them have their state.
    this.world.clock.after(this.#random.float() * 2, () => this.#offer(each));
  }

  ticketReady(label: string): void {
    this.tryOf(label).unready--;
  }

  sourceReleased(prefill: SimInstance, label: string, reason: string): void {
    const each = this.tryOf(label);
    this.#pins.set(prefill, this.pinned(prefill) - 1);
    if (each.released) this.world.violation(`${label}: its source was released twice`);
    each.released = true;
    each.sourceLetGo = true;
    if (reason === 'expired' && this.world.plan.deadlines.pinMs > 1e5)
      this.world.violation(`${label}: its pin expired before its time`);
  }

  #offer(each: SimTry): void {
    const prefill = this.#prefillOf(each);
    if (each.state !== 'captured' || each.released) return this.#retry(each);
    if (each.abortAsked) return this.#letGo(each);
    if (prefill === null) return this.#retry(each);
    const done = Math.min(...prefill.ranks!.map(({ steps }) => steps));
    if (each.unready > 0 || done < each.capturedAtStep) {
      this.world.clock.after(1, () => this.#offer(each));
      return;
    }
    if (this.#random.chance(0.1)) each.ticket = decodeTicket(encodeTicket(each.ticket!));
    each.state = 'sent';
    this.#send(each);
  }

  // --- decode -------------------------------------------------------------------------------------------------------------

  /** At least once: sent again until a decode instance has it. */
  #send(each: SimTry): void {
    if (each.state !== 'sent') return;
    if (each.abortAsked) return this.#letGo(each);
    if (this.#prefillOf(each) === null) return this.#retry(each);
    const decodes = this.world.instances.filter(({ plan, ranks }) => plan.role === 'decode' && ranks !== null);
    if (decodes.length > 0) {
      const decode = this.#random.pick(decodes);
      const { incarnation } = decode;
      this.#message(() => this.#deliver(each, decode, incarnation));
    }
    this.world.clock.after(resendMs, () => this.#send(each));
  }

  #deliver(each: SimTry, decode: SimInstance, incarnation: number): void {
    const leader = isAlive(decode, incarnation) ? decode.leader : null;
    if (leader === null) return;
    const isDuplicate = each.state === 'taken' || each.state === 'over';
    // A ticket that was sent twice may reach a second instance; only its own takes it again.
    if (isDuplicate && (each.decode !== decode.index || each.decodeIncarnation !== incarnation)) return;
    // Nothing would tell a reader that comes after the release, so this router must not make one.
    if (isDuplicate && !this.world.plan.noticesLateReads) return;
    const prefill = this.#prefillOf(each);
    if (!isDuplicate && this.world.plan.claims && prefill !== null) {
      const { instance, incarnation: name } = decode.identity;
      if (!prefill.leader!.handoff.claimHandoff(each.ref!, `${instance}/${name}`)) {
        if (!each.released && !each.sourceLetGo) this.world.violation(`${each.label}: the first claim was refused`);
        return this.#retry(each);
      }
    }
    if (!isDuplicate) {
      each.state = 'taken';
      each.decode = decode.index;
      each.decodeIncarnation = incarnation;
    }
    const { request, label, ticket } = each;
    const owed: Owed = { each, decode, incarnation, isDuplicate, answers: 0 };
    this.#owed.push(owed);
    decode.adds++;
    this.world.recorder.record('router', isDuplicate ? 'deliverAgain' : 'deliver', { label, to: decode.plan.name });
    const withHashes = this.#random.chance(0.8);
    const signal = this.#random.chance(0.3) ? this.#signalOf(each) : null;
    leader.handoff
      .addRequestWithKvHandoff(label, request.prompt, request.params, ticket!.kvMeta, ticket!.blockIds, {
        cacheSalt: request.salt,
        blockHashes: withHashes ? request.hashes : null,
        signal,
      })
      .then(
        (finished) => this.world.guard(() => this.#answered(owed, finished)),
        (error: unknown) => this.world.guard(() => this.#answered(owed, error)),
      );
    decode.wakeAll();
  }

  transferReady(decode: SimInstance, notice: ImportNotice & { readonly cachedPrefixBlocks: number }): void {
    const each = this.tryOf(String(notice.requestId));
    const { incarnation } = decode;
    const go = (): void => {
      const prefill = this.#prefillOf(each);
      if (prefill === null || !isAlive(decode, incarnation) || each.released) return;
      const leader = prefill.leader!;
      try {
        leader.handoff.pushHandoffKv(
          each.ref!,
          decode.leader!.handoff.instanceMeta,
          notice.cachedPrefixBlocks,
          decode.identity,
        );
      } catch (error) {
        if (!isHandoffError(error)) throw error;
        // The same notice delivered twice: one push at a time. An instance that has lost a rank sends nothing.
        const isExpected =
          error.code === 'DUPLICATE_REQUEST' || (error.code === 'RANK_LOST' && prefill.lostRank !== null);
        if (!isExpected) throw error;
      }
      prefill.wakeAll();
    };
    this.#message(go);
  }

  readDone(decode: SimInstance, notice: ImportNotice): void {
    const each = this.tryOf(String(notice.requestId));
    if (notice.attemptId > 0) {
      const key = `${decode.plan.name}/${decode.incarnation}/${notice.attemptId}`;
      const count = (this.#readDone.get(key) ?? 0) + 1;
      this.#readDone.set(key, count);
      if (count > 1) this.world.violation(`${key} (${each.label}) said twice that it reads no more`);
    }
    const reader = decode.leader?.handoff
      .inspect()
      .imports.find(({ state, requestId }) => requestId === each.label && state !== 'agreed' && state !== 'admitted');
    if (reader !== undefined) {
      this.world.violation(
        `${each.label}: attempt ${notice.attemptId} reads no more, it says, and attempt ${reader.attemptId} is ${reader.state}`,
      );
    }
    this.#release(each, notice.source ?? each.ref!);
  }

  /** Release messages are sent until the source has one. */
  #release(each: SimTry, ref: HandoffRef): void {
    const prefill = this.#prefillOf(each);
    if (prefill === null || each.released) return;
    each.sourceLetGo = true;
    this.#message(() => {
      const leader = this.#prefillOf(each)?.leader;
      if (leader === null || leader === undefined) return;
      this.world.recorder.record('router', 'release', { label: each.label });
      leader.handoff.releaseHandoffBlocks(ref);
      prefill.wakeAll();
    });
    this.world.clock.after(resendMs, () => this.#release(each, ref));
  }

  // --- ends ------------------------------------------------------------------------------------------------------------------

  #answered(owed: Owed, outcome: unknown): void {
    const { each, decode, incarnation, isDuplicate } = owed;
    owed.answers++;
    if (owed.answers > 1) this.world.violation(`${each.label}: answered twice`);
    if (!isAlive(decode, incarnation)) return;
    const answer = isHandoffError(outcome) ? outcome.code : 'finished';
    this.world.recorder.record('router', 'answered', { label: each.label, answer, isDuplicate });
    this.outcomes.set(answer, (this.outcomes.get(answer) ?? 0) + 1);
    decode.outcomes.set(answer, (decode.outcomes.get(answer) ?? 0) + 1);
    this.#judge(owed, answer, outcome);
    if (isDuplicate) return;
    each.state = 'over';
    if (answer === 'finished' || each.abortAsked) each.request.answer ??= answer;
    else this.#retry(each);
  }

  #judge({ each, decode, isDuplicate }: Owed, answer: string, outcome: unknown): void {
    const { plan } = this.world;
    const blame = (why: string): void => {
      const message = isHandoffError(outcome) ? ` (${outcome.message})` : '';
      this.world.violation(`${each.label}: ended with ${answer}${message}: ${why}`);
    };
    switch (answer) {
      case 'finished':
        return this.#checkResult(each, outcome as Finished);
      case 'DUPLICATE_REQUEST':
        if (!isDuplicate) blame('it was delivered once');
        return;
      case 'ABORTED':
        if (!each.abortAsked) blame('nobody asked for that');
        return;
      case 'HANDOFF_EXPIRED':
        if (!each.sourceLetGo && this.#prefillOf(each) !== null) blame('its source was still held');
        return;
      case 'RANK_LOST':
        if (decode.lostRank === null) blame('none of its ranks was lost');
        return;
      case 'QUEUE_DEADLINE':
      case 'HANDSHAKE_DEADLINE':
      case 'TRANSFER_DEADLINE':
      case 'TRANSFER_FAILED':
      case 'ENGINE_FAILED':
      case 'TRANSFER_CANCELLED':
      case 'PEER_RANK_FAILED':
      case 'PEER_LOST':
      case 'PEER_UNREACHABLE':
        if (!plan.hasFaults) blame('nothing went wrong in this world');
        return;
      default:
        blame('a request never ends so');
    }
  }

  #checkResult({ label, request }: SimTry, finished: Finished): void {
    const { prompt, params, salt } = request;
    const { blockSize } = this.world.plan.shape;
    const limit = params.num_tokens_to_generate ?? (params.num_tokens_total as number) - prompt.length;
    const expected: number[] = [];
    for (let i = 0; i < Math.max(0, limit); i++) {
      expected.push(tokenAt(prompt, salt, blockSize, i));
      if (expected.at(-1) === params.termination_id) break;
    }
    if (finished.generatedTokens.join() !== expected.join()) {
      this.world.violation(`${label}: generated ${finished.generatedTokens.join()}, expected ${expected.join()}`);
    }
    if (finished.cachedTokens !== prompt.length)
      this.world.violation(`${label}: ${finished.cachedTokens} of ${prompt.length} prompt tokens came from elsewhere`);
    const logProbs =
      params.return_log_probs === true ? expected.map((_, index) => (index === 0 ? -0.25 : -0.5)).join() : null;
    if ((finished.generatedLogProbs?.join() ?? null) !== logProbs)
      this.world.violation(`${label}: log-probabilities are ${finished.generatedLogProbs?.join()}`);
  }

  #retry(each: SimTry): void {
    if (each.state === 'over' && each.request.tries.at(-1) !== each) return;
    each.state = 'over';
    // Whoever took it says himself when he reads no more, however it ended.
    if (each.ref !== null && each.decode < 0) this.#release(each, each.ref);
    if (each.abortAsked) each.request.answer ??= 'ABORTED';
    if (each.request.tries.at(-1) === each)
      this.world.clock.after(1 + this.#random.float() * 5, () => this.#submit(each.request));
  }

  /** The client gave up before any decode instance had it. */
  #letGo(each: SimTry): void {
    each.state = 'over';
    each.request.answer ??= 'ABORTED';
    if (each.ref !== null) this.#release(each, each.ref);
  }

  #abort(request: SimRequest): void {
    const each = request.tries.at(-1);
    if (request.answer !== null || each === undefined || each.state === 'over' || each.abortAsked) return;
    each.abortAsked = true;
    this.world.recorder.record('router', 'abort', { label: each.label, state: each.state });
    this.#signals.get(each.label)?.abort();
    if (each.state === 'waiting') {
      const { waiting } = this.world.instances[each.prefill]!;
      if (this.#prefillOf(each) !== null) waiting.splice(waiting.indexOf(each.label), 1);
      this.#letGo(each);
    } else if (each.state === 'taken') {
      const decode = this.world.instances[each.decode]!;
      if (isAlive(decode, each.decodeIncarnation)) {
        decode.leader!.handoff.abortKvHandoff(each.label);
        decode.wakeAll();
      }
    }
  }

  readonly #signals = new Map<string, AbortController>();

  #signalOf(each: SimTry): AbortSignal {
    let controller = this.#signals.get(each.label);
    if (controller === undefined) {
      controller = new AbortController();
      this.#signals.set(each.label, controller);
    }
    return controller.signal;
  }

  // --- deaths ----------------------------------------------------------------------------------------------------------------

  /** An instance has died. Its tries come back at once; that it is dead is attested once nothing of it can move. */
  instanceDied(dead: SimInstance, identity: SimInstance['identity'], lingerMs: number): void {
    this.#pins.delete(dead);
    for (const each of this.#tries.values()) {
      if (
        each.prefill === dead.index &&
        each.prefillIncarnation === dead.incarnation &&
        each.state !== 'over' &&
        each.state !== 'taken'
      ) {
        if (each.abortAsked) each.request.answer ??= 'ABORTED';
        this.#retry(each);
      }
      if (each.state === 'taken' && each.decode === dead.index && each.decodeIncarnation === dead.incarnation) {
        each.state = 'over';
        if (each.abortAsked) each.request.answer ??= 'ABORTED';
      }
    }
    this.world.clock.after(lingerMs, () => this.attest(dead, identity));
  }

  /** Tells all who may be waiting for it that `identity` is dead for good. */
  attest(dead: SimInstance, identity: SimInstance['identity']): void {
    this.world.recorder.record('router', 'attest', identity);
    for (const instance of this.world.instances) {
      if (instance.plan.role === dead.plan.role || instance.leader === null) continue;
      instance.leader.handoff.attestInstanceDead(identity.instance, identity.incarnation);
      instance.wakeAll();
    }
    if (dead.plan.role !== 'decode') return;
    for (const each of this.#tries.values()) {
      const wasThere = each.decode === dead.index && `inc${each.decodeIncarnation}` === identity.incarnation;
      if (!wasThere) continue;
      if (each.ref !== null) this.#release(each, each.ref);
      if (each.request.answer === null && each.request.tries.at(-1) === each) this.#submit(each.request);
    }
  }

  // ---------------------------------------------------------------------------------------------------------------------------

  #prefillOf(each: SimTry): SimInstance | null {
    const prefill = this.world.instances[each.prefill]!;
    return isAlive(prefill, each.prefillIncarnation) ? prefill : null;
  }

  /** A control message: late, lost or doubled as the plan has it, and none of it once the world is calm. */
  #message(arrive: () => void): void {
    const { loss, duplicate, delayMsMax } = this.world.plan.messages;
    const random = this.#random;
    if (!this.world.isCalm && random.chance(loss)) return;
    const copies = !this.world.isCalm && random.chance(duplicate) ? 2 : 1;
    for (let copy = 0; copy < copies; copy++) this.world.clock.after(random.float() * delayMsMax, arrive);
  }
}

function isAlive(instance: SimInstance, incarnation: number): boolean {
  return instance.ranks !== null && instance.incarnation === incarnation;
}
