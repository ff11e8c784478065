/** Two ends of the host transport in one process, connected, and closed after each test. */
import { allocateHostRegion } from '../../lib/memory/host-region.js';
import type { Region } from '../../lib/memory/region.js';
import { HostTransport, type HostTransportOptions } from '../../lib/transfer/transports/host.js';
import type { Peer } from '../../lib/transfer/transport.js';
import { patientMs, settled } from './host-fixture.js';

export interface Ends {
  readonly exporter: HostTransport;
  readonly importer: HostTransport;
  readonly peer: Peer;
  readonly source: Region;
  readonly target: Region;
}

const open: Ends[] = [];

export async function twoEnds(bytes: number, options: HostTransportOptions = {}): Promise<Ends> {
  const exporter = new HostTransport({ handshakeMs: patientMs });
  const importer = new HostTransport({ handshakeMs: patientMs, ...options });
  const source = allocateHostRegion({ bytes });
  const target = allocateHostRegion({ bytes });
  exporter.register(source);
  importer.register(target);
  const peer = await settled(importer.connect(exporter.grant()));
  const ends = { exporter, importer, peer, source, target };
  open.push(ends);
  return ends;
}

afterEach(async () => {
  for (const { exporter, importer, source, target } of open.splice(0)) {
    await importer.close();
    await exporter.close();
    source.close();
    target.close();
  }
});
