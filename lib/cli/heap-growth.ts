/**
 * How far V8 lets garbage grow in a router's process before it goes through the whole heap. A request's frames lie outside
 * the heap and count against a limit that is a multiple of the heap, which in a router is small: at V8's own multiple some
 * hundred requests fill it. Concerns whole processes, so that only those of our own are told.
 */
import { setFlagsFromString } from 'node:v8';

/** Five times what lives; V8 goes up to four, and less when it thinks that memory is short. */
export const heapGrowthFlag = '--heap-growing-percent=400';

/** For the process that calls it, from the next collection of its whole heap on. */
export function growHeapFreely(): void {
  setFlagsFromString(heapGrowthFlag);
}
