'use strict';
// One engine behind a coordinator, in a process of its own: the example engine, stepped all the time. With `hold`, decode
// stands still once a request is imported and has its first token. See test/support/child-process.ts.
const { join } = require('node:path');
const { answerRequests } = require('./answer-requests.js');

const dist = join(__dirname, '..', '..', 'dist');
const { ToyEngine } = require(join(dist, 'examples', 'custom-engine.js'));
const { CoordinatedEngine } = require(join(dist, 'lib', 'coordinator.js'));

const engine = new ToyEngine();
let end = null;
let holds = false;

answerRequests({
  async connect({ role, address, hold }) {
    holds = hold === true;
    await engine.handoff.setupKvTransfer(role, 'host');
    end = await CoordinatedEngine.connect({
      handoff: engine.handoff,
      address,
      connectMs: 30_000,
      statusMs: 50,
      prefill: ({ requestId, prompt }) => engine.prefill(requestId, [...prompt]),
    });
    setInterval(() => {
      end.drain();
      if (role === 'prefill') engine.handoff.pollPendingKvPushes();
      if (role === 'decode' && !holds) engine.step();
    }, 1);
    return process.pid;
  },
  go() {
    holds = false;
  },
  state() {
    const { pins, imports, quarantine } = engine.handoff.inspect();
    return {
      isRegistered: end.isRegistered,
      pins: pins.map(({ requestId }) => requestId),
      imports: imports.length,
      quarantine: quarantine.length,
      free: engine.blocks.freeCount + engine.blocks.evictableCount,
    };
  },
});
