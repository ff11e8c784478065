/**
 * The messages of the coordinator's bench, encoded: a client's 4,096-token request with the hashes of its 64 blocks, and
 * what engines that compute nothing answer. The same bytes go through the coordinator and through the bare echoes.
 */
import { encodeMessage, type Frames } from '../../../lib/control/protocol/codec.js';
import { encodeValue } from '../../../lib/control/protocol/wire-bytes.js';
import { Float64, type Opaque, type Wire, type WireMap } from '../../../lib/control/protocol/wire-value.js';

export const promptTokens = 4096;
export const blocksOfPrompt = 64;

/** How requests go through. */
export type Setting = 'aggregated' | 'disaggregated';

const profile = 'multi-frame';
const wire = (entries: Record<string, Wire>): WireMap => new Map(Object.entries(entries));

/** Hashes without a pattern, always the same: the blocks of prompt number `index`. */
export function hashesOf(index: number): BigInt64Array {
  const first = index * blocksOfPrompt + 1;
  return BigInt64Array.from({ length: blocksOfPrompt }, (_, at) => {
    return BigInt.asIntN(63, BigInt(first + at) * 0x9e3779b97f4a7c15n) | 1n;
  });
}

/** Token ids of a vocabulary of 128k, small ones more often, as in text. */
const token = (at: number): number => Math.floor(131_072 * ((Math.imul(at + 1, 0x9e3779b1) >>> 0) / 2 ** 32) ** 3);

const prompt = encodeValue(Array.from({ length: promptTokens }, (_, at) => token(at)));

const sampling = wire({
  temperature: new Float64(1),
  top_k: 0,
  top_p: new Float64(0),
  return_log_probs: false,
  skip_prompt_log_probs: true,
  num_tokens_to_generate: 128,
  num_tokens_total: null,
  top_n_logprobs: 0,
  add_BOS: false,
  streaming: false,
});

const metadataOfRequest = (requestId: number): Frames =>
  encodeMessage(profile, 'coordinator', {
    header: 'SUBMIT_REQUEST',
    requestId,
    prompt,
    sampling,
    blockHashes: null,
    mediaMeta: null,
    media: null,
    offloadParams: null,
  });

/** Frames of a prompt's hashes, made once for each prompt. */
export function hashFrames(prompts: number): Uint8Array[] {
  return Array.from({ length: prompts }, (_, index) => {
    const submit = encodeMessage(profile, 'coordinator', {
      header: 'SUBMIT_REQUEST',
      requestId: 0,
      prompt,
      sampling,
      blockHashes: hashesOf(index),
      mediaMeta: null,
      media: null,
      offloadParams: null,
    });
    return submit[2]!;
  });
}

/** A client's request. */
export function submitFrames(requestId: number, hashFrame: Uint8Array): Frames {
  const [metadata, tokens, , media, offload] = metadataOfRequest(requestId) as Uint8Array[];
  return [metadata!, tokens!, hashFrame, media!, offload!];
}

const agent = 'prefill-rank0-5f0e8f0b3c0d4d1b';

/** What a prefill or decode engine says when it joins. */
export function registerFrames(role: 'prefill' | 'decode'): Frames {
  const meta = wire({
    request_capacity: 256,
    tokens_per_block: 64,
    element_size: 2,
    head_dim: 128,
    num_layers_global: 32,
    num_kv_heads_global: 8,
    agent_name: agent,
    agent_metadata_b64: Buffer.alloc(1536, 7).toString('base64'),
  });
  return encodeMessage(profile, 'coordinator', {
    header: 'REGISTER_ROLE',
    role,
    transport: 'nixl',
    instanceMeta: [meta],
    extension: null,
  });
}

export const finishedBody: Opaque = encodeValue(
  wire({
    status: 'COMPLETED',
    generated_tokens: Array.from({ length: 128 }, (_, at) => 1000 + at * 7),
    prompt_length: promptTokens,
    latency: new Float64(0.25),
  }),
);

const handoffBody: Opaque = encodeValue(
  wire({
    status: 'COMPLETED',
    disaggregated_params: wire({
      request_id: 0,
      block_ids: Array.from({ length: blocksOfPrompt }, (_, at) => 900 + at),
      kv_meta: wire({
        agent_name: agent,
        base_addr: 140_000_000_000_000,
        num_blocks: 4096,
        tokens_per_block: 64,
        element_size: 2,
        head_dim: 128,
        num_layers_global: 32,
        num_kv_heads_global: 8,
        tp_rank: 0,
        tp_size: 1,
        pp_rank: 0,
        pp_size: 1,
        resume_tokens: [4711],
      }),
    }),
  }),
);

/** What engines answer to one request, in the order in which the coordinator receives it. */
export function replyFrames(kind: 'finished' | 'handoff', requestId: number): Frames {
  const body = kind === 'finished' ? finishedBody : handoffBody;
  return encodeMessage(profile, 'coordinator', {
    header: 'ENGINE_REPLY',
    replies: [{ requestId, needsDetokenize: false, body }],
  });
}

export function readDoneFrames(requestId: number): Frames {
  return encodeMessage(profile, 'coordinator', { header: 'KV_READ_DONE', requestId });
}

/** Everything that the coordinator receives for one request: what a bare echo of the same frames gets. */
export function receivedFrames(setting: Setting, requestId: number, hashFrame: Uint8Array): readonly Frames[] {
  const submit = submitFrames(requestId, hashFrame);
  const finished = replyFrames('finished', requestId);
  if (setting === 'aggregated') return [submit, finished];
  return [submit, replyFrames('handoff', requestId), readDoneFrames(requestId), finished];
}
