/**
 * Models of a few kilobytes, written here: GGUF files with two layers, weights from a fixed sequence and no vocabulary but
 * numbers. For what a model's file may say that the pinned one does not.
 */
import { writeFileSync } from 'node:fs';

export interface TinyModel {
  /** Width of a head, as the file says it. */
  readonly headDim: number;
  /** KV heads of each layer. */
  readonly kvHeads: readonly [number, number];
}

const width = 64;
const heads = 4;
const inner = 32;
/** Token ids of such a model. */
export const tinyVocabulary = 32;
const alignment = 32;

class Writer {
  private readonly parts: Buffer[] = [];
  size = 0;

  bytes(part: Buffer): this {
    this.parts.push(part);
    this.size += part.length;
    return this;
  }

  u32(value: number): this {
    const part = Buffer.alloc(4);
    part.writeUInt32LE(value);
    return this.bytes(part);
  }

  u64(value: number): this {
    const part = Buffer.alloc(8);
    part.writeBigUInt64LE(BigInt(value));
    return this.bytes(part);
  }

  text(value: string): this {
    return this.u64(Buffer.byteLength(value)).bytes(Buffer.from(value));
  }

  align(): this {
    return this.bytes(Buffer.alloc((alignment - (this.size % alignment)) % alignment));
  }

  whole(): Buffer {
    return Buffer.concat(this.parts);
  }
}

const types = { u32: 4, f32: 6, text: 8, array: 9 } as const;

/** Writes such a model, in the one or the other of llama.cpp's forms: only the latter knows layers that are not alike. */
export function writeTinyModel(file: string, { headDim, kvHeads }: TinyModel): void {
  const form = kvHeads[0] === kvHeads[1] ? 'llama' : 'deci';
  const keys = new Writer();
  let keyCount = 0;
  const key = (name: string, type: keyof typeof types): Writer => {
    keyCount += 1;
    return keys.text(name).u32(types[type]);
  };
  key('general.architecture', 'text').text(form);
  key('tokenizer.ggml.model', 'text').text('no_vocab');
  for (const [name, value] of Object.entries({
    vocab_size: tinyVocabulary,
    context_length: 512,
    embedding_length: width,
    block_count: kvHeads.length,
    feed_forward_length: inner,
    'attention.head_count': heads,
    'attention.key_length': headDim,
    'attention.value_length': headDim,
    'rope.dimension_count': headDim,
  })) {
    key(`${form}.${name}`, 'u32').u32(value);
  }
  key(`${form}.attention.head_count_kv`, 'array').u32(types.u32).u64(kvHeads.length);
  for (const count of kvHeads) keys.u32(count);
  const epsilon = Buffer.alloc(4);
  epsilon.writeFloatLE(1e-5);
  key(`${form}.attention.layer_norm_rms_epsilon`, 'f32').bytes(epsilon);

  const infos = new Writer();
  const data = new Writer();
  let tensorCount = 0;
  let seed = 1;
  const next = (): number => {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0;
    return seed / 2 ** 32 - 0.5;
  };
  const tensor = (name: string, inputs: number, outputs: number | null): void => {
    tensorCount += 1;
    infos.text(`${name}.weight`).u32(outputs === null ? 1 : 2);
    infos.u64(inputs);
    if (outputs !== null) infos.u64(outputs);
    infos.u32(0).u64(data.size);
    const values = Float32Array.from({ length: inputs * (outputs ?? 1) }, () => (outputs === null ? 1 : next()));
    data.bytes(Buffer.from(values.buffer)).align();
  };
  tensor('token_embd', width, tinyVocabulary);
  tensor('output_norm', width, null);
  for (const [layer, count] of kvHeads.entries()) {
    const name = (part: string): string => `blk.${layer}.${part}`;
    tensor(name('attn_norm'), width, null);
    tensor(name('attn_q'), width, heads * headDim);
    tensor(name('attn_k'), width, count * headDim);
    tensor(name('attn_v'), width, count * headDim);
    tensor(name('attn_output'), heads * headDim, width);
    tensor(name('ffn_norm'), width, null);
    tensor(name('ffn_gate'), width, inner);
    tensor(name('ffn_up'), width, inner);
    tensor(name('ffn_down'), inner, width);
  }
  const head = new Writer().bytes(Buffer.from('GGUF')).u32(3).u64(tensorCount).u64(keyCount);
  head.bytes(keys.whole()).bytes(infos.whole()).align();
  writeFileSync(file, Buffer.concat([head.whole(), data.whole()]));
}
