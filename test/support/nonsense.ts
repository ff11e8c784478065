/** Right arguments made wrong, one value after another: what plain JavaScript or a client's JSON may bring. */

export type Values = readonly unknown[];

const nonsense: Values = [undefined, null, 7, -1, Number.NaN, 'x', true, 7n, [], [null], {}, () => null, Symbol('s')];

/** `value` with one value after another, at any depth of plain lists and objects, replaced or left out. */
export function* spoiled(value: unknown, path: string): Generator<readonly [path: string, value: unknown]> {
  for (const bad of nonsense) yield [`${path} = ${shown(bad)}`, bad];
  if (Array.isArray(value)) {
    for (const [index, item] of value.entries()) {
      for (const [at, bad] of spoiled(item, `${path}[${index}]`)) yield [at, value.with(index, bad)];
    }
  } else if (typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype) {
    for (const [key, item] of Object.entries(value)) {
      for (const [at, bad] of spoiled(item, `${path}.${key}`)) yield [at, { ...value, [key]: bad }];
    }
  }
}
const shown = (value: unknown): string =>
  typeof value === 'object' && value !== null
    ? JSON.stringify(value)
    : typeof value === 'bigint'
      ? '7n'
      : String(value);
