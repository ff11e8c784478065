/**
 * Where the tokens of an imported request go: block counts, and the positions of the resume tokens (spec 6.4).
 *
 * Arithmetic only; whether a batch has room is the engine's answer, whether blocks are to be had the allocator's.
 */
import { requireObject } from '../argument-shape.js';
import { argumentError } from '../errors.js';
import { defaultTicketLimits, int32Max } from '../limits.js';

/** What admission is computed from; all in tokens. */
export interface DecodeAdmissionInput {
  /** Tokens of the prompt, all of them imported. */
  readonly promptTokens: number;
  /** The sampled token and the proposals: `1 + numSpeculativeTokens`. */
  readonly resumeTokens: number;
  /** Tokens per block. */
  readonly blockSize: number;
}

/** Blocks of an admitted request. */
export interface AdmissionBlocks {
  /** Blocks of the prompt, a partial last one included. */
  readonly promptBlocks: number;
  /** Blocks that the resume tokens need beyond those. */
  readonly continuationBlocks: number;
  /** Leading blocks of the prompt that are complete and so have a hash. */
  readonly hashableBlocks: number;
}

/** Where the rows of an admitted request start. */
export interface DecodeAdmission extends AdmissionBlocks {
  /** Offset of the last resume token in its block. */
  readonly lastBlockOffset: number;
  /** Position in the sequence of each resume token. */
  readonly positions: readonly number[];
  /** For each of `positions`, the index into prompt blocks followed by continuation blocks. */
  readonly blockIndexOfPosition: readonly number[];
  readonly offsetInBlock: readonly number[];
}

/** Sequence lengths beyond this would leave 32-bit positions. */
const tokensMax = int32Max - defaultTicketLimits.resumeTokensMax;

/**
 * Decode. How many blocks a request of this shape takes; asked before anything is reserved.
 *
 * @throws `ARGUMENT_INVALID`
 */
export function admissionBlocks({ promptTokens, resumeTokens, blockSize }: DecodeAdmissionInput): AdmissionBlocks {
  check('promptTokens', promptTokens, 0, tokensMax);
  check('resumeTokens', resumeTokens, 1, defaultTicketLimits.resumeTokensMax);
  check('blockSize', blockSize, 1, int32Max);
  const promptBlocks = Math.ceil(promptTokens / blockSize);
  return {
    promptBlocks,
    continuationBlocks: Math.ceil((promptTokens + resumeTokens) / blockSize) - promptBlocks,
    hashableBlocks: Math.floor(promptTokens / blockSize),
  };
}

/**
 * Decode. `admissionBlocks` and, for an engine that fills a batch row, where every resume token goes.
 *
 * @throws `ARGUMENT_INVALID`
 */
export function decodeAdmission(input: DecodeAdmissionInput): DecodeAdmission {
  requireObject('input', input);
  const blocks = admissionBlocks(input);
  const { promptTokens, resumeTokens, blockSize } = input;
  const positions: number[] = [];
  const blockIndexOfPosition: number[] = [];
  const offsetInBlock: number[] = [];
  for (let position = promptTokens; position < promptTokens + resumeTokens; position++) {
    positions.push(position);
    blockIndexOfPosition.push(Math.floor(position / blockSize));
    offsetInBlock.push(position % blockSize);
  }
  return {
    ...blocks,
    lastBlockOffset: (promptTokens + resumeTokens - 1) % blockSize,
    positions,
    blockIndexOfPosition,
    offsetInBlock,
  };
}

function check(path: string, value: number, min: number, max: number): void {
  if (!Number.isSafeInteger(value) || value < min || value > max) {
    throw argumentError(path, `an integer in [${min}, ${max}]`, value);
  }
}
