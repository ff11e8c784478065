/** The 14 bytes of a completion report: round trip, and everything else refused. */
import fc from 'fast-check';
import { decodeCompletionReport, encodeCompletionReport } from '../../lib/control/completion-report.js';

describe('completion report', () => {
  it('survives its bytes', () => {
    fc.assert(
      fc.property(
        fc.record({
          requestId: fc.maxSafeNat(),
          rank: fc.nat(2 ** 31 - 1),
          failed: fc.boolean(),
          sourceSafe: fc.boolean(),
        }),
        (report) => {
          const bytes = encodeCompletionReport(report);
          expect(decodeCompletionReport(bytes)).toEqual(report);
          // As it lies in a larger receive buffer.
          const larger = new Uint8Array(30).fill(0xff);
          larger.set(bytes, 7);
          expect(decodeCompletionReport(larger.subarray(7, 21))).toEqual(report);
        },
      ),
    );
  });

  it.each([
    ['', 'report: expected 14 bytes, got 0'],
    ['00000000000000070000000100', 'report: expected 14 bytes, got 13'],
    ['000000000000000700000001000100', 'report: expected 14 bytes, got 15'],
    ['ffffffffffffffff000000010001', 'report.requestId: expected an attempt id in [0, 2^53 - 1], got -1n'],
    [
      '0020000000000000000000010001',
      'report.requestId: expected an attempt id in [0, 2^53 - 1], got 9007199254740992n',
    ],
    ['0000000000000007ffffffff0001', 'report.rank: expected an integer in [0, 2147483647], got -1'],
    ['0000000000000007000000010201', 'report.failed: expected 0 or 1, got 2'],
    ['00000000000000070000000100ff', 'report.sourceSafe: expected 0 or 1, got 255'],
  ])('refuses bytes %p', (hex, message) => {
    expect(() => decodeCompletionReport(Uint8Array.from(Buffer.from(hex, 'hex')))).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID', message }),
    );
  });

  it('carries the largest ids there are', () => {
    const largest = { requestId: Number.MAX_SAFE_INTEGER, rank: 2 ** 31 - 1, failed: true, sourceSafe: false };
    expect(decodeCompletionReport(encodeCompletionReport(largest))).toEqual(largest);
  });

  it('refuses what is no byte array', () => {
    expect(() => decodeCompletionReport('x'.repeat(14) as never)).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID' }),
    );
  });

  it.each([
    [{ requestId: -1, rank: 0 }, 'report.requestId: expected a safe integer, 0 or more, got -1'],
    [{ requestId: 2 ** 53, rank: 0 }, 'report.requestId: expected a safe integer, 0 or more, got 9007199254740992'],
    [{ requestId: 1, rank: -1 }, 'report.rank: expected an integer in [0, 2147483647], got -1'],
    [{ requestId: 1, rank: 2 ** 31 }, 'report.rank: expected an integer in [0, 2147483647], got 2147483648'],
  ])('refuses to encode %j', (part, message) => {
    expect(() => encodeCompletionReport({ failed: false, sourceSafe: true, ...part })).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID', message }),
    );
  });
});
