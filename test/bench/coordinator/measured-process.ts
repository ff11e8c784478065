/**
 * What the coordinator's bench measures, in a process of its own and as its parent asks: the coordinator as it is shipped,
 * or a ROUTER that sends back what it gets and decodes nothing.
 */
import { Router } from 'zeromq';
import { growHeapFreely } from '../../../lib/cli/heap-growth.js';
import { Coordinator } from '../../../lib/control/coordinator/coordinator.js';
import { CoordinatorServer } from '../../../lib/control/zeromq/coordinator-server.js';
import { encodeValue } from '../../../lib/control/protocol/wire-bytes.js';
import type { Holdings } from './processes.js';
import { blocksOfPrompt, finishedBody, hashesOf, type Setting } from './frames.js';

/** Room for a million blocks and what the requests of the bench add. */
const affinityBlocksMax = 2 ** 21;
const heartbeatMs = 60_000;

let core: Coordinator | null = null;
let server: CoordinatorServer | null = null;

async function startCoordinator(setting: Setting): Promise<string> {
  core = new Coordinator({
    instance: 'bench',
    isDisaggregated: setting === 'disaggregated',
    policy: 'longest_prefix',
    affinityTtlMs: 3_600_000,
    affinityBlocksMax,
  });
  growHeapFreely();
  server = await CoordinatorServer.start({ core, heartbeatMs });
  return server.address;
}

/** Requests of a client that nobody sees fill the table; the engines have registered. */
function preload(blocks: number): number {
  const [owner, loader] = [core!, 'the bench itself'];
  const now = performance.now();
  const prompt = encodeValue([1]);
  owner.receive(now, loader, { header: 'CONNECT' });
  for (let index = 0; index * blocksOfPrompt < blocks; index++) {
    const submit = {
      header: 'SUBMIT_REQUEST',
      requestId: index,
      prompt,
      sampling: new Map(),
      blockHashes: hashesOf(index),
      mediaMeta: null,
      media: null,
      offloadParams: null,
    } as const;
    for (const effect of owner.receive(now, loader, submit)) {
      if (effect.kind !== 'send' || effect.message.header !== 'SUBMIT_REQUEST') continue;
      const { requestId } = effect.message;
      owner.receive(now, effect.peer, {
        header: 'ENGINE_REPLY',
        replies: [{ requestId, needsDetokenize: false, body: finishedBody }],
      });
    }
  }
  owner.receive(now, loader, { header: 'DISCONNECT' });
  return owner.snapshot(now).affinityEntries;
}

function holdings(): Holdings {
  gc!();
  const { requests, pins } = core!.snapshot(performance.now());
  const { heapUsed, arrayBuffers, rss } = process.memoryUsage();
  const living = Object.values(requests).reduce((sum, count) => sum + count, pins.length);
  return { heapBytes: heapUsed + arrayBuffers, residentBytes: rss, requests: living };
}

/**
 * What it gets goes back. With roles the coordinator sends every prompt twice, to prefill and to decode: here it goes back
 * with the second of a request's four messages once more.
 */
async function startEcho(setting: Setting): Promise<string> {
  const router = new Router({ sendHighWaterMark: 0, receiveHighWaterMark: 0, linger: 0 });
  await router.bind('tcp://127.0.0.1:0');
  void (async () => {
    let prompt: Buffer | undefined;
    for (let count = 0; ; count++) {
      const parts = await router.receive();
      if (setting === 'disaggregated') {
        if (count % 4 === 0) prompt = parts[promptFrame];
        else if (count % 4 === 1 && prompt !== undefined) parts.push(prompt);
      }
      await router.send(parts);
    }
  })();
  return router.lastEndpoint!;
}

/** In a client's request, after the identity and the metadata. */
const promptFrame = 2;

type Question =
  | { readonly command: 'coordinator'; readonly setting: Setting }
  | { readonly command: 'echo'; readonly setting: Setting }
  | { readonly command: 'preload'; readonly blocks: number }
  | { readonly command: 'holdings' }
  | { readonly command: 'end' };

async function answer(question: Question): Promise<string | number | Holdings> {
  switch (question.command) {
    case 'coordinator':
      return startCoordinator(question.setting);
    case 'echo':
      return startEcho(question.setting);
    case 'preload':
      return preload(question.blocks);
    case 'holdings':
      return holdings();
    case 'end':
      await server?.close();
      return 0;
  }
}

process.on('message', (question: Question) => {
  void answer(question).then((value) => {
    process.send!({ value }, () => {
      if (question.command === 'end') process.exit(0);
    });
  });
});
process.on('disconnect', () => process.exit(0));
