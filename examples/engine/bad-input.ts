/** The one wording of this engine for input that it refuses: `<field>: expected <what>, got <what>`. */
import { HandoffError, type HandoffErrorCode } from 'state-handoff';

export function badInput(
  field: string,
  expected: string,
  got: unknown,
  code: HandoffErrorCode = 'ARGUMENT_INVALID',
): HandoffError {
  const shown =
    typeof got === 'string' ? JSON.stringify(got) : typeof got === 'object' && got !== null ? 'an object' : String(got);
  return new HandoffError(code, `${field}: expected ${expected}, got ${shown}`, { details: { field } });
}

/** @throws `ARGUMENT_INVALID` unless `value` is an integer in [minimum, maximum] */
export function requireInteger(field: string, value: unknown, minimum: number, maximum = 2 ** 31 - 1): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < minimum || value > maximum) {
    throw badInput(field, `an integer in [${minimum}, ${maximum}]`, value);
  }
  return value;
}
