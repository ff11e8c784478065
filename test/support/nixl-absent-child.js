'use strict';
// A process that never had NIXL tries to open the transport, or to set up an engine, and says how that went; run by
// test/cross-process/nixl-absent.test.ts.
const { allocateHostRegion } = require('../../dist/lib/memory/host-region.js');
const { NixlTransport } = require('../../dist/lib/transfer/transports/nixl.js');
const { StateHandoff } = require('../../dist/lib/index.js');
const { Engine, nativeMemory, smallModel } = require('../../dist/examples/engine/index.js');
const { answerRequests } = require('./answer-requests.js');

function engine() {
  const model = smallModel('attention');
  const memory = nativeMemory({ model, blockSize: 4, poolSize: 8, maxRequests: 2 });
  return new Engine({ role: 'prefill', model, memory, maxRequests: 2, maxSequenceLength: 32 });
}

answerRequests({
  /** What a set-up engine offers, or why it was not set up. */
  setup: async ({ backend }) => {
    const handoff = new StateHandoff(engine());
    try {
      await handoff.setupKvTransfer('prefill', backend);
      return { transports: handoff.describeInstance().transports };
    } catch ({ code, message, details }) {
      return { code, message, reasons: details.reasons };
    } finally {
      await handoff.close();
    }
  },
  open: async ({ libraries }) => {
    const transport = new NixlTransport({ libraries });
    const region = allocateHostRegion({ bytes: 4096 });
    transport.register(region);
    try {
      await transport.open();
      return null;
    } catch ({ code, message }) {
      return { code, message };
    } finally {
      await transport.close();
      region.close();
    }
  },
});
