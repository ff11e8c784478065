/**
 * Promises of a whole handoff when one process is killed, at each phase: what the other holds is given back on proof
 * only, every request ends once, no wrong byte is admitted, and the survivor serves the next peer.
 */
import { startChild, type Child } from '../support/child-process.js';
import { nixlMissing } from '../support/nixl-fixture.js';
import { describeOptional } from '../support/optional.js';

const usable = 39;
const prompt = Array.from({ length: 100 }, (_, at) => at * 7 + 1);
const blocks = 25;
const deadlines = { handshakeMs: 20_000, transferMs: 20_000 };

interface Identity {
  readonly instance: string;
  readonly incarnation: string;
}
interface Seen {
  readonly imports: readonly { readonly requestId: string; readonly state: string; readonly bytesDone: number }[];
  readonly quarantine: number;
  readonly admittable: boolean;
  readonly results: Readonly<Record<string, { readonly wrong?: number; readonly code?: string }>>;
  readonly free: number;
}
interface End extends Identity {
  readonly child: Child;
}

async function engine(role: 'prefill' | 'decode', instance: string, transport = 'host'): Promise<End> {
  const child = startChild('handoff-end');
  return { child, ...(await child.ask<Identity>('open', { role, instance, deadlines, transport })) };
}

const nameOf = ({ instance, incarnation }: Identity): string => `${instance}/${incarnation}`;

async function pinned(prefill: End, owner: End, requestId = 'r1'): Promise<string> {
  const ticket = await prefill.child.ask<string | null>('prefill', { requestId, prompt });
  expect(ticket).not.toBeNull();
  expect(await prefill.child.ask('claim', { ticket, owner: nameOf(owner) })).toBe(true);
  return ticket!;
}

/** A request from prefill to decode and its release, undisturbed. */
async function serves(prefill: End, decode: End, requestId: string): Promise<void> {
  const ticket = await pinned(prefill, decode, requestId);
  await decode.child.ask('add', { requestId, prompt, ticket });
  const { results, quarantine } = await decode.child.ask<Seen>('settle');
  expect({ result: results[requestId], quarantine }).toEqual({ result: { wrong: 0 }, quarantine: 0 });
  for (const ref of await decode.child.ask<unknown[]>('takeNotices')) await prefill.child.ask('release', { ref });
  expect(await prefill.child.ask('source')).toEqual({ pins: [], free: usable });
}

/** How far decode is when somebody dies. Each leaves it there. */
const phases: Readonly<Record<string, (decode: Child, ticket: string) => Promise<unknown>>> = {
  'before the ticket arrives': () => Promise.resolve(),
  'after the request was added': (decode, ticket) => decode.ask('add', { requestId: 'r1', prompt, ticket }),
  'while bytes move': async (decode, ticket) => {
    await decode.ask('add', { requestId: 'r1', prompt, ticket });
    expect(await decode.ask<Seen>('untilMoving')).toMatchObject({ quarantine: 0 });
  },
  'when all bytes have landed': async (decode, ticket) => {
    await decode.ask('add', { requestId: 'r1', prompt, ticket });
    expect(await decode.ask<Seen>('untilLanded')).toMatchObject({ admittable: true });
  },
  'while the request runs': async (decode, ticket) => {
    await decode.ask('add', { requestId: 'r1', prompt, ticket });
    await decode.ask<Seen>('untilLanded');
    expect(await decode.ask('admit')).toEqual(['r1']);
  },
};

describe.each(Object.entries(phases))('killed %s', (phase, reach) => {
  test('a dead decode holds its pin until its death is attested; then prefill serves another', async () => {
    const [prefill, decode] = await Promise.all([engine('prefill', 'p'), engine('decode', 'd1')]);
    const ticket = await pinned(prefill, decode);
    await reach(decode.child, ticket);
    await decode.child.kill();
    expect(await prefill.child.ask('source')).toEqual({
      pins: [{ state: 'claimed', owner: nameOf(decode) }],
      free: usable - blocks,
    });
    await prefill.child.ask('attestDead', { instance: decode.instance, incarnation: decode.incarnation });
    expect(await prefill.child.ask('source')).toEqual({ pins: [], free: usable });
    await serves(prefill, await engine('decode', 'd2'), 'r2');
  });

  test('a dead prefill costs its request at most, and no byte of decode; then decode serves another', async () => {
    const [prefill, decode] = await Promise.all([engine('prefill', 'p1'), engine('decode', 'd')]);
    const ticket = await pinned(prefill, decode);
    await reach(decode.child, ticket);
    await prefill.child.kill();
    if (phase === 'before the ticket arrives') await decode.child.ask('add', { requestId: 'r1', prompt, ticket });
    const seen = await decode.child.ask<Seen>('settle');
    const { r1 } = seen.results;
    if (phase === 'before the ticket arrives') expect(r1).toEqual({ code: expect.stringMatching(/^PEER_/) });
    else if (phase === 'when all bytes have landed' || phase === 'while the request runs')
      expect(r1).toEqual({ wrong: 0 });
    else expect([{ wrong: 0 }, { code: 'PEER_LOST' }, { code: 'PEER_UNREACHABLE' }]).toContainEqual(r1);
    await decode.child.ask('attestDead', { instance: prefill.instance, incarnation: prefill.incarnation });
    expect(await decode.child.ask<Seen>('settle')).toMatchObject({ imports: [], quarantine: 0, free: usable });
    // Told once, and to nobody: the next prefill refuses what is not its own.
    const notices = await decode.child.ask<unknown[]>('takeNotices');
    expect(notices).toMatchObject([{ instance: prefill.instance, incarnation: prefill.incarnation }]);
    const successor = await engine('prefill', 'p2');
    await expect(successor.child.ask('release', { ref: notices[0] })).rejects.toThrow('HANDOFF_FENCED');
    await serves(successor, decode, 'r2');
  });
});

describeOptional('nixl', nixlMissing(), 'over NIXL', () => {
  test('a prefill killed while bytes move costs its request at most; what was in doubt comes back with proof', async () => {
    const [prefill, decode] = await Promise.all([engine('prefill', 'p1', 'nixl'), engine('decode', 'd', 'nixl')]);
    const ticket = await pinned(prefill, decode);
    await phases['while bytes move']!(decode.child, ticket);
    await prefill.child.kill();
    const { results } = await decode.child.ask<Seen>('settle');
    expect([{ wrong: 0 }, { code: 'PEER_LOST' }, { code: 'PEER_UNREACHABLE' }]).toContainEqual(results['r1']);
    // The lost connection's agent is destroyed, on a thread of its own, which is proof; nobody attested anything.
    let seen = await decode.child.ask<Seen>('settle');
    for (const end = Date.now() + 60_000; seen.quarantine > 0 && Date.now() < end;)
      seen = await decode.child.ask<Seen>('settle');
    expect(seen).toMatchObject({ imports: [], quarantine: 0, free: usable });
    await decode.child.ask('takeNotices');
    await serves(await engine('prefill', 'p2', 'nixl'), decode, 'r2');
  });

  test('a decode killed while bytes move holds its pin until its death is attested', async () => {
    const [prefill, decode] = await Promise.all([engine('prefill', 'p', 'nixl'), engine('decode', 'd1', 'nixl')]);
    const ticket = await pinned(prefill, decode);
    await phases['while bytes move']!(decode.child, ticket);
    await decode.child.kill();
    expect(await prefill.child.ask('source')).toMatchObject({ pins: [{ state: 'claimed' }], free: usable - blocks });
    await prefill.child.ask('attestDead', { instance: decode.instance, incarnation: decode.incarnation });
    await serves(prefill, await engine('decode', 'd2', 'nixl'), 'r2');
  });
});
