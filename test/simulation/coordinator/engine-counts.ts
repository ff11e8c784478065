/** What the coordinator's counts of its engines must never say. Looks at a snapshot, knows no engine. */
import type { CoordinatorSnapshot } from '../../../lib/control/coordinator/interface.js';

type Engines = CoordinatorSnapshot['engines'];

/** At any time. @returns what is wrong */
export function miscounted(engines: Engines): string[] {
  return engines.flatMap(({ peer, queued, active, requestCapacity, slotsUsed, slotCapacity }) => {
    const hasRoom = active < requestCapacity && (slotCapacity === 0 || slotsUsed < slotCapacity);
    return [
      ...(queued > 0 && hasRoom ? [`${peer} has room, and ${queued} wait for it`] : []),
      ...(active > requestCapacity || slotsUsed > slotCapacity ? [`${peer} has given more than it has`] : []),
      ...(active < 0 || slotsUsed < 0 ? [`${peer} counts below nothing`] : []),
    ];
  });
}

/** When all is over. @returns what is left */
export function uncleared(engines: Engines): string[] {
  return engines
    .filter(({ active, queued, slotsUsed }) => queued + active + slotsUsed > 0)
    .map(({ peer, active, queued, slotsUsed }) => {
      return `${peer} ends with ${active} active, ${queued} queued, ${slotsUsed} slots`;
    });
}
