'use strict';
// Which files are pure policy and what they may not reach. The lint configuration turns this into rules on single
// files; test/unit/tidy-imports.test.ts follows the same lists through whole chains of imports.

/** Pure policy: input in, effects out. No addon, no socket, no clock, no chance. */
const pureFiles = [
  'lib/errors.ts',
  'lib/invariant.ts',
  'lib/limits.ts',
  'lib/events.ts',
  'lib/json.ts',
  'lib/engine-context.ts',
  'lib/memory/*-layout.ts',
  'lib/memory/axes-geometry.ts',
  'lib/memory/index-range.ts',
  'lib/memory/integer-field.ts',
  'lib/memory/layer-cover.ts',
  'lib/memory/allocators.ts',
  'lib/transfer/plan-*.ts',
  'lib/transfer/copy-program.ts',
  'lib/transfer/check-program.ts',
  'lib/transfer/program-*.ts',
  'lib/transfer/peer-*.ts',
  'lib/transfer/rectangle.ts',
  'lib/transfer/transport.ts',
  'lib/transfer/transport-registry.ts',
  'lib/transfer/transport-choice.ts',
  'lib/decode/**/*.ts',
  'lib/prefill/**/*.ts',
  'lib/control/protocol/**/*.ts',
  'lib/control/routing/**/*.ts',
  'lib/control/coordinator/**/*.ts',
  'lib/control/rank-group.ts',
  'lib/control/in-process-rank-group.ts',
  'lib/control/placement.ts',
  'lib/control/agreement.ts',
  'lib/control/ranks/framing.ts',
  'lib/control/ranks/step-frame.ts',
  'lib/control/ranks/wire-value.ts',
  'lib/schedule-log.ts',
  'lib/topology/**/*.ts',
  'lib/scheduling/**/*.ts',
];

/** Built-in modules through which policy could touch the world or read a clock. */
const worldModules = [
  'child_process',
  'cluster',
  'dgram',
  'dns',
  'dns/promises',
  'fs',
  'fs/promises',
  'http',
  'http2',
  'https',
  'inspector',
  'net',
  'os',
  'perf_hooks',
  'process',
  'readline',
  'readline/promises',
  'timers',
  'timers/promises',
  'tls',
  'tty',
  'worker_threads',
];

/** Packages that only one subpath may load, so that the core never needs them. */
const worldPackages = ['zeromq', 'prom-client'];

const worldImport = `^(?:node:)?(?:${worldModules.join('|')})$|^(?:${worldPackages.join('|')})(?:/|$)`;

/** Our own folders that stand on the other side of the line. */
const nativeImport = '(?:^|/)native/';
const scaffoldImport = '(?:^|/)(?:test|examples|scripts|dist)/';

const clockGlobals = [
  'Date',
  'performance',
  'setTimeout',
  'setInterval',
  'setImmediate',
  'process',
  'fetch',
  'WebSocket',
  'Atomics',
];

/** Whether `path` (from the project root, with `/`) is pure policy. */
function isPure(path) {
  return pureFiles.some((glob) => {
    const pattern = glob
      .replace(/[.+^${}()|[\]\\]/g, '\\$&')
      .replace(/\*\*\/|\*/g, (star) => (star === '*' ? '[^/]*' : '(?:.*/)?'));
    return new RegExp(`^${pattern}$`).test(path);
  });
}

module.exports = { isPure, pureFiles, worldImport, nativeImport, scaffoldImport, clockGlobals };
