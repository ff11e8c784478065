/** Short ways to write what pools take, for tests. */

export const ids = (...list: number[]): Int32Array => Int32Array.from(list);

export const hashes = (...list: (number | bigint)[]): BigInt64Array => BigInt64Array.from(list.map(BigInt));

/** The code of what `call` throws, or what it returns. */
export function codeOf(call: () => unknown): unknown {
  try {
    return call();
  } catch (error) {
    return (error as { code: unknown }).code;
  }
}
