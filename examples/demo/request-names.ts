/**
 * Which request an engine speaks of. Behind a coordinator engines know a request by its number, and one of them says which
 * request that is; what another says of a number before that waits.
 */
import type { Observation } from './observation.js';

export class RequestNames {
  private readonly labels = new Map<string, string>();
  private unnamed: { readonly label: string; readonly act: (seen: Observation) => void }[] = [];

  /** @param observations - by the demo's own names */
  constructor(
    private readonly observations: ReadonlyMap<string, Observation>,
    private readonly hasNumbers: boolean,
  ) {}

  /** @throws when nobody submitted `id` */
  name(label: string, id: string): Observation {
    const seen = this.of(id);
    this.labels.set(label, id);
    const named = this.unnamed.filter((each) => each.label === label);
    this.unnamed = this.unnamed.filter((each) => each.label !== label);
    for (const { act } of named) act(seen);
    return seen;
  }

  /** @param id - a name or a number. @throws when nobody submitted it */
  about(id: string, act: (seen: Observation) => void): void {
    const isUnnamed = this.hasNumbers && !this.observations.has(id) && !this.labels.has(id);
    if (isUnnamed) this.unnamed.push({ label: id, act });
    else act(this.of(this.labels.get(id) ?? id));
  }

  private of(id: string): Observation {
    const seen = this.observations.get(id);
    if (seen === undefined)
      throw new Error(`a worker speaks of the request ${JSON.stringify(id)}, which nobody submitted`);
    return seen;
  }
}
