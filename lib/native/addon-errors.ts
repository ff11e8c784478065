/** Native code throws `{code, message, details}`; this makes `HandoffError`s of them. */
import { errorCodes, HandoffError, isHandoffError, type HandoffErrorCode } from '../errors.js';

/** Runs `call` and turns a native error into a {@link HandoffError} of the same code. */
export function native<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw fromNative(error);
  }
}

/** Matches on `code`: under some test runners a native error is no `instanceof Error`. */
export function fromNative(error: unknown): HandoffError {
  if (isHandoffError(error)) return error;
  const { code, message, details } = (error ?? {}) as { code?: unknown; message?: unknown; details?: unknown };
  const text = typeof message === 'string' ? message : String(error);
  if (typeof code === 'string' && code in errorCodes) {
    return new HandoffError(code as HandoffErrorCode, text, {
      details: (details ?? {}) as Record<string, unknown>,
      cause: error,
    });
  }
  return new HandoffError('INVARIANT', `native code failed without a known code: ${text}`, { cause: error });
}
