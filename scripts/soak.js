'use strict';
// `npm run soak [-- --messages N]`: a million messages through a coordinator process with two prefill and two decode engines
// that reply at once; what the process holds after each tenth. Ends with `soak: N messages, flat` or what was wrong and
// status 1.
const { join } = require('node:path');
const { loadTypescript, root } = require('./load-typescript');

const usage = `usage: npm run soak [-- --messages N]

  --messages N   in and out of the coordinator; a million unless given
  --help         this`;
const mib = (bytes) => (bytes / 2 ** 20).toFixed(1);

function parseArguments(args) {
  if (args.length === 0) return { messages: 1_000_000 };
  if (args.length === 1 && args[0] === '--help') return { help: true };
  const messages = Number(args[1]);
  if (args.length !== 2 || args[0] !== '--messages') {
    throw new Error(`soak: expected --messages N or --help, got ${args.join(' ')}`);
  }
  if (!Number.isSafeInteger(messages) || messages < 1) {
    throw new Error(`soak: --messages: expected an integer of at least 1, got ${args[1]}`);
  }
  return { messages };
}

async function main() {
  const { messages, help } = parseArguments(process.argv.slice(2));
  if (help) return void console.log(usage);
  loadTypescript();
  const { soak } = require(join(root, 'test', 'bench', 'coordinator', 'soak.ts'));
  const begun = performance.now();
  const seen = await soak(messages, (part, { heapBytes, residentBytes }) => {
    const seconds = ((performance.now() - begun) / 1000).toFixed(0);
    console.log(`${part}0 %, ${seconds} s: heap ${mib(heapBytes)} MiB, resident ${mib(residentBytes)} MiB`);
  });
  console.log(`heap from 20 % on: ${mib(seen.grown)} MiB more, at most ${mib(seen.grownMax)} allowed`);
  console.log(`soak: ${seen.messages} messages, ${seen.wrong ?? 'flat'}`);
  process.exitCode = seen.wrong === null ? 0 : 1;
}

main()
  .catch((error) => {
    console.error(error.message.startsWith('soak') ? error.message : error);
    process.exitCode = 2;
  })
  .finally(() => process.exit());
