/**
 * What a request costs the coordinator's process: CPU time with 128 requests in flight, beside bare echoes of the same
 * frames in the same run; requests a second; and what a hop through it takes longer than one through an echo.
 */
import type { BenchRow } from '../../support/bench-row.js';
import type { Setting } from './frames.js';
import { coordinatorLoad, echoLoad, type Hops, type Load } from './load.js';
import { pythonMissing, startCoordinator, startEcho, startPythonEcho, type Measured } from './processes.js';

const inFlight = 128;
const million = 1_000_000;
const echoRatioMax = 2.5;
const limitsUs: Readonly<Record<Setting, Readonly<Record<'few' | 'million', number>>>> = {
  aggregated: { few: 93, million: 193 },
  disaggregated: { few: 206, million: 252 },
};
const titles: Readonly<Record<Setting, string>> = {
  aggregated: 'two engines without roles',
  disaggregated: 'two prefill and two decode engines',
};

/** How much is run. */
export interface Amount {
  readonly requests: number;
  readonly warmup: number;
  readonly singles: number;
}

interface Cost {
  readonly cpuUs: number;
  readonly perSecond: number;
  readonly hops: Hops;
}

async function measure(measured: Measured, load: Load, amount: Amount): Promise<Cost> {
  await load.run(amount.warmup, inFlight);
  const [begun, before] = [performance.now(), measured.cpuUs()];
  await load.run(amount.requests, inFlight);
  const cpuUs = (measured.cpuUs() - before) / amount.requests;
  const perSecond = (amount.requests / (performance.now() - begun)) * 1000;
  const hops = amount.singles === 0 ? [] : await load.run(amount.singles, 1);
  return { cpuUs, perSecond, hops };
}

async function ofCoordinator(setting: Setting, blocks: number, amount: Amount): Promise<Cost> {
  const measured = await startCoordinator(setting);
  try {
    const load = await coordinatorLoad(measured.address, setting, blocks === 0 ? 256 : Math.floor(blocks / 64));
    try {
      if (blocks > 0) await measured.preload(blocks);
      return await measure(measured, load, amount);
    } finally {
      load.close();
    }
  } finally {
    await measured.end();
  }
}

async function ofEcho(start: (setting: Setting) => Promise<Measured>, setting: Setting, amount: Amount): Promise<Cost> {
  const measured = await start(setting);
  try {
    const load = echoLoad(measured.address, setting);
    try {
      return await measure(measured, load, amount);
    } finally {
      load.close();
    }
  } finally {
    await measured.end();
  }
}

const informs = { against: null, ratio: null, target: null, ok: true } as const;

function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!;
}

function latencies(setting: Setting, hops: Hops, bare: Hops): BenchRow[] {
  return [0.5, 0.99].map((share) => {
    const [through, echoed] = [quantile(hops, share), quantile(bare, share)];
    return {
      ...informs,
      name: `added latency a hop, one request in flight, ${titles[setting]}, p${share * 100}`,
      value: through - echoed,
      unit: 'µs',
      against: `${through.toFixed(0)} µs a hop, ${echoed.toFixed(0)} through the echo`,
    };
  });
}

/**
 * @param note - told what is being measured
 * @param pythonNote - told why there is no pyzmq echo
 */
export async function requestRows(amount: Amount, note: (what: string) => void): Promise<BenchRow[]> {
  const rows: BenchRow[] = [];
  for (const setting of ['aggregated', 'disaggregated'] as const) {
    note(`${titles[setting]}: a bare zeromq.js echo`);
    const echo = await ofEcho(startEcho, setting, amount);
    for (const [size, blocks] of [
      ['few', 0],
      ['million', million],
    ] as const) {
      note(`${titles[setting]}: the coordinator${blocks === 0 ? '' : ' with a million affinity entries'}`);
      const cost = await ofCoordinator(setting, blocks, amount);
      const limit = limitsUs[setting][size];
      const table = blocks === 0 ? '' : ', a million affinity entries';
      const ratio = cost.cpuUs / echo.cpuUs;
      const isCompared = blocks === 0;
      rows.push({
        name: `CPU a request, ${titles[setting]}${table}`,
        value: cost.cpuUs,
        unit: 'µs',
        against: 'a bare zeromq.js echo of the same frames',
        ratio,
        target: isCompared ? `≤ ${limit} µs, ratio ≤ ${echoRatioMax}` : `≤ ${limit} µs`,
        ok: cost.cpuUs <= limit && (!isCompared || ratio <= echoRatioMax),
      });
      rows.push({
        ...informs,
        name: `requests a second, ${inFlight} in flight, ${titles[setting]}${table}`,
        value: cost.perSecond,
        unit: '1/s',
      });
      if (blocks === 0) rows.push(...latencies(setting, cost.hops, echo.hops));
    }
    rows.push({
      ...informs,
      name: `CPU a request, bare zeromq.js echo, ${titles[setting]}`,
      value: echo.cpuUs,
      unit: 'µs',
    });
    if (pythonMissing !== null) continue;
    note(`${titles[setting]}: a bare pyzmq + msgpack echo`);
    const witness = await ofEcho(startPythonEcho, setting, { ...amount, singles: 0 });
    rows.push({
      ...informs,
      name: `CPU a request, bare pyzmq + msgpack echo, ${titles[setting]}`,
      value: witness.cpuUs,
      unit: 'µs',
    });
  }
  if (pythonMissing !== null) note(`1 part left out: pyzmq: ${pythonMissing}`);
  return rows;
}
