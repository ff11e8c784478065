/** Section `decode_admission`: block counts and places of the resume tokens. */
import { decodeAdmission } from '../decode/decode-admission.js';
import type { ExactValue } from './exact-json.js';
import { expectEqual } from './mismatch.js';
import { fieldsOf, integerOf, type Section } from './section.js';

const inputs = ['prompt', 'resume_tokens', 'block_size'];
const outputs = [
  'prompt_blocks',
  'continuation_blocks',
  'hashable_blocks',
  'last_block_offset',
  'positions',
  'block_index_of_position',
  'offset_in_block',
];

export const decodeAdmissionSection: Section = {
  name: 'decode_admission',
  groups: {
    cases(value) {
      const { name: _name, ...fields } = fieldsOf(value, '', [...inputs, ...outputs], ['name']);
      const result = decodeAdmission({
        promptTokens: integerOf(fields['prompt'], 'prompt'),
        resumeTokens: integerOf(fields['resume_tokens'], 'resume_tokens'),
        blockSize: integerOf(fields['block_size'], 'block_size'),
      });
      const got: Readonly<Record<string, unknown>> = {
        prompt_blocks: result.promptBlocks,
        continuation_blocks: result.continuationBlocks,
        hashable_blocks: result.hashableBlocks,
        last_block_offset: result.lastBlockOffset,
        positions: result.positions,
        block_index_of_position: result.blockIndexOfPosition,
        offset_in_block: result.offsetInBlock,
      };
      for (const key of outputs) expectEqual(key, fields[key] as ExactValue, got[key]);
    },
  },
};
