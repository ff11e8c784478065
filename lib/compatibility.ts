/**
 * The registration card of an instance (spec 13.8) and the question whether a prefill and a decode instance can hand
 * requests over. A router asks it before it pairs two instances, so that a mixed pool fails at registration and not in
 * the middle of a request.
 */
import { argumentError } from './errors.js';
import { isRecord } from './json.js';
import { integerField, listField, own, recordField, stringField, type Fields } from './json-fields.js';
import { defaultTicketLimits, int32Max } from './limits.js';
import type { SsmDims } from './memory/ssm-layout.js';

/** What an instance does in a handoff. */
export type InstanceRole = 'prefill' | 'decode';

/** What all ranks of an instance share about attention state (spec 1.6). */
export interface KvSignature {
  readonly tokensPerBlock: number;
  readonly elementBytes: number;
  readonly headDim: number;
  readonly numLayersGlobal: number;
  readonly numKvHeadsGlobal: number;
}

/** What all ranks of an instance share about SSM state; layers are those of the whole model. */
export interface SsmSignature {
  readonly convElementBytes: number;
  readonly recurrentElementBytes: number;
  readonly dims: SsmDims;
  readonly numLayersGlobal: number;
}

/** Plain JSON data; what `describeInstance()` gives and a router keeps. */
export interface InstanceCard {
  /** Version of the handoff protocol: of the card, the ticket and `kv_meta.handoff`. */
  readonly protocolVersion: number;
  readonly instance: string;
  readonly incarnation: string;
  readonly role: InstanceRole;
  readonly model: string;
  readonly dtype: string;
  /** Tokens per block. */
  readonly blockSize: number;
  /** Longest sequence, in tokens. */
  readonly contextLength: number;
  readonly maxRequests: number;
  /** Usable blocks, the dummy block not counted. */
  readonly totalBlocks: number;
  readonly numSpeculativeTokens: number;
  /** Epoch of the weights. */
  readonly epoch: number;
  /** Names, preferred first. */
  readonly transports: readonly string[];
  readonly kv: KvSignature;
  /** Null for attention-only models. */
  readonly ssm: SsmSignature | null;
}

export const protocolVersion = 1;

/** One reason why two instances cannot work together. */
export interface Difference {
  /** Path in the card, for example `kv.headDim`. */
  readonly field: string;
  readonly ours: unknown;
  readonly theirs: unknown;
  /** What would go wrong. */
  readonly why: string;
}

/** Fields that must be equal, and why. */
const equalFields: readonly (readonly [string, string])[] = [
  ['protocolVersion', "the two would read each other's tickets wrongly"],
  ['model', 'state of one model means nothing to another'],
  ['dtype', 'bytes of one element type mean nothing in another'],
  ['numSpeculativeTokens', 'a ticket carries as many proposals as prefill makes'],
  ['epoch', 'state computed with other weights would be continued'],
  ['kv.elementBytes', 'elements are copied, not converted'],
  ['kv.headDim', 'heads are copied whole'],
  ['kv.numLayersGlobal', 'every layer needs its state'],
  ['kv.numKvHeadsGlobal', 'every head needs its state'],
  ['ssm.convElementBytes', 'elements are copied, not converted'],
  ['ssm.recurrentElementBytes', 'elements are copied, not converted'],
  ['ssm.dims.nheads', 'every head needs its state'],
  ['ssm.dims.headdim', 'heads are copied whole'],
  ['ssm.dims.dState', 'heads are copied whole'],
  ['ssm.dims.ngroups', 'conv channels of B and C are cut by group'],
  ['ssm.dims.dConv', 'conv windows are copied whole'],
  ['ssm.numLayersGlobal', 'every layer needs its state'],
];

/**
 * Why `ours` and `theirs` cannot hand requests over to each other; empty when they can. One of them prefills, the other
 * decodes, in either order.
 *
 * @throws `ARGUMENT_INVALID` naming the field of what is no card
 */
export function checkCompatible(ourCard: InstanceCard, theirCard: InstanceCard): Difference[] {
  const [ours, theirs] = [readCard(ourCard, 'ours'), readCard(theirCard, 'theirs')];
  const differences: Difference[] = [];
  if (ours.role === theirs.role) {
    differences.push({
      field: 'role',
      ours: ours.role,
      theirs: theirs.role,
      why: 'one side must prefill and the other decode',
    });
  }
  if ((ours.ssm === null) !== (theirs.ssm === null)) {
    differences.push({
      field: 'ssm',
      ours: ours.ssm,
      theirs: theirs.ssm,
      why: 'only one of the two models has SSM state',
    });
  }
  const hasBothSsm = ours.ssm !== null && theirs.ssm !== null;
  for (const [field, why] of equalFields) {
    if (field.startsWith('ssm.') && !hasBothSsm) continue;
    const [our, their] = [at(ours, field), at(theirs, field)];
    if (our !== their) differences.push({ field, ours: our, theirs: their, why });
  }
  if (!ours.transports.some((name) => theirs.transports.includes(name))) {
    differences.push({
      field: 'transports',
      ours: ours.transports,
      theirs: theirs.transports,
      why: 'no transport is common to both',
    });
  }
  return differences;
}

function at(card: InstanceCard, field: string): unknown {
  let value: unknown = card;
  for (const key of field.split('.')) value = (value as Fields)[key];
  return value;
}

/**
 * A card as a peer sent it. Unknown keys are left out.
 *
 * @throws `INCOMPATIBLE` for another protocol version, `ARGUMENT_INVALID` for what is no card
 */
export function parseInstanceCard(value: unknown): InstanceCard {
  const version = isRecord(value) ? own(value, 'protocolVersion') : protocolVersion;
  if (version !== protocolVersion && Number.isSafeInteger(version))
    throw argumentError('card.protocolVersion', `${protocolVersion}`, version, 'INCOMPATIBLE');
  return readCard(value, 'card');
}

/** A card of any version of the protocol. */
function readCard(value: unknown, path: string): InstanceCard {
  const code = 'ARGUMENT_INVALID';
  const { nameLengthMax, transportsMax } = defaultTicketLimits;
  if (!isRecord(value)) throw argumentError(path, 'a map', value);
  const text = (key: string) => stringField(value, key, path, nameLengthMax, code);
  const count = (key: string, min: number) => integerField(value, key, path, min, int32Max, code);
  const role = own(value, 'role');
  if (role !== 'prefill' && role !== 'decode') throw argumentError(`${path}.role`, '"prefill" or "decode"', role);
  const transports = listField(value, 'transports', path, transportsMax, code).map((name, index) => {
    if (typeof name === 'string' && name.length >= 1 && name.length <= nameLengthMax) return name;
    throw argumentError(`${path}.transports[${index}]`, `a string of 1 to ${nameLengthMax} characters`, name);
  });
  return {
    protocolVersion: integerField(value, 'protocolVersion', path, 0, int32Max, code),
    instance: text('instance'),
    incarnation: text('incarnation'),
    role,
    model: text('model'),
    dtype: text('dtype'),
    blockSize: count('blockSize', 1),
    contextLength: count('contextLength', 1),
    maxRequests: count('maxRequests', 1),
    totalBlocks: count('totalBlocks', 1),
    numSpeculativeTokens: count('numSpeculativeTokens', 0),
    epoch: integerField(value, 'epoch', path, 0, Number.MAX_SAFE_INTEGER, code),
    transports,
    kv: parseKvSignature(recordField(value, 'kv', path, code), `${path}.kv`),
    ssm:
      (own(value, 'ssm') ?? null) === null
        ? null
        : parseSsmSignature(recordField(value, 'ssm', path, code), `${path}.ssm`),
  };
}

function parseKvSignature(fields: Fields, path: string): KvSignature {
  const count = (key: string, min: number) => integerField(fields, key, path, min, int32Max, 'ARGUMENT_INVALID');
  return {
    tokensPerBlock: count('tokensPerBlock', 1),
    elementBytes: count('elementBytes', 1),
    headDim: count('headDim', 1),
    numLayersGlobal: count('numLayersGlobal', 0),
    numKvHeadsGlobal: count('numKvHeadsGlobal', 1),
  };
}

function parseSsmSignature(fields: Fields, path: string): SsmSignature {
  const count = (key: string) => integerField(fields, key, path, 1, int32Max, 'ARGUMENT_INVALID');
  const dims = recordField(fields, 'dims', path, 'ARGUMENT_INVALID');
  const dim = (key: string) => integerField(dims, key, `${path}.dims`, 1, int32Max, 'ARGUMENT_INVALID');
  return {
    convElementBytes: count('convElementBytes'),
    recurrentElementBytes: count('recurrentElementBytes'),
    dims: {
      nheads: dim('nheads'),
      headdim: dim('headdim'),
      dState: dim('dState'),
      ngroups: dim('ngroups'),
      dConv: dim('dConv'),
    },
    numLayersGlobal: count('numLayersGlobal'),
  };
}
