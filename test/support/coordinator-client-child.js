'use strict';
// One client of a coordinator, in a process of its own. See test/support/child-process.ts.
const { join } = require('node:path');
const { answerRequests } = require('./answer-requests.js');

const { CoordinatorClient, wireMap } = require(join(__dirname, '..', '..', 'dist', 'lib', 'coordinator.js'));

let client = null;

answerRequests({
  async connect({ address }) {
    client = await CoordinatorClient.connect({ address, connectMs: 30_000 });
  },
  /** Answers at once; the request goes on. */
  ask({ prompt, count }) {
    client.addRequest(prompt, wireMap({ num_tokens_to_generate: count, temperature: 0 }));
  },
});
