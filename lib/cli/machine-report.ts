/**
 * What this machine has for handoffs: for each transport what was found where, its version, what it lacks and what mends
 * that. Finds out by trying: makes each transport with a small region, as an engine would, and closes it again.
 */
import { existsSync, readdirSync } from 'node:fs';
import { basename, dirname, isAbsolute } from 'node:path';
import { isHandoffError } from '../errors.js';
import type { JsonObject } from '../json.js';
import { allocateCudaRegion } from '../memory/cuda-region.js';
import { describeCuda } from '../memory/cuda-driver-path.js';
import { allocateHostRegion } from '../memory/host-region.js';
import type { Region } from '../memory/region.js';
import type { NativeCudaDescription } from '../native/cuda-types.js';
import type { Transport } from '../transfer/transport.js';
import type { TransportEntry } from '../transfer/transport-registry.js';
import { ownPackage } from '../package-root.js';
import { nixlCandidates, nixlWheel } from '../transfer/transports/nixl-library.js';
import { NixlTransport } from '../transfer/transports/nixl.js';
import { shippedTransports } from '../transfer/transports/shipped.js';

/** One transport on one machine; plain JSON data. */
export interface TransportReport {
  readonly name: string;
  readonly usable: boolean;
  /** Files that were found, best first. */
  readonly found: readonly string[];
  readonly version: string | null;
  /** Why it cannot be used; null when it can. */
  readonly lacks: string | null;
  /** A command or a variable that mends it. */
  readonly fix: string | null;
  /** What is worth knowing all the same. */
  readonly notes: readonly string[];
}

/** One machine; plain JSON data. */
export interface MachineReport {
  readonly format: 1;
  readonly sdk: string;
  readonly node: string;
  readonly platform: string;
  /** A name of the running system that tells nothing else about it; null where the system does not say. */
  readonly machine: string | null;
  readonly transports: readonly TransportReport[];
}

/** Looks at every transport of this release. Takes a second or two where there is a NIXL. */
export async function describeMachine(): Promise<MachineReport> {
  const transports: TransportReport[] = [];
  let machine: string | null = null;
  for (const entry of shippedTransports as readonly TransportEntry[]) {
    const { report, grant } = await (entry.name === 'nixl' ? lookAtNixl(entry) : lookAt(entry));
    if (entry.name === 'host' && typeof grant?.['machine'] === 'string') machine = grant['machine'];
    transports.push(report);
  }
  return {
    format: 1,
    sdk: ownPackage()?.version ?? 'unknown',
    node: process.versions.node,
    platform: `${process.platform} ${process.arch}`,
    machine,
    transports,
  };
}

interface Look {
  readonly report: TransportReport;
  readonly grant: JsonObject | null;
}

/** Makes, opens and closes one. */
async function attempt(
  create: () => Transport,
  look: (transport: Transport) => void = () => undefined,
): Promise<{ readonly lacks: string | null; readonly code: string | null; readonly grant: JsonObject | null }> {
  let transport: Transport | null = null;
  let region: Region | null = null;
  try {
    transport = create();
    const isHost = transport.capabilities.memoryKinds.includes('host');
    region = isHost ? allocateHostRegion({ bytes: 4096 }) : allocateCudaRegion({ bytes: 4096 });
    transport.register(region);
    await transport.open?.();
    look(transport);
    return { lacks: null, code: null, grant: transport.grant() as JsonObject };
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    return { lacks: error.message, code: error.code, grant: null };
  } finally {
    await transport?.close();
    region?.close();
  }
}

async function lookAt(entry: TransportEntry): Promise<Look> {
  const { lacks, code, grant } = await attempt(() => entry.create({ exports: true }));
  return {
    report: {
      name: entry.name,
      usable: lacks === null,
      found: [],
      version: null,
      lacks,
      fix: code === 'NATIVE_UNAVAILABLE' ? 'npm rebuild state-handoff' : null,
      notes: entry.name === 'cuda-ipc' && lacks === null ? gpuNotes(describeCuda().devices) : [],
    },
    grant,
  };
}

/** One line for each GPU: what it is, and how it reaches the others. */
export function gpuNotes(devices: NativeCudaDescription['devices']): string[] {
  return devices.map(({ ordinal, name, bytes, capability, reads, links }) => {
    const others = devices.filter((other) => other.ordinal !== ordinal);
    const ways = others.map((other) => {
      if (!reads.includes(other.ordinal)) return `cannot read GPU ${other.ordinal}`;
      return `reads GPU ${other.ordinal} over ${links.includes(other.ordinal) ? 'NVLink' : 'PCIe'}`;
    });
    return [`GPU ${ordinal}: ${name}`, `${Math.round(bytes / 2 ** 30)} GiB`, `sm ${capability}`, ...ways].join(', ');
  });
}

async function lookAtNixl({ name }: TransportEntry): Promise<Look> {
  const notes: string[] = [];
  let found: string[] = [];
  let library: string | null = null;
  const { lacks, code, grant } = await attempt(
    () => {
      const candidates = nixlCandidates();
      found = candidates.filter((path) => isAbsolute(path));
      return new NixlTransport({ libraries: candidates });
    },
    (transport) => (library = (transport as NixlTransport).library),
  );
  const layers = process.env['UCX_TLS'];
  if (layers !== undefined && !layers.startsWith('^') && !/(?:^|,)(?:tcp|all)(?:,|$)/.test(layers)) {
    notes.push(`UCX_TLS is ${layers}: UCX needs tcp beside it to notice that a peer is gone`);
  }
  const install = `pip install ${nixlWheel.name}==${nixlWheel.version}, or STATE_HANDOFF_NIXL=/path/to/libnixl_capi.so`;
  return {
    report: {
      name,
      usable: lacks === null,
      found: library === null || found.includes(library) ? found : [library, ...found],
      version: library === null ? null : wheelVersion(library),
      lacks,
      fix:
        lacks === null
          ? null
          : code === 'NATIVE_UNAVAILABLE'
            ? 'npm rebuild state-handoff'
            : code === 'ARGUMENT_INVALID'
              ? 'unset STATE_HANDOFF_NIXL, or give it the path of a file'
              : install,
      notes,
    },
    grant,
  };
}

/** From the name of the folder that a wheel leaves beside its libraries; null for a library from elsewhere. */
export function wheelVersion(library: string): string | null {
  const packages = dirname(dirname(library));
  const wheel = /^\.(nixl_cu\d+)\.mesonpy\.libs$/.exec(basename(dirname(library)))?.[1];
  if (wheel === undefined || !existsSync(packages)) return null;
  const info = readdirSync(packages).find((name) => name.startsWith(`${wheel}-`) && name.endsWith('.dist-info'));
  return info === undefined ? null : info.slice(wheel.length + 1, -'.dist-info'.length);
}
