/**
 * Section `coordinator_runtime`: traces of the coordinator with prefill and decode engines, every message it sends included.
 * The real core runs; what it sends goes through the codec, and the file's ids stand for the ones it mints.
 */
import { Coordinator } from '../control/coordinator/coordinator.js';
import type { Effect } from '../control/coordinator/interface.js';
import { decodeMessage, encodeMessage } from '../control/protocol/codec.js';
import type { ToClient, ToCoordinator, ToEngine } from '../control/protocol/messages.js';
import { decodeValue, encodeValue } from '../control/protocol/wire-bytes.js';
import { Float64, type Wire, type WireMap } from '../control/protocol/wire-value.js';
import { argumentError } from '../errors.js';
import { JsonFloat, type ExactObject, type ExactValue } from './exact-json.js';
import { expectEqual, Mismatch, render } from './mismatch.js';
import {
  at,
  booleanOf,
  expectError,
  fieldsOf,
  integerOf,
  listOf,
  objectOf,
  stringOf,
  type Section,
} from './section.js';
import { wireOf } from './wire-exact.js';

const refusals = { ValueError: ['ARGUMENT_INVALID', 'MESSAGE_INVALID', 'INCOMPATIBLE'] } as const;
/** The file's client asks under ten times the request's id. */
const clientFactor = 10;
const client = 'client';
const submits: readonly string[] = ['SUBMIT_REQUEST', 'SUBMIT_REQUEST_WITH_KV'];

export const coordinatorRuntimeSection: Section = {
  name: 'coordinator_runtime',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['setup', 'trace'], ['name']);
      const name = Object.hasOwn(fields, 'name') ? stringOf(fields['name'], 'name') : '';
      // The file tells this one part of a setup by the case's name only.
      const engines = /\bno decode\b/.test(name) ? ['prefill'] : ['prefill', 'decode'];
      const world = new RuntimeWorld({ engines, ...fieldsOf(fields['setup'], 'setup', [], setupKeys) });
      for (const [index, step] of listOf(fields['trace'], 'trace').entries()) {
        const path = `trace[${index}]`;
        world.run(fieldsOf(step, path, ['call', 'args', 'kwargs', 'sent'], ['error']), path);
      }
    },
  },
};

const setupKeys = ['transport', 'request_capacity', 'ssm_slot_capacity', 'engines'];

class RuntimeWorld {
  readonly #core = new Coordinator({ instance: 'conformance', isDisaggregated: true, behaviour: 'gen-b' });
  /** The file's id for each of the core's. */
  readonly #named = new Map<number, number>();
  readonly #prefill = new Map<number, string>();
  readonly #decode = new Map<number, string>();
  #now = 0;

  constructor(setup: ExactObject) {
    const engines = listOf(setup['engines'], 'setup.engines');
    this.#receive(client, { header: 'CONNECT' });
    for (const [index, engine] of engines.entries()) {
      const name = stringOf(engine, `setup.engines[${index}]`);
      const role = name.startsWith('prefill') ? 'prefill' : 'decode';
      const transport = setup['transport'] ?? 'nixl';
      this.#register([name, role, transport, [metaOf(role, setup)]], 'setup');
    }
  }

  run(step: ExactObject, path: string): void {
    const call = stringOf(step['call'], at(path, 'call'));
    const args = listOf(step['args'], at(path, 'args'));
    const keywords = objectOf(step['kwargs'], at(path, 'kwargs'));
    if (Object.hasOwn(step, 'error')) {
      expectError(step['error'], at(path, 'error'), refusals, () => this.#call(call, args, keywords, path));
      expectEqual(at(path, 'sent'), step['sent']!, []);
      return;
    }
    const sent = this.#call(call, args, keywords, path);
    const expected = listOf(step['sent'], at(path, 'sent'));
    expectEqual(
      at(path, 'sent'),
      expected,
      expected.length === sent.length ? sent.map((got, index) => filled(expected[index]!, got)) : sent,
    );
  }

  #call(call: string, args: readonly ExactValue[], keywords: ExactObject, path: string): ExactValue[] {
    const id = (index: number): number => integerOf(args[index], `${path}.args[${index}]`);
    const name = (index: number): string => stringOf(args[index], `${path}.args[${index}]`);
    const isSafe = (): boolean => booleanOf(keywords['source_safe'], `${path}.kwargs.source_safe`);
    switch (call) {
      case 'route_submit':
        return this.#submit(id(0), args[1]!, args[2]!);
      case 'handle_prefill_done':
        return this.#reply(id(0), this.#at(this.#prefill, id(0)), encodeValue(wireOf(args[1]!)));
      case 'handle_decode_done':
        // The file's runtime leaves the reply itself to its caller.
        return this.#reply(id(0), this.#at(this.#decode, id(0)), encodeValue(new Map())).filter(
          (sent) => objectOf(sent, path)['header'] !== 'ENGINE_REPLY',
        );
      case 'handle_kv_read_done':
        return this.#receive(name(0), { header: 'KV_READ_DONE', requestId: this.#minted(id(1)) });
      case 'handle_kv_transfer_ready':
        return this.#receive(name(0), {
          header: 'KV_TRANSFER_READY',
          requestId: this.#minted(id(1)),
          cachedPrefixBlocks: id(2),
        });
      case 'abort_request':
        return this.#receive(client, { header: 'ABORT_REQUEST', requestId: id(0) * clientFactor });
      case 'handle_engine_aborted':
        return this.#receive(this.#engineOf(id(0)), {
          header: 'REQUEST_ABORTED',
          requestId: this.#minted(id(0)),
          sourceSafe: isSafe(),
        });
      case 'handle_engine_failure':
        return this.#receive(this.#engineOf(id(0)), {
          header: 'REQUEST_ERROR',
          requestId: this.#minted(id(0)),
          reason: name(1),
          sourceSafe: isSafe(),
        });
      case 'remove_engine':
        return this.#shown(this.#core.peerLost(this.#now, name(0)));
      case 'register_engine':
        return this.#register(args, path);
      default:
        throw new Mismatch(at(path, 'call'), 'a known call', render(call));
    }
  }

  /** @throws `ARGUMENT_INVALID` with the reason of a rejection */
  #register(args: readonly ExactValue[], path: string): ExactValue[] {
    const peer = stringOf(args[0], `${path}.args[0]`);
    const [role, transport, metas] = args.slice(1).map((each) => wireOf(each)) as [Wire, Wire, Wire];
    const message = decodeMessage('single-frame', 'coordinator', [encodeValue([27, role, transport, metas])]);
    const effects = this.#core.receive(this.#now, peer, message);
    for (const effect of effects) {
      if (effect.kind === 'send' && effect.message.header === 'REGISTRATION_ERROR')
        throw argumentError('registration', 'one that is taken', effect.message.reason);
    }
    return this.#shown(
      effects.filter((effect) => effect.kind !== 'send' || effect.message.header !== 'REGISTER_ROLE_ACK'),
    );
  }

  #submit(name: number, prompt: ExactValue, sampling: ExactValue): ExactValue[] {
    const before = this.#core.snapshot(this.#now).counters['submitted']!;
    const blockHashes = BigInt64Array.from(Array.isArray(prompt) ? (prompt as number[]) : [], BigInt);
    // The core mints ids one after the other, and none for what it refuses.
    this.#named.set(before, name);
    return this.#receive(client, {
      header: 'SUBMIT_REQUEST',
      requestId: name * clientFactor,
      prompt: encodeValue(wireOf(prompt)),
      sampling: wireOf(sampling) as WireMap,
      blockHashes,
      mediaMeta: null,
      media: null,
      offloadParams: null,
    });
  }

  #reply(name: number, peer: string, body: Uint8Array): ExactValue[] {
    const replies = [{ requestId: this.#minted(name), needsDetokenize: false, body }];
    return this.#receive(peer, { header: 'ENGINE_REPLY', replies });
  }

  #receive(peer: string, message: ToCoordinator): ExactValue[] {
    return this.#shown(this.#core.receive(this.#now++, peer, message));
  }

  #shown(effects: readonly Effect[]): ExactValue[] {
    const shown: ExactValue[] = [];
    for (const effect of effects) {
      if (effect.kind === 'affinity') {
        shown.push({ note: ['hash-table', effect.peer, Array.from(effect.hashes, (hash) => Number(hash))] });
      } else if (effect.kind === 'send') {
        const { peer, message } = effect;
        if (message.header !== 'CONNECT_ACK')
          shown.push({ to: peer, header: message.header, body: this.#body(peer, message) });
      }
    }
    return shown;
  }

  /** What the peer would read, with the file's ids. */
  #body(peer: string, message: ToEngine | ToClient): ExactValue[] {
    const frames =
      peer === client
        ? encodeMessage('single-frame', 'client', message as ToClient)
        : encodeMessage('single-frame', 'engine', message as ToEngine);
    const [, id, ...rest] = decodeValue(frames[0]!) as [number, number, ...Wire[]];
    const name = peer === client ? id : (this.#named.get(id) ?? -1);
    if (submits.includes(message.header))
      (message.header === 'SUBMIT_REQUEST' ? this.#prefill : this.#decode).set(name, peer);
    return [name, ...rest.map(exactOf)];
  }

  #minted(name: number): number {
    for (const [minted, each] of this.#named) if (each === name) return minted;
    return Number.MAX_SAFE_INTEGER;
  }

  #engineOf(name: number): string {
    return this.#decode.get(name) ?? this.#at(this.#prefill, name);
  }

  #at(engines: ReadonlyMap<number, string>, name: number): string {
    return engines.get(name) ?? 'nobody';
  }
}

/** The registration of the file's engines; the decode engine's comes back in SEND_KV. */
function metaOf(role: string, setup: ExactObject): ExactObject {
  const slots = setup['ssm_slot_capacity'];
  return {
    global_rank: role === 'prefill' ? 0 : 1,
    request_capacity: setup['request_capacity'] ?? 32,
    tokens_per_block: 256,
    element_size: 2,
    head_dim: 128,
    num_layers_global: 4,
    num_kv_heads_global: 8,
    ...(slots === undefined ? {} : { ssm_slot_capacity: slots }),
  };
}

/** `got`, with texts taken from it wherever the file takes any. */
function filled(expected: ExactValue, got: ExactValue): ExactValue {
  if (Array.isArray(expected) && Array.isArray(got))
    return (got as ExactValue[]).map((each, index) => filled((expected as ExactValue[])[index] ?? null, each));
  if (isAny(expected)) return typeof got === 'string' ? expected : got;
  if (isMap(expected) && isMap(got))
    return Object.fromEntries(Object.entries(got).map(([key, inner]) => [key, filled(expected[key] ?? null, inner)]));
  return got;
}

function isAny(value: ExactValue): boolean {
  return isMap(value) && Object.keys(value).length === 1 && value['$any'] === 'string';
}

function isMap(value: ExactValue): value is ExactObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof JsonFloat);
}

function exactOf(value: Wire): ExactValue {
  if (value instanceof Float64) return new JsonFloat(value.value);
  if (value instanceof Map)
    return Object.fromEntries([...(value as WireMap)].map(([key, inner]) => [key, exactOf(inner)]));
  if (Array.isArray(value)) return (value as readonly Wire[]).map(exactOf);
  return value as ExactValue;
}
