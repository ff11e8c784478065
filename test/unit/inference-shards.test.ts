/** `--inference-shards` (spec 2, 14.6): what is read from texts and objects, and each thing that is refused. */
import {
  parseInferenceShards,
  requireDisaggregated,
  shardInstances,
  shardObject,
  type InferenceShardObject,
} from '../../lib/topology/inference-shards.js';

const refused = (message: string) => expect.objectContaining({ code: 'ARGUMENT_INVALID', message });

test('14.6.2 objects and the text form come to the same; expt_tp is tp unless it is given', () => {
  const text = parseInferenceShards('tp=2,role=prefill+dp=4,tp=1,ep=2,expt_tp=1,role=Decode', 6);
  expect(text).toEqual({
    shards: [
      { tp: 2, pp: 1, ep: 1, dp: 1, exptTp: 2, role: 'prefill', worldSize: 2, firstRank: 0 },
      { tp: 1, pp: 1, ep: 2, dp: 4, exptTp: 1, role: 'decode', worldSize: 4, firstRank: 2 },
    ],
    worldSize: 6,
    isDisaggregated: true,
    overridden: [],
  });
  const objects = [
    { tp: 2, role: 'prefill' },
    { dp: 4, tp: 1, ep: 2, expt_tp: 1, cp: 1, role: 'DECODE' },
  ];
  expect(parseInferenceShards(objects, 6)).toEqual(text);
  // What is given out can be given in again.
  expect(parseInferenceShards(text.shards.map(shardObject), 6)).toEqual(text);
});

test('14.6.3 the object form has tp, pp, ep, dp, expt_tp, and a role where there is one', () => {
  const [tagged, plain] = parseInferenceShards('pp=2,role=decode;dp=3').shards;
  expect(shardObject(tagged!)).toEqual({ tp: 1, pp: 2, ep: 1, dp: 1, expt_tp: 1, role: 'decode' });
  expect(Object.keys(shardObject(plain!))).toEqual(['tp', 'pp', 'ep', 'dp', 'expt_tp']);
});

test('14.6.4 the total must be the size of the world', () => {
  expect(parseInferenceShards('tp=2+dp=2', 4).worldSize).toBe(4);
  expect(() => parseInferenceShards('tp=2+dp=2', 5)).toThrow(
    refused('shards: expected 5 ranks, the size of the world, got 4'),
  );
});

test('14.6.6 + and ; and space around anything make no difference; empty shards and pairs are skipped', () => {
  const tight = parseInferenceShards('tp=2,role=prefill+tp=1,role=decode');
  for (const other of [
    'tp=2,role=prefill;tp=1,role=decode',
    '  tp = 2 ,, role = PREFILL + ; tp=\t1 , role =Decode ;',
  ]) {
    expect(parseInferenceShards(other)).toEqual(tight);
  }
});

test('a role that is spaced is a role', () => {
  expect(parseInferenceShards('role = prefill + role = decode').isDisaggregated).toBe(true);
  expect(parseInferenceShards('tp=2+dp=2').isDisaggregated).toBe(false);
});

test('of a key that is given twice the last counts, and it is told', () => {
  const twice = parseInferenceShards('tp=1,tp=2+pp=2,role=prefill,role=decode');
  expect(twice.shards).toMatchObject([{ tp: 2, exptTp: 2 }, { role: 'decode' }]);
  expect(twice.overridden).toEqual(['shards[0].tp', 'shards[1].role']);
});

test('integers are read as the reference reads them', () => {
  expect(parseInferenceShards('tp=2,dp=1_6').shards[0]).toMatchObject({ tp: 2, dp: 16 });
});

test.each<[string | InferenceShardObject[], string]>([
  ['', 'shards: expected at least one shard, got ""'],
  ['+;', 'shards: expected at least one shard, got "+;"'],
  [[], 'shards: expected at least one shard, got "none"'],
  ['tp', 'shards[0]: expected key=value, got "tp"'],
  ['tp=1+foo=2', 'shards[1].foo: expected a key that is one of tp, pp, ep, dp, expt_tp, cp, role, got "foo"'],
  ['TP=1', 'shards[0].TP: expected a key that is one of tp, pp, ep, dp, expt_tp, cp, role, got "TP"'],
  ['role=both', 'shards[0].role: expected prefill or decode, got "both"'],
  ['tp=1,role=', 'shards[0].role: expected prefill or decode, got ""'],
  ['tp=', 'shards[0].tp: expected an integer of at least 1, got ""'],
  ['tp=two', 'shards[0].tp: expected an integer of at least 1, got "two"'],
  ['tp=1.5', 'shards[0].tp: expected an integer of at least 1, got "1.5"'],
  ['tp=1__0', 'shards[0].tp: expected an integer of at least 1, got "1__0"'],
  ['tp=0', 'shards[0].tp: expected an integer of at least 1, got 0'],
  ['dp=-1', 'shards[0].dp: expected an integer of at least 1, got -1'],
  ['ep=0', 'shards[0].ep: expected an integer of at least 1, got 0'],
  ['expt_tp=0', 'shards[0].expt_tp: expected an integer of at least 1, got 0'],
  ['tp=99999999999', 'shards[0].tp: expected an integer of at least 1, got 99999999999'],
  ['tp=65536,dp=65536', 'shards[0]: expected at most 2147483647 ranks in all, got 4294967296'],
  ['tp=2147483647+tp=1', 'shards[1]: expected at most 2147483647 ranks in all, got 1'],
  ['cp=2', 'shards[0].cp: expected 1, engines here have no context parallelism, got 2'],
  ['cp=0', 'shards[0].cp: expected an integer of at least 1, got 0'],
  [
    'tp=2,ep=2,expt_tp=2',
    'shards[0]: expected its 2 ranks (tp 2 × pp 1 × dp 1) to be a multiple of expt_tp 2 × ep 2 × pp 1, got a remainder of 2',
  ],
  [[{ role: 'both' }], 'shards[0].role: expected prefill or decode, got "both"'],
  [[{ role: 3 as unknown as string }], 'shards[0].role: expected prefill or decode, got 3'],
  [[{ cp: 2 }], 'shards[0].cp: expected 1, engines here have no context parallelism, got 2'],
  [[{ tp: '2' as unknown as number }], 'shards[0].tp: expected an integer of at least 1, got "2"'],
  [[{ tp: 1.5 }], 'shards[0].tp: expected an integer of at least 1, got 1.5'],
  [
    [{ gpus: 2 } as InferenceShardObject],
    'shards[0].gpus: expected a key that is one of tp, pp, ep, dp, expt_tp, cp, role, got "gpus"',
  ],
  [[null as unknown as InferenceShardObject], 'shards[0]: expected an object, got null'],
  [7 as unknown as string, 'shards: expected a text or a list of shards, got 7'],
])('refuses %j', (given, message) => {
  expect(() => parseInferenceShards(given)).toThrow(refused(message));
});

test('14.6.7 cp=1 is taken, in both forms', () => {
  expect(parseInferenceShards('cp=1').shards).toEqual(parseInferenceShards([{ cp: 1, role: null }]).shards);
});

test('disaggregated serving needs a role for every shard, and each role', () => {
  requireDisaggregated(parseInferenceShards('role=prefill+role=decode'));
  expect(() => requireDisaggregated(parseInferenceShards('role=prefill+tp=2'))).toThrow(
    refused('shards[1].role: expected prefill or decode, as other shards have one, got null'),
  );
  for (const [only, missing] of [
    ['prefill', 'decode'],
    ['decode', 'prefill'],
  ]) {
    expect(() => requireDisaggregated(parseInferenceShards(`role=${only}`))).toThrow(
      refused(`shards: expected at least one with role=${missing}, got "none"`),
    );
  }
});

test('each of a shard’s dp engines is an instance with a name of its own', () => {
  const names = (spec: string) => shardInstances(parseInferenceShards(spec)).map(({ identity }) => identity);
  expect(names('role=prefill,dp=2+tp=2,role=decode')).toEqual(['prefill_s0_dp0', 'prefill_s0_dp1', 'decode_s1_dp0']);
  expect(names('tp=2,dp=2')).toEqual(['mp-coord-0', 'mp-coord-1']);
  const [, , last] = shardInstances(parseInferenceShards('role=prefill,dp=2+tp=2,role=decode'));
  expect(last).toMatchObject({ shardIndex: 1, dpRank: 0, shard: { tp: 2, firstRank: 2 } });
});
