/** The second half of the random pairs of layouts; what they are for stands in layouts.test.ts. */
import { testLayouts } from '../support/layout-share.js';

testLayouts('second');
