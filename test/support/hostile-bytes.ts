/**
 * Frames that a hostile peer might send: real messages cut, altered and put together wrongly, lengths that promise more
 * than there is, deep nesting, and noise. Seeded, and cheap enough for millions.
 */
import type { Frames, WireProfile } from '../../lib/control/protocol/codec.js';
import { headerValues } from '../../lib/control/protocol/headers.js';
import { encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { Float64, type Wire } from '../../lib/control/protocol/wire-value.js';
import type { SeededRandom } from '../../lib/testing/seeded-random.js';

const sampling = wireMap({ temperature: new Float64(1), top_k: 1, stop_words: ['a', 'ü'], return_log_probs: false });
const meta = wireMap({ base_addr: 2n ** 63n, num_blocks: 64, agent_name: 'p', ssm: wireMap({ conv: [1, 2] }) });
const reply = wireMap({
  request_id: 7,
  generated_tokens: [1, 70000, 3],
  disaggregated_params: wireMap({ kv_meta: meta }),
});
const held = wireMap({ request_id: 3, state: 'pinned', peer_instance: null, age_ms: 5, blocks: 2 });
const extension = wireMap({ instance: 'i', incarnation: 'n', transports: ['host'], held: [held] });
const { SUBMIT_REQUEST, SUBMIT_REQUEST_WITH_KV, ENGINE_REPLY, ENGINE_REPLY_PARTIAL, REGISTER_ROLE } = headerValues;

const seeds: readonly (readonly Wire[])[] = [
  ...Object.values(headerValues).flatMap((header) => [
    [[header]],
    [[header, 5]],
    [[header, 5, true]],
    [[header, 5, 'boom', false]],
    [[header, 'prefill', 'nixl', [meta], extension]],
    [[header, sampling]],
  ]),
  [[SUBMIT_REQUEST, 5, [1, 2, 300], sampling]],
  [[SUBMIT_REQUEST, 5, sampling, null], [1, 2, 300], [2n ** 62n, 5], null, null],
  [[SUBMIT_REQUEST_WITH_KV, 5, 'Hello', sampling, meta, [4, 5]]],
  [[SUBMIT_REQUEST_WITH_KV, 5, sampling, meta], 'Hello', [4, 5], null],
  [[ENGINE_REPLY, [reply, reply]]],
  [
    [
      ENGINE_REPLY,
      [
        [7, true],
        [8, false],
      ],
    ],
    reply,
    reply,
  ],
  [[ENGINE_REPLY_PARTIAL, [7, 8]], reply, reply],
  [[REGISTER_ROLE, 'decode', 'nccl', [meta, meta], extension]],
];
const seedFrames: readonly Frames[] = seeds.map((frames) => frames.map((frame) => encodeValue(frame)));

/** Heads of values that promise bytes, entries or levels. */
const heads: readonly (readonly number[])[] = [
  [0xdd, 0xff, 0xff, 0xff, 0xff],
  [0xdf, 0x7f, 0xff, 0xff, 0xff],
  [0xdb, 0xff, 0xff, 0xff, 0xff],
  [0xc6, 0x10, 0, 0, 0],
  [0xdc, 0xff, 0xff],
  [0xc1],
  [0xc9, 0, 0, 0, 1, 5, 5],
  [0xd9, 0x02, 0xff, 0xfe],
  [0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
  Array<number>(40).fill(0x91),
  Array<number>(40).fill(0x81),
  [0xa1, 0x61],
];

export interface HostileInput {
  readonly profile: WireProfile;
  readonly frames: Frames;
}

export function hostileInput(random: SeededRandom): HostileInput {
  const frames = random.pick(seedFrames).map((frame) => frame.slice());
  for (let changes = random.int(0, 4); changes > 0; changes--) alter(frames, random);
  return { profile: random.chance(0.5) ? 'single-frame' : 'multi-frame', frames };
}

function alter(frames: Uint8Array[], random: SeededRandom): void {
  const index = random.int(0, Math.max(0, frames.length - 1));
  const frame = frames[index] ?? new Uint8Array(0);
  const at = random.int(0, frame.length);
  switch (random.int(0, 7)) {
    case 0: // another byte
      if (at < frame.length) frame[at] = random.int(0, 255);
      break;
    case 1: // cut
      frames[index] = frame.slice(0, at);
      break;
    case 2: // a head in the middle
      frames[index] = Uint8Array.from([...frame.subarray(0, at), ...random.pick(heads), ...frame.subarray(at)]);
      break;
    case 3: // a head instead
      frames[index] = Uint8Array.from([...frame.subarray(0, at), ...random.pick(heads)]);
      break;
    case 4: // one frame less
      frames.splice(index, 1);
      break;
    case 5: // one more
      frames.splice(index, 0, random.pick(random.pick(seedFrames)).slice());
      break;
    case 6: // noise
      frames[index] = Uint8Array.from({ length: random.int(0, 40) }, () => random.int(0, 255));
      break;
    default: // bytes twice
      frames[index] = Uint8Array.from([...frame.subarray(0, at), ...frame]);
  }
}
