/** Waiting for what other threads and processes do: by looking again, with a deadline that only a fault reaches. */

/** @throws after 30 seconds */
export async function until(what: string, holds: () => boolean): Promise<void> {
  const end = Date.now() + 30_000;
  while (!holds()) {
    if (Date.now() > end) throw new Error(`did not happen: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
