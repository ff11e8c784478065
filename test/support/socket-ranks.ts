/**
 * Rank groups over sockets for tests: groups that end with their test, a raw rank that a test speaks for byte by byte, and
 * waits that are ended by events.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { encodeCompletionReport } from '../../lib/control/completion-report.js';
import { encodePlacementReport } from '../../lib/control/placement.js';
import type { LogRecord, RankReport, StepFrame } from '../../lib/control/rank-group.js';
import { frameBytes, frameKind, FrameReader } from '../../lib/control/ranks/framing.js';
import { decodeHello, encodeJoin, newNonce } from '../../lib/control/ranks/handshake.js';
import type { RankAddress } from '../../lib/control/ranks/rendezvous.js';
import { SocketRankGroup, type SocketRankGroupOptions } from '../../lib/control/socket-rank-group.js';

const token = 'only this instance knows';
const folder = mkdtempSync(join(tmpdir(), 'ranks-'));
export const open: { close(): void }[] = [];
let sockets = 0;

afterEach(() => {
  jest.useRealTimers();
  for (const each of open.splice(0)) each.close();
});
afterAll(() => rmSync(folder, { recursive: true }));

export function socketPath(): string {
  sockets += 1;
  return join(folder, `${sockets}`);
}

export async function rank(
  options: Partial<SocketRankGroupOptions> & { rank: number; size: number; address: RankAddress },
): Promise<SocketRankGroup> {
  const group = await SocketRankGroup.create({ token, ...options });
  open.push(group);
  return group;
}

export function whole(
  size: number,
  address: RankAddress = { path: socketPath() },
  options: Partial<SocketRankGroupOptions> = {},
): Promise<SocketRankGroup[]> {
  return Promise.all(Array.from({ length: size }, (_, index) => rank({ ...options, rank: index, size, address })));
}

export const doNotFake = ['nextTick', 'queueMicrotask', 'setImmediate', 'clearImmediate'] as const;

/** A rank 0 that is being set up; the deadlines are the test's to pass when `fake`. */
export function listening(options: { size: number; address: RankAddress }, fake = true) {
  let heard: () => void = () => undefined;
  const listens = new Promise<void>((resolve) => (heard = resolve));
  if (fake) jest.useFakeTimers({ doNotFake: [...doNotFake] });
  const group = rank({ rank: 0, ...options, onListening: () => heard() });
  group.catch(() => undefined);
  return { group, listens, pass: (ms: number) => void jest.advanceTimersByTime(ms) };
}

/** Resolves when `holds` does; groups wake whoever waits. */
export function until(group: SocketRankGroup, holds: () => boolean): Promise<void> {
  return new Promise((resolve) => {
    const look = (): void => {
      if (!holds()) return;
      group.onWake = null;
      resolve();
    };
    group.onWake = look;
    look();
  });
}

export const add = (attemptId: number, extra: object = {}): LogRecord => ({
  kind: 'add',
  attemptId,
  requestId: `r${attemptId}`,
  prompt: Int32Array.of(1, -2, 3),
  samplingParams: { stop_words: ['end'], ...extra },
  kvMeta: { base_addr: (1n << 63n) + 5n },
  sourceBlockIds: [4],
  blockHashes: BigInt64Array.of(5n),
});
export const frame = (step: number, ...records: LogRecord[]): StepFrame => ({ step, records });
export const reportBytes = (requestId: number, from: number): Uint8Array =>
  encodeCompletionReport({ requestId, rank: from, failed: false, sourceSafe: true });
export const placementBytes = (requestId: number, from: number): Uint8Array =>
  encodePlacementReport({ requestId, rank: from, digest: BigInt(requestId) << 60n });
export const report = (requestId: number, from: number, placed = false): RankReport => ({
  completion: reportBytes(requestId, from),
  placement: placed ? placementBytes(requestId, from) : null,
});

export async function nextFrame(group: SocketRankGroup): Promise<StepFrame> {
  let taken: StepFrame | null = null;
  await until(group, () => (taken = group.nextFrame()) !== null);
  return taken as unknown as StepFrame;
}

/** A rank that this file speaks for, byte by byte; resolves when rank 0 has sent it a frame of `waitFor`. */
export function rawRank(address: { path: string }, index: number, size: number, waitFor: number): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const attempt = (): void => {
      const socket = connect(address.path);
      open.push({ close: () => socket.destroy() });
      const reader = new FrameReader(1 << 20);
      socket.on('error', (error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT' || error.code === 'ECONNREFUSED') setTimeout(attempt, 10);
        else reject(error);
      });
      socket.on('data', (chunk) =>
        reader.push(chunk, (kind, payload) => {
          if (kind === frameKind.hello) {
            const claim = { rank: index, size, nonce: newNonce() };
            socket.write(frameBytes(frameKind.join, encodeJoin(token, decodeHello(payload), claim)));
          }
          if (kind === waitFor) resolve(socket);
        }),
      );
    };
    attempt();
  });
}
