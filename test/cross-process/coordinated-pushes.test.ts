/**
 * NCCL behind a coordinator without a GPU: engines as processes over stand-ins for NCCL and the CUDA driver. Decode says that
 * it is ready, the coordinator tells prefill, and prefill sends; either one is killed on the way.
 */
import { CoordinatedFleet, type RankProcess } from '../support/coordinated-fleet.js';
import { stallNccl, useFakeNccl } from '../support/fake-nccl.js';

const env = useFakeNccl();
// Only a fault waits that long.
jest.setTimeout(240_000);

let fleet: CoordinatedFleet;
let prefill: RankProcess;
let decode: RankProcess;

beforeEach(async () => {
  fleet = await CoordinatedFleet.open('nccl', env);
  [[prefill], [decode]] = (await Promise.all([fleet.engine('prefill'), fleet.engine('decode')])) as [
    [RankProcess],
    [RankProcess],
  ];
});
afterEach(() => fleet.close());

test('generates what one engine generates alone, also where decode has cached a prefix', async () => {
  await fleet.serves(prefill);
  await fleet.serves(prefill);
  await fleet.settled(prefill, decode);
});

test('a prefill engine of two ranks pushes from both, as its rank 0 is told', async () => {
  await prefill.kill();
  const ranks = await fleet.engine('prefill', 2);
  await fleet.serves(ranks[0]!);
  await fleet.serves(ranks[0]!);
  await fleet.settled(...ranks, decode);
});

test('a decode engine that is killed before prefill hears that it is ready leaves no pin, and the next one is served', async () => {
  await prefill.ask('set', { messages: true });
  const request = fleet.ask();
  await decode.until('decode is ready', ({ ready }) => ready === 1);
  await decode.kill();
  expect(await request.error).toMatchObject({ code: 'ENGINE_FAILED' });
  await prefill.ask('set', { messages: false });
  await fleet.settled(prefill);
  const [next] = await fleet.engine('decode');
  await fleet.serves(prefill);
  await fleet.settled(prefill, next!);
});

test('a prefill engine that is killed in a push costs its request only, and the next one is served', async () => {
  stallNccl(true, decode.process.pid!);
  const request = fleet.ask();
  await prefill.until('it pushes', ({ pushes }) => pushes === 1);
  await prefill.kill();
  expect(await request.error).toMatchObject({ code: 'ENGINE_FAILED' });
  stallNccl(false, decode.process.pid!);
  await fleet.settled(decode);
  const [next] = await fleet.engine('prefill');
  await fleet.serves(next!);
  await fleet.settled(next!, decode);
});
