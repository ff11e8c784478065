/** A peer that says more than a busy coordinator reads, and leaves: the coordinator outlives it. */
import { once } from 'node:events';
import { Dealer } from 'zeromq';
import { startChild } from '../support/child-process.js';

test('a coordinator outlives a peer that floods it and leaves while it stands still', async () => {
  const child = startChild('busy-coordinator');
  const address = await child.ask<string>('start');
  const ended = once(child.process, 'exit').then(([code, signal]) => `${code} ${signal}`);
  const peer = new Dealer({ linger: 0, sendHighWaterMark: 0 });
  peer.connect(address);
  const message = Buffer.alloc(1_000);
  await peer.send(message);
  while ((await child.ask<number>('received')) === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  await child.ask('standStill', { ms: 3_000 });
  // More than the coordinator's socket takes in, so that what comes last is an end with something before it.
  for (let count = 0; count < 30_000; count++) await peer.send(message);
  await new Promise((resolve) => setTimeout(resolve, 500));
  peer.close();
  let heard: number | string = 0;
  for (const end = Date.now() + 60_000; typeof heard === 'number' && heard < 500 && Date.now() < end;) {
    heard = await Promise.race([ended, child.ask<number>('received')]);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  expect(heard).toBeGreaterThanOrEqual(500);
}, 120_000);
