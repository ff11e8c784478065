/** Native memory: block pool, slot pool, hashing, generations. Same names and order as `cuda/binding/memory.cc`. */
// eslint-disable-next-line @typescript-eslint/no-empty-object-type -- filled by the nouns of this file
export interface MemoryAddon {}
