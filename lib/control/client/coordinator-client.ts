/**
 * A client of the coordinator: submits requests and hands each one its replies. Owns the socket and the client's request
 * numbers. When the connection is lost every open request ends with `PEER_LOST`, since replies may be lost with it; the
 * client then connects again by itself and takes new requests. Nothing is submitted twice.
 */
import { randomBytes } from 'node:crypto';
import type { Dealer } from 'zeromq';
import { requireObject } from '../../argument-shape.js';
import { argumentError, HandoffError, isHandoffError } from '../../errors.js';
import { checkDeadline, checkName, checkSignal } from '../../request-input.js';
import { checkConnectMs, checkOptions, checkProfile } from '../option-checks.js';
import { decodeMessage, encodeMessage, type WireProfile } from '../protocol/codec.js';
import type { ToClient, ToCoordinator } from '../protocol/messages.js';
import { decodeValue, encodeValue } from '../protocol/wire-bytes.js';
import type { Opaque, WireMap } from '../protocol/wire-value.js';
import { parsePeerEndpoint } from '../zeromq/address.js';
import type { CurvePeer } from '../zeromq/curve-peers.js';
import { curveIdentity } from '../zeromq/socket-identity.js';
import { watchDisconnects } from '../zeromq/disconnects.js';
import { checkFrameSizes } from '../zeromq/frame-limit.js';
import { dealerLiveness } from '../zeromq/liveness.js';
import { loadZeromq } from '../zeromq/load-zeromq.js';
import { unanswered } from '../zeromq/unanswered.js';
import { checkedPrompt } from './client-prompt.js';
import { ClientRequest, type ClientEvent } from './client-request.js';

/** How a client connects. */
export interface CoordinatorClientOptions {
  /** As the coordinator printed it, for example `tcp://127.0.0.1:5757`. */
  readonly address: string;
  /** The coordinator's. Default `multi-frame`. */
  readonly profile?: WireProfile;
  /** Keys and name, for a coordinator that uses CURVE. One name may have several clients at once. */
  readonly curve?: CurvePeer;
  /** How long the first answer may take, in milliseconds. Default 5,000. */
  readonly connectMs?: number;
}

/** One request's choices beside prompt and sampling. */
export interface ClientRequestOptions {
  /** Ends the request locally at once and asks the coordinator to stop it. */
  readonly signal?: AbortSignal;
  /** The caller's own name for the request; travels in the sampling map as `x_request_id` and comes back with it. */
  readonly xRequestId?: string;
  /** Hashes of the prompt's complete blocks; without them a prompt is routed by load alone. */
  readonly blockHashes?: BigInt64Array;
}

/** How often an attestation is repeated until it is taken. */
const attestAgainMs = 100;

/** How long the last word may take to go out. */
const closeMs = 200;

/** Replies that wait for their readers; beyond it the client stops reading its socket until some were taken. */
const waitingMax = 4_096;

/** Made by {@link CoordinatorClient.connect}. */
export class CoordinatorClient {
  private readonly requests = new Map<number, ClientRequest>();
  private nextId = 0;
  private waiting = 0;
  private hasRoom: (() => void) | null = null;
  private sending: Promise<void> = Promise.resolve();
  private connected: (() => void) | null = null;
  /** By owner: who wait for its attestation to be taken. */
  private readonly attested = new Map<string, Set<() => void>>();
  private isClosed = false;
  private refusedKey = false;
  private instanceName: string | null = null;

  /**
   * Connects and waits until the coordinator has answered.
   *
   * @throws `OPTION_INVALID`, for keys that are none too; `PEER_UNREACHABLE` when nobody answers in time; `ZEROMQ_UNAVAILABLE`
   */
  static async connect(options: CoordinatorClientOptions): Promise<CoordinatorClient> {
    checkOptions(options);
    checkProfile(options.profile);
    checkConnectMs(options.connectMs);
    if (options.curve !== undefined) checkOptions(options.curve, 'options.curve');
    parsePeerEndpoint(options.address, 'options.address');
    const connectMs = options.connectMs ?? 5_000;
    const { Dealer: DealerSocket } = loadZeromq();
    const { curve } = options;
    const identity =
      curve === undefined
        ? { routingId: `client-${randomBytes(12).toString('hex')}` }
        : curveIdentity(curve, 'options.curve');
    const marks = { linger: 0, sendHighWaterMark: 0, receiveHighWaterMark: 1_000 };
    const socket = new DealerSocket({ ...identity, ...dealerLiveness, ...marks });
    const client = new CoordinatorClient(socket, options.profile ?? 'multi-frame');
    let timer: NodeJS.Timeout | undefined;
    const answered = await new Promise<boolean>((resolve) => {
      timer = setTimeout(() => resolve(false), connectMs);
      client.connected = () => resolve(true);
      socket.connect(options.address);
      client.say({ header: 'CONNECT' });
    });
    clearTimeout(timer);
    if (answered) return client;
    client.close();
    const { refusedKey: isKeyRefused } = client;
    const { address } = options;
    throw unanswered({ what: 'no coordinator answered', address, connectMs, curve, isKeyRefused, role: 'client' });
  }

  private constructor(
    private readonly socket: Dealer,
    private readonly profile: WireProfile,
  ) {
    void watchDisconnects(
      socket.events,
      () => this.lose(),
      () => this.wasRefused(),
    );
    void this.serve();
  }

  /** The coordinator's instance; null in the single-frame profile. */
  get instance(): string | null {
    return this.instanceName;
  }

  /** Requests whose local end has not come or whose source is not known to be safe. */
  get openRequests(): number {
    return this.requests.size;
  }

  /**
   * Submits a request.
   *
   * @param prompt - text, or token ids in [0, 2^31 - 1]
   * @param sampling - spec 1.5.5, as `wireMap` makes it; a `Float64` for every float
   * @throws `CLOSED`; `ARGUMENT_INVALID` for what cannot be said
   */
  addRequest(
    prompt: string | readonly number[] | Int32Array,
    sampling: WireMap,
    options: ClientRequestOptions = {},
  ): ClientRequest {
    requireObject('options', options);
    const { signal, xRequestId, blockHashes } = options;
    if (this.isClosed) throw new HandoffError('CLOSED', 'the client was closed');
    checkSignal(signal);
    if (xRequestId !== undefined && (typeof xRequestId !== 'string' || xRequestId.length > 256))
      throw argumentError('options.xRequestId', 'text of at most 256 characters', xRequestId);
    if (!(sampling instanceof Map)) throw argumentError('sampling', 'a map, as wireMap({…}) makes one', sampling);
    const tokens = checkedPrompt(prompt);
    const requestId = this.nextId++;
    const message: ToCoordinator = {
      header: 'SUBMIT_REQUEST',
      requestId,
      prompt: encodeValue(tokens, 'prompt'),
      sampling: xRequestId === undefined ? sampling : new Map([...sampling, ['x_request_id', xRequestId]]),
      blockHashes: blockHashes ?? null,
      mediaMeta: null,
      media: null,
      offloadParams: null,
    };
    const request: ClientRequest = new ClientRequest(
      requestId,
      (count) => this.took(count),
      () => this.abort(request),
    );
    if (signal?.aborted === true) {
      request.fail(aborted());
      request.safe();
      return request;
    }
    this.requests.set(requestId, request);
    try {
      this.say(message);
    } catch (error) {
      this.requests.delete(requestId);
      throw error;
    }
    if (signal !== undefined) {
      const onAbort = (): void => this.abort(request);
      signal.addEventListener('abort', onAbort, { once: true });
      // A signal may outlive many requests.
      request.onEnd = () => signal.removeEventListener('abort', onAbort);
    }
    return request;
  }

  /**
   * Vouches that every process of an engine has ended and cannot come back; what it read is quiet then, so pins that waited
   * for it are released. Only who has seen them end may say so: a lost connection is no proof. The coordinator does not
   * believe it of an engine that is still registered, so this is repeated until it is taken.
   *
   * @param deadlineMs - default 30,000
   * @throws (rejects) `ARGUMENT_INVALID`; `PEER_UNREACHABLE` when it was not taken in time; `INCOMPATIBLE` in the single-frame profile, which
   *   names no coordinator; `CLOSED`
   */
  async attestDead(instance: string, incarnation: string, deadlineMs?: number): Promise<void> {
    checkName(instance, 'instance');
    checkName(incarnation, 'incarnation');
    const waitMs = checkDeadline(deadlineMs, 30_000);
    const owner = `${instance}/${incarnation}`;
    const waiting = this.attested.get(owner) ?? new Set();
    this.attested.set(owner, waiting);
    let take = (): void => undefined;
    const taken = new Promise<boolean>((resolve) => waiting.add((take = () => resolve(true))));
    const end = Date.now() + waitMs;
    try {
      for (;;) {
        if (this.isClosed) throw new HandoffError('CLOSED', 'the client was closed');
        if (this.instanceName === null)
          throw new HandoffError('INCOMPATIBLE', 'an attestation needs the multi-frame profile');
        this.say({ header: 'RELEASE_KV_OWNER', instance: this.instanceName, owner });
        let timer: NodeJS.Timeout | undefined;
        const again = new Promise<boolean>((resolve) => (timer = setTimeout(() => resolve(false), attestAgainMs)));
        const isTaken = await Promise.race([taken, again]);
        clearTimeout(timer);
        if (isTaken) return;
        if (Date.now() >= end)
          throw new HandoffError('PEER_UNREACHABLE', `the coordinator did not take the attestation of ${owner}`);
      }
    } finally {
      waiting.delete(take);
      if (waiting.size === 0) this.attested.delete(owner);
    }
  }

  /** Ends every open request with `CLOSED` and closes the socket. */
  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.endAll(() => new HandoffError('CLOSED', 'the client was closed', { sourceSafe: false }));
    this.hasRoom?.();
    // The coordinator stops what still runs, and forgets this client.
    const frames = encodeMessage(this.profile, 'coordinator', { header: 'DISCONNECT' }) as Uint8Array[];
    this.socket.linger = closeMs;
    // Without a connection nothing goes out, and what is under way may wait for ever.
    const timer = setTimeout(() => this.socket.close(), closeMs);
    void this.sending
      .then(() => this.socket.send(frames))
      .catch(() => undefined)
      .then(() => {
        clearTimeout(timer);
        this.socket.close();
      });
  }

  private abort(request: ClientRequest): void {
    if (request.hasEnded || this.isClosed) return;
    request.fail(aborted());
    this.say({ header: 'ABORT_REQUEST', requestId: request.requestId });
  }

  /** Messages go out one after another; one that cannot be encoded throws here. */
  private say(message: ToCoordinator): void {
    const frames = encodeMessage(this.profile, 'coordinator', message) as Uint8Array[];
    checkFrameSizes(frames, 'prompt and sampling');
    this.sending = this.sending
      .then(() => (this.isClosed ? undefined : this.socket.send(frames)))
      .catch((error: unknown) => {
        if (!this.isClosed) this.endAll(() => lost(undefined, error));
      });
  }

  private async serve(): Promise<void> {
    while (!this.isClosed) {
      try {
        if (this.waiting >= waitingMax) {
          await new Promise<void>((resolve) => {
            this.hasRoom = resolve;
          });
          continue;
        }
        this.take(decodeMessage(this.profile, 'client', await this.socket.receive()));
      } catch (error) {
        if (this.isClosed) return;
        // One message that is none; those after it may be.
        if (!isHandoffError(error)) return this.endAll(() => lost(undefined, error));
      }
    }
  }

  private take(message: ToClient): void {
    if (message.header === 'CONNECT_ACK') {
      this.instanceName = message.instance;
      this.connected?.();
      return;
    }
    if (message.header === 'RELEASE_KV_OWNER_ACK') for (const take of this.attested.get(message.owner) ?? []) take();
    if (!('requestId' in message)) return;
    const request = this.requests.get(message.requestId);
    if (request === undefined) return;
    switch (message.header) {
      case 'ENGINE_REPLY_PARTIAL':
        this.deliver(request, 'partial', message.body);
        break;
      case 'ENGINE_REPLY':
        this.deliver(request, 'final', message.body);
        this.isSafe(request);
        break;
      case 'REQUEST_ERROR':
        request.fail(
          new HandoffError('ENGINE_FAILED', `the request failed because ${message.reason}`, {
            sourceSafe: message.sourceSafe,
            details: { reason: message.reason },
          }),
        );
        if (message.sourceSafe) this.isSafe(request);
        break;
      case 'REQUEST_ABORTED':
        request.fail(aborted());
        if (message.sourceSafe) this.isSafe(request);
        break;
      default:
    }
  }

  private deliver(request: ClientRequest, kind: ClientEvent['kind'], bytes: Opaque): void {
    let body: WireMap;
    try {
      body = decodeValue(bytes, 'body') as WireMap;
    } catch (error) {
      if (!isHandoffError(error)) throw error;
      return this.endUnreadable(request, kind, error);
    }
    // The coordinator's own number inside is nobody's business here.
    if (request.push({ kind, body: new Map([...body, ['request_id', request.requestId]]) })) this.waiting++;
  }

  /** An engine wrote what cannot be read. The request ends; what is still under way is to stop. */
  private endUnreadable(request: ClientRequest, kind: ClientEvent['kind'], cause: HandoffError): void {
    if (request.hasEnded) return;
    request.fail(
      new HandoffError(
        'ENGINE_FAILED',
        `the request failed because its ${kind} reply cannot be read: ${cause.message}`,
        {
          cause,
          sourceSafe: kind === 'final',
          details: { reason: cause.message },
        },
      ),
    );
    if (kind === 'partial') this.say({ header: 'ABORT_REQUEST', requestId: request.requestId });
  }

  private isSafe(request: ClientRequest): void {
    this.requests.delete(request.requestId);
    request.safe();
  }

  private took(count: number): void {
    this.waiting -= count;
    if (this.waiting < waitingMax) this.hasRoom?.();
  }

  private lose(): void {
    if (this.isClosed) return;
    this.endAll(() => lost());
    // Goes out as soon as there is a connection again.
    this.say({ header: 'CONNECT' });
  }

  /** The coordinator lets this key in no more: what waits for a connection would wait for ever. */
  private wasRefused(): void {
    this.refusedKey = true;
    // It goes out behind what it ends, should there be a connection again.
    for (const requestId of this.requests.keys()) this.say({ header: 'ABORT_REQUEST', requestId });
    this.endAll(() => lost('the coordinator refuses this key'));
  }

  private endAll(error: () => HandoffError): void {
    for (const request of this.requests.values()) {
      request.fail(error());
      request.unknownSafety(error());
    }
    this.requests.clear();
  }
}

function aborted(): HandoffError {
  return new HandoffError('ABORTED', 'the request was aborted', { sourceSafe: false });
}

function lost(why = 'the connection to the coordinator was lost', cause?: unknown): HandoffError {
  return new HandoffError('PEER_LOST', `${why}; the request may still run`, { sourceSafe: false, cause });
}
