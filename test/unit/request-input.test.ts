/** Input checks that stand alone: what is refused, and in which words. */
import { checkDeadline } from '../../lib/request-input.js';

test.each([Number.NaN, -1, '5', null])('a deadline of %p is refused, since nothing would ever end it', (value) => {
  expect(() => checkDeadline(value as number, 1)).toThrow(
    /^options\.deadlineMs: expected a number of at least 0, got /,
  );
});

test('a deadline may be absent, zero or infinite', () => {
  expect([checkDeadline(undefined, 7), checkDeadline(0, 7), checkDeadline(Infinity, 7)]).toEqual([7, 0, Infinity]);
});
