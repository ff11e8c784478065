/** Which instances may be paired, and that a card from elsewhere is read with care. */
import { checkCompatible, parseInstanceCard, type InstanceCard } from '../../lib/compatibility.js';

const prefill: InstanceCard = {
  protocolVersion: 1,
  instance: 'p',
  incarnation: 'p-1',
  role: 'prefill',
  model: 'm',
  dtype: 'bf16',
  blockSize: 16,
  contextLength: 4096,
  maxRequests: 8,
  totalBlocks: 100,
  numSpeculativeTokens: 2,
  epoch: 5,
  transports: ['cuda-ipc', 'host'],
  kv: { tokensPerBlock: 16, elementBytes: 2, headDim: 128, numLayersGlobal: 32, numKvHeadsGlobal: 8 },
  ssm: {
    convElementBytes: 2,
    recurrentElementBytes: 4,
    dims: { nheads: 8, headdim: 4, dState: 2, ngroups: 2, dConv: 3 },
    numLayersGlobal: 6,
  },
};
const decode: InstanceCard = {
  ...prefill,
  role: 'decode',
  instance: 'd',
  incarnation: 'd-1',
  transports: ['host'],
  maxRequests: 2,
  totalBlocks: 7,
  contextLength: 99,
};
const { ssm } = decode;

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- tests change it at places that no type knows
type Card = Record<string, any>;
function withField(card: InstanceCard, path: string, value: unknown): InstanceCard {
  const copy = structuredClone(card) as Card;
  const keys = path.split('.');
  let target = copy;
  for (const key of keys.slice(0, -1)) target = target[key] as Card;
  target[keys.at(-1)!] = value;
  return copy as InstanceCard;
}

describe('checkCompatible', () => {
  it('pairs a prefill and a decode instance of one model in either order, whatever their size', () => {
    expect(checkCompatible(prefill, decode)).toEqual([]);
    expect(checkCompatible(decode, prefill)).toEqual([]);
    const larger = { ...decode, blockSize: 64, kv: { ...decode.kv, tokensPerBlock: 64 } };
    expect(checkCompatible(prefill, larger)).toEqual([]);
    expect(checkCompatible({ ...prefill, ssm: null }, { ...decode, ssm: null })).toEqual([]);
  });

  it.each([
    ['protocolVersion', 2],
    ['model', 'other'],
    ['dtype', 'fp8'],
    ['numSpeculativeTokens', 0],
    ['epoch', 6],
    ['kv.elementBytes', 1],
    ['kv.headDim', 64],
    ['kv.numLayersGlobal', 31],
    ['kv.numKvHeadsGlobal', 4],
    ['ssm.convElementBytes', 4],
    ['ssm.recurrentElementBytes', 2],
    ['ssm.dims.nheads', 16],
    ['ssm.dims.headdim', 8],
    ['ssm.dims.dState', 4],
    ['ssm.dims.ngroups', 4],
    ['ssm.dims.dConv', 4],
    ['ssm.numLayersGlobal', 5],
  ])('names a difference in %s alone', (field, theirs) => {
    const other = withField(decode, field, theirs);
    const differences = checkCompatible(prefill, other);
    expect(differences).toEqual([
      { field, ours: expect.anything() as unknown, theirs, why: expect.stringMatching(/\w/) as string },
    ]);
    expect(checkCompatible(other, prefill)).toEqual([
      { ...differences[0], ours: theirs, theirs: differences[0]!.ours },
    ]);
  });

  it('names roles, one-sided SSM state and transports that do not meet, all at once', () => {
    expect(checkCompatible(prefill, { ...prefill, ssm: null, transports: ['nixl'] })).toEqual([
      { field: 'role', ours: 'prefill', theirs: 'prefill', why: 'one side must prefill and the other decode' },
      { field: 'ssm', ours: ssm, theirs: null, why: 'only one of the two models has SSM state' },
      { field: 'transports', ours: ['cuda-ipc', 'host'], theirs: ['nixl'], why: 'no transport is common to both' },
    ]);
  });
});

describe('parseInstanceCard', () => {
  it('reads a card that came as JSON and leaves unknown keys out', () => {
    expect(parseInstanceCard(JSON.parse(JSON.stringify({ ...prefill, more: 1 })))).toEqual(prefill);
    const short = { ...prefill, transports: ['h'], model: 'x'.repeat(256) };
    expect(parseInstanceCard(short)).toEqual(short);
    expect(parseInstanceCard({ ...prefill, ssm: null })).toEqual({ ...prefill, ssm: null });
  });

  it.each([
    ['protocolVersion', 2, 'INCOMPATIBLE', 'card.protocolVersion: expected 1, got 2'],
    [
      'protocolVersion',
      '1',
      'ARGUMENT_INVALID',
      'card.protocolVersion: expected an integer in [0, 2147483647], got "1"',
    ],
    ['role', 'both', 'ARGUMENT_INVALID', 'card.role: expected "prefill" or "decode", got "both"'],
    ['model', '', 'ARGUMENT_INVALID', 'card.model: expected a string of 1 to 256 characters, got ""'],
    ['blockSize', 0, 'ARGUMENT_INVALID', 'card.blockSize: expected an integer in [1, 2147483647], got 0'],
    ['transports', [''], 'ARGUMENT_INVALID', 'card.transports[0]: expected a string of 1 to 256 characters, got ""'],
    ['transports', 'host', 'ARGUMENT_INVALID', 'card.transports: expected a list of at most 16, got "host"'],
    ['kv', null, 'ARGUMENT_INVALID', 'card.kv: expected a map, got null'],
    ['kv.headDim', 1.5, 'ARGUMENT_INVALID', 'card.kv.headDim: expected an integer in [1, 2147483647], got 1.5'],
    ['ssm', 3, 'ARGUMENT_INVALID', 'card.ssm: expected a map, got 3'],
    ['ssm.dims', [], 'ARGUMENT_INVALID', 'card.ssm.dims: expected a map, got an array of 0'],
    ['ssm.dims.dConv', 0, 'ARGUMENT_INVALID', 'card.ssm.dims.dConv: expected an integer in [1, 2147483647], got 0'],
    ['epoch', -1, 'ARGUMENT_INVALID', 'card.epoch: expected an integer in [0, 9007199254740991], got -1'],
  ])('refuses %s = %j', (field, value, code, message) => {
    expect(() => parseInstanceCard(withField(prefill, field, value))).toThrow(
      expect.objectContaining({ code, message }),
    );
  });

  it('refuses what is no map', () => {
    expect(() => parseInstanceCard('card')).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID', message: 'card: expected a map, got "card"' }),
    );
  });
});
