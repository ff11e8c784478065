'use strict';
// A thread with regions of its own that copies from one GPU to another over and over, contiguously or by the kernel, until
// it is told to stop; answers with the median of a copy.
const { parentPort, workerData } = require('node:worker_threads');
const { allocateCudaRegion } = require('../../dist/lib/memory/cuda-region.js');
const { addon } = require('../../dist/lib/native/addon.js');

const { source, target, bytes, encoded, stop } = workerData;
const from = allocateCudaRegion({ bytes, device: source });
const to = allocateCudaRegion({ bytes, device: target });
const times = [];
const copy = () =>
  encoded === null
    ? addon().debugCudaTimeCopies(from.native, to.native, Float64Array.of(0, 0, bytes), false, 5)
    : addon().debugCudaTimeKernel(from.native, to.native, encoded.rectangles, encoded.tables, encoded.rows, 5, 0);
copy();
parentPort.postMessage('ready');
while (Atomics.load(stop, 0) === 0) times.push(copy());
from.close();
to.close();
parentPort.postMessage(times.sort((a, b) => a - b)[Math.floor(times.length / 2)]);
