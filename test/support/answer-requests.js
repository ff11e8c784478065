'use strict';
// The child's half of test/support/child-process.ts: `answerRequests({command: (values) => answer})`. A handler may be
// async; what it throws is the answer too. Ends the process when the test's process goes away.
function answerRequests(handlers) {
  process.on('disconnect', () => process.exit(0));
  process.on('message', async ({ id, command, ...values }) => {
    try {
      const handler = handlers[command];
      if (handler === undefined) throw new Error(`no command ${command}`);
      process.send({ id, answer: await handler(values) });
    } catch (error) {
      process.send({ id, error: `${error.code ?? ''} ${error.stack ?? error}` });
    }
  });
}

module.exports = { answerRequests };
