/**
 * Parts of the suite that only some machines can run. Owns the one way to leave tests out: with a reason that the
 * reporter counts and prints. `REQUIRE_<PART>=1` turns leaving out into a failure, so that a machine that has the part
 * cannot pass without it. `.skip` anywhere else is refused by the tidy tests.
 */

/**
 * `describe`, when the machine has what `part` needs.
 *
 * @param part - short name, for example `gpu`
 * @param missing - why this machine cannot run it; null when it can
 */
export function describeOptional(part: string, missing: string | null, title: string, body: () => void): void {
  if (missing === null) {
    describe(title, body);
  } else if (process.env[`REQUIRE_${part.toUpperCase().replaceAll('-', '_')}`] === '1') {
    describe(title, () => {
      test(`${part} is required here`, () => {
        throw new Error(`${part} cannot be tested: ${missing}`);
      });
    });
  } else {
    describe.skip(`${title} [left out: ${part}: ${missing}]`, body);
  }
}
