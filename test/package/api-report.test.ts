/**
 * Goal: no change of the public interface goes unseen. Method: the report of each entry point is made anew and compared
 * with the one in docs/; types that an exported signature needs but does not export are refused on the way.
 */
import { projectRoot } from '../support/source-files.js';
import { runIn } from './packed-package.js';

test('the committed reports of the public interface are up to date (`npm run api` writes them)', () => {
  expect(runIn(projectRoot, process.execPath, ['scripts/api.js', '--check'])).toEqual({ status: 0, output: '' });
});
