/**
 * The other side of the coordinator's bench, all in one process: a client that keeps so many requests in flight, and
 * engines that answer at once. Drives a bare echo with the same frames in the same way. Counts time between its own ends
 * only, so that one clock says how long a hop took.
 */
import { Dealer } from 'zeromq';
import { decodeMessage, encodeMessage, type Frames } from '../../../lib/control/protocol/codec.js';
import { WireReader } from '../../../lib/control/protocol/wire-reader.js';
import {
  hashFrames,
  readDoneFrames,
  receivedFrames,
  registerFrames,
  replyFrames,
  submitFrames,
  type Setting,
} from './frames.js';

/** How long hops took, in µs: client to engine, engine to client; or there and back through an echo. */
export type Hops = number[];

const timeoutMs = 60_000;
const nowUs = (): number => performance.now() * 1000;
const [submitRequest, submitWithKv] = [20, 24];

function dealer(address: string, routingId?: string): Dealer {
  const socket = new Dealer({
    linger: 0,
    sendHighWaterMark: 0,
    receiveHighWaterMark: 0,
    receiveTimeout: timeoutMs,
    ...(routingId === undefined ? {} : { routingId }),
  });
  socket.connect(address);
  return socket;
}

/** Sends of one socket, one after another. */
function sender(socket: Dealer): (frames: Frames) => void {
  const waiting: Frames[] = [];
  let isSending = false;
  const send = async (): Promise<void> => {
    isSending = true;
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift())
      await socket.send(next as Uint8Array[]);
    isSending = false;
  };
  return (frames) => {
    waiting.push(frames);
    if (!isSending) void send();
  };
}

function headerAndId(frame: Uint8Array): readonly [number, number] {
  const reader = new WireReader(frame, 'frame');
  const length = reader.listLength();
  return [reader.value() as number, length > 1 ? (reader.value() as number) : -1];
}

/** Runs requests through whatever listens. */
export interface Load {
  /** @returns the hops that were timed; only those of one request in flight are exact */
  run(count: number, inFlight: number): Promise<Hops>;
  close(): void;
}

/** A client and the engines of one coordinator. */
export async function coordinatorLoad(address: string, setting: Setting, prompts: number): Promise<Load> {
  const known = hashFrames(prompts);
  const client = dealer(address, 'client');
  const sockets = [client];
  const hops: Hops = [];
  let sentAt = 0;
  const noteHop = (): void => {
    hops.push(nowUs() - sentAt);
    sentAt = nowUs();
  };
  const serve = async (socket: Dealer): Promise<void> => {
    const say = sender(socket);
    for (;;) {
      const [first] = await socket.receive();
      const [header, id] = headerAndId(first!);
      if (header === submitWithKv) say(readDoneFrames(id));
      if (header !== submitRequest && header !== submitWithKv) continue;
      noteHop();
      say(replyFrames(setting === 'disaggregated' && header === submitRequest ? 'handoff' : 'finished', id));
    }
  };
  for (const index of [1, 2]) {
    for (const role of setting === 'aggregated' ? (['engine'] as const) : (['prefill', 'decode'] as const)) {
      const socket = dealer(address, `${role}-${index}`);
      sockets.push(socket);
      await socket.send((role === 'engine' ? [new Uint8Array(0)] : registerFrames(role)) as Uint8Array[]);
      if (role !== 'engine') await socket.receive();
      serve(socket).catch(() => undefined);
    }
  }
  const say = sender(client);
  say(encodeMessage('multi-frame', 'coordinator', { header: 'CONNECT' }));
  await client.receive();
  // Engines without roles are not told that they have joined.
  for (let joined = 0; joined < sockets.length - 1;) {
    say(encodeMessage('multi-frame', 'coordinator', { header: 'STATUS' }));
    const reply = decodeMessage('multi-frame', 'client', await client.receive());
    const engines = reply.header === 'STATUS_REPLY' ? reply.status.get('engines') : [];
    joined = Array.isArray(engines) ? engines.length : 0;
  }
  let nextId = 0;
  return {
    run: async (count, inFlight) => {
      hops.length = 0;
      const submit = (): void => {
        const id = nextId++;
        if (inFlight === 1) sentAt = nowUs();
        // Prompts without an order that a cache would like.
        say(submitFrames(id, known[Math.imul(id, 7919) % prompts < 0 ? 0 : Math.imul(id, 7919) % prompts]!));
      };
      for (let sent = 0; sent < Math.min(inFlight, count); sent++) submit();
      for (let done = 0; done < count; done++) {
        const [first] = await client.receive();
        if (inFlight === 1) noteHop();
        const [header, id] = headerAndId(first!);
        if (header !== 21) throw new Error(`bench coordinator: request ${id} was answered with header ${header}`);
        if (done + inFlight < count) submit();
      }
      return [...hops];
    },
    close: () => sockets.forEach((socket) => socket.close()),
  };
}

/** The same frames to an echo: each goes there and back before the next of its request. */
export function echoLoad(address: string, setting: Setting): Load {
  const [hashFrame] = hashFrames(1) as [Uint8Array];
  const socket = dealer(address);
  const say = sender(socket);
  const steps = receivedFrames(setting, 2 ** 20, hashFrame);
  return {
    run: async (count, inFlight) => {
      const hops: Hops = [];
      let sentAt = nowUs();
      const total = count * steps.length;
      // Whichever comes back next, a further message of its kind or of the next kind goes out: as many of each in all.
      let sent = 0;
      const submit = (): void => {
        sentAt = nowUs();
        say(steps[sent++ % steps.length]!);
      };
      while (sent < Math.min(inFlight, total)) submit();
      for (let done = 0; done < total; done++) {
        await socket.receive();
        hops.push(nowUs() - sentAt);
        if (sent < total) submit();
      }
      return hops;
    },
    close: () => socket.close(),
  };
}
