/**
 * How long requests take, as the coordinator sees it: histograms over the times that the core is given. Only what went its
 * way is counted: a wait that ended in a dispatch, a prefill that gave a handoff, a request that gave a reply.
 */
import { Histogram, type HistogramSnapshot } from '../../observe/metrics.js';
import type { RequestRecord } from './request-record.js';
import type { RequestEvent, RequestState } from './request-table.js';

/** Seconds, each as a histogram at one moment. */
export interface RequestTimingsSnapshot {
  /** In the queue of an engine, until it was sent there. */
  readonly queuePrefill: HistogramSnapshot;
  readonly queueDecode: HistogramSnapshot;
  /** From the order to compute it until the handoff came. */
  readonly prefill: HistogramSnapshot;
  /** From the order to import it until the source was read. */
  readonly transfer: HistogramSnapshot;
  /** On the engine that generates: from the end of the transfer, or from the order, until the reply. */
  readonly decode: HistogramSnapshot;
  /** From the submission until the first delta, or the reply where none came before it. */
  readonly firstToken: HistogramSnapshot;
  /** Between tokens of a stream: the time between two deltas, for each token of the second its share. */
  readonly interToken: HistogramSnapshot;
  /** From the submission until the reply. */
  readonly whole: HistogramSnapshot;
}

const bounds = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
];

type Timing = keyof RequestTimingsSnapshot;

/** Which stay an event ends well. */
const ended: Readonly<Partial<Record<RequestState, Readonly<Partial<Record<RequestEvent, Timing>>>>>> = {
  waitingPrefill: { dispatch: 'queuePrefill' },
  prefill: { handoff: 'prefill' },
  waitingDecode: { dispatch: 'queueDecode' },
  importing: { readDone: 'transfer' },
  generating: { reply: 'decode' },
  running: { reply: 'decode' },
  reading: { reply: 'decode' },
};

export class RequestTimings {
  private readonly histograms: Readonly<Record<Timing, Histogram>> = {
    queuePrefill: new Histogram(bounds),
    queueDecode: new Histogram(bounds),
    prefill: new Histogram(bounds),
    transfer: new Histogram(bounds),
    decode: new Histogram(bounds),
    firstToken: new Histogram(bounds),
    interToken: new Histogram(bounds),
    whole: new Histogram(bounds),
  };

  /** Before the event takes the request to its next state. */
  leaves({ state, enteredAt }: RequestRecord, event: RequestEvent, nowMs: number): void {
    const timing = ended[state]?.[event];
    if (timing !== undefined) this.observe(timing, nowMs - enteredAt);
  }

  /** So many generated tokens go to the client; a delta without any is none. */
  streams(request: RequestRecord, nowMs: number, tokens: number): void {
    if (tokens === 0) return;
    const { streamedAt } = request;
    request.streamedAt = nowMs;
    if (streamedAt === null) this.observe('firstToken', nowMs - request.submittedAt);
    else this.observe('interToken', (nowMs - streamedAt) / tokens, tokens);
  }

  /** Its reply goes to the client. */
  replies(request: RequestRecord, nowMs: number): void {
    if (request.streamedAt === null) this.observe('firstToken', nowMs - request.submittedAt);
    this.observe('whole', nowMs - request.submittedAt);
  }

  snapshot(): RequestTimingsSnapshot {
    const entries = Object.entries(this.histograms).map(([timing, histogram]) => [timing, histogram.snapshot()]);
    return Object.fromEntries(entries) as unknown as RequestTimingsSnapshot;
  }

  private observe(timing: Timing, ms: number, times = 1): void {
    this.histograms[timing].observe(ms / 1000, times);
  }
}
