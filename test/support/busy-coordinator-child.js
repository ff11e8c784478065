'use strict';
// A coordinator whose own thread stands still when it is told to, while its socket's thread goes on: as in a long pause of
// a garbage collection. See test/support/child-process.ts.
const { join } = require('node:path');
const { answerRequests } = require('./answer-requests.js');

const { Coordinator, CoordinatorServer } = require(join(__dirname, '..', '..', 'dist', 'lib', 'coordinator.js'));

let server = null;

answerRequests({
  async start() {
    const core = new Coordinator({ instance: 'run', isDisaggregated: true });
    server = await CoordinatorServer.start({ core, heartbeatMs: 100 });
    return server.address;
  },
  /** Answers before it begins. */
  standStill({ ms }) {
    setTimeout(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms), 50);
  },
  received() {
    return server.wire.received;
  },
});
