/** One-line faults of the coordinator's core, each of which the simulated control planes must find. */
import type { PlantedFault } from '../planted-faults.js';

const table = 'lib/control/coordinator/request-table.ts';
const flow = 'lib/control/coordinator/request-flow.ts';
const registry = 'lib/control/coordinator/engine-registry.ts';

export const plantedFaults: readonly PlantedFault[] = [
  {
    name: 'a source that was read keeps its pin',
    file: table,
    from: "readDone: to('generating', 'releaseSource'),",
    to: "readDone: to('generating'),",
  },
  {
    name: 'a source in doubt is released',
    file: table,
    from: "const intoDoubt = to('doubtful', 'tellErrorUnsafe', 'releaseDecode');",
    to: "const intoDoubt = to('doubtful', 'tellErrorUnsafe', 'releaseSource', 'releaseDecode');",
  },
  {
    name: 'the source of a reader that is lost is released as if it had sent the state itself',
    file: registry,
    from: "if (request.isPushed && request.decode === engine && options.behaviour === 'gen-c')",
    to: "if (request.decode === engine && options.behaviour === 'gen-c')",
  },
  {
    name: 'a request that fails in the queue of decode keeps its pin',
    file: table,
    from: "const queuedEnd = to('gone', 'leaveQueue', 'tellErrorSafe', 'releaseSource');",
    to: "const queuedEnd = to('gone', 'leaveQueue', 'tellErrorSafe');",
  },
  {
    name: 'a request that was aborted in the queue stays in it',
    file: table,
    from: "abort: to('gone', 'leaveQueue', 'releaseSource', 'tellAborted'),",
    to: "abort: to('gone', 'releaseSource', 'tellAborted'),",
  },
  {
    name: 'a reader is forgotten when its source is away',
    file: table,
    from: "prefillLost: to('abandoned', 'tellErrorSafe', 'abortDecode', 'loseSource'),",
    to: "prefillLost: to('gone', 'tellErrorSafe', 'abortDecode', 'loseSource', 'releaseDecode'),",
  },
  {
    name: 'a finished request keeps its place on decode',
    file: table,
    from: "const runCancelled = to('gone', 'releaseDecode', 'tellAborted');",
    to: "const runCancelled = to('gone', 'tellAborted');",
  },
  {
    name: 'one request more than an engine takes',
    file: 'lib/control/coordinator/engine-record.ts',
    from: 'return this.active < this.requestCapacity && this.slotsUsed + slots <= this.slotCapacity;',
    to: 'return this.active <= this.requestCapacity && this.slotsUsed + slots <= this.slotCapacity;',
  },
  {
    name: 'slots are not given back',
    file: 'lib/control/coordinator/engine-record.ts',
    from: 'this.slotsUsed -= slots;',
    to: '',
  },
  {
    name: 'room on prefill wakes nobody',
    file: flow,
    from: 'this.#drains.add(prefill!);',
    to: '',
  },
  {
    name: 'a reader that comes back still reading counts as done',
    file: registry,
    from: 'if (!engine.held.has(request.id)) {',
    to: 'if (request.id >= 0) {',
  },
  {
    name: 'a release that was lost with its connection is not said again',
    file: registry,
    from: '} else if (isMinted(requestId)) {',
    to: '} else if (isMinted(requestId) && requestId < 0) {',
  },
  {
    name: 'pins of an earlier run are released as if they were ours',
    file: registry,
    from: '} else if (isMinted(requestId)) {',
    to: '} else if (isMinted(requestId) || requestId >= 0) {',
  },
  {
    name: 'pins of an earlier run are released while their reader reads',
    file: 'lib/control/coordinator/held-pins.ts',
    from: 'return !reader.held.has(pin.requestId);',
    to: 'return pin.requestId >= 0;',
  },
  {
    name: 'an unsafe confirmation counts as a safe one',
    file: 'lib/control/coordinator/engine-desk.ts',
    from: "if (!message.sourceSafe) return 'the source is not safe yet';",
    to: '',
  },
  {
    name: 'a request that comes twice runs twice',
    file: 'lib/control/coordinator/coordinator.ts',
    from: "if (client.requests.has(requestId) || client.hasEnded(requestId)) return 'the request was submitted before';",
    to: '',
  },
  {
    name: 'a late prefill keeps its pin',
    file: 'lib/control/coordinator/ownership-desk.ts',
    from: 'if (ledger.records.has(requestId) || (!isMinted(requestId) && engine.held.has(requestId))) return;',
    to: 'if (requestId >= 0) return;',
  },
  {
    name: 'time never runs out',
    file: 'lib/control/coordinator/coordinator.ts',
    from: 'if (nowMs >= request.deadlineAt)',
    to: 'if (nowMs >= request.deadlineAt && nowMs < 0)',
  },
];
