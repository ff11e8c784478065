'use strict';
// `node -r` this: the process loads the project's TypeScript as it lies there.
require('./load-typescript').loadTypescript();
