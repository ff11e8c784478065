/** Native transfer: regions, copy program, host transport. Same names and order as `cuda/binding/transfer.cc`. */
// eslint-disable-next-line @typescript-eslint/no-empty-object-type -- filled by the nouns of this file
export interface TransferAddon {}
