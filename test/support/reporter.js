'use strict';
// Counts one Jest run for scripts/test.js and writes the count to the file named by STATE_HANDOFF_TEST_COUNT.
// A file that does not load, a test without an end and a skip without a reason each count as failed.
const { writeFileSync } = require('node:fs');
const { relative } = require('node:path');

const leftOut = /\[left out: ([^:\]]+): ([^\]]+)\]/;

/** `results` is Jest's own aggregated result. */
function countResults(results, rootDir) {
  const count = { passed: 0, failed: 0, skipped: 0, failures: [], leftOut: {} };
  const fail = (what) => {
    count.failed += 1;
    count.failures.push(what);
  };
  for (const file of results.testResults) {
    const path = relative(rootDir, file.testFilePath);
    const broken = file.testExecError ?? null;
    if (broken !== null) {
      const [first] = String(broken.message ?? file.failureMessage ?? '').split('\n');
      fail(`${path}: did not run: ${first}`);
    }
    for (const test of file.testResults) {
      const name = `${path}: ${[...test.ancestorTitles, test.title].join(' › ')}`;
      if (test.status === 'passed') {
        count.passed += 1;
      } else if (test.status === 'pending' && leftOut.test(name)) {
        const [, part, reason] = leftOut.exec(name);
        const entry = (count.leftOut[part] ??= { reason, tests: 0 });
        entry.tests += 1;
        count.skipped += 1;
      } else if (test.status === 'failed') {
        fail(name);
      } else {
        fail(`${name}: ${test.status} without a reason (see test/support/optional.ts)`);
      }
    }
  }
  if (results.runExecError) fail(`jest: ${results.runExecError.message}`);
  if (results.wasInterrupted) fail('jest: interrupted');
  return count;
}

class CountingReporter {
  constructor(globalConfig) {
    this.rootDir = globalConfig.rootDir;
  }

  onRunComplete(_contexts, results) {
    const path = process.env.STATE_HANDOFF_TEST_COUNT;
    if (path !== undefined) writeFileSync(path, JSON.stringify(countResults(results, this.rootDir)));
  }
}

module.exports = CountingReporter;
module.exports.countResults = countResults;
