/** CURVE keys, the files that hold them, and names that prove themselves. */
import { curveKeyPair } from 'zeromq';
import { decodeKey, encodeKey, makeKeyPair, publicKeyOf, sharedSecret } from '../../lib/control/zeromq/curve-key.js';
import type { ToCoordinator } from '../../lib/control/protocol/messages.js';
import { checkAllowList, checkKeyFile, mayReach, type CurveRole } from '../../lib/control/zeromq/curve-peers.js';
import { claimedName, NameProofs, provenRoutingId } from '../../lib/control/zeromq/proven-name.js';

const [server, alice, mallory] = [makeKeyPair(), makeKeyPair(), makeKeyPair()];
const peers = {
  alice: { role: 'engine', key: alice.publicKey },
  mallory: { role: 'client', key: mallory.publicKey },
} as const;
const proofs = () => new NameProofs({ secretKey: server.secretKey, peers });
const idOf = (name: string, secretKey: string, serverKey = server.publicKey) =>
  provenRoutingId({ name, secretKey, serverKey }, 'curve');

describe('keys', () => {
  test('are those of ZeroMQ, in both directions', () => {
    for (let count = 0; count < 20; count++) {
      const { publicKey, secretKey } = curveKeyPair();
      expect(publicKeyOf(secretKey, 'key')).toBe(publicKey);
      expect(encodeKey(decodeKey(publicKey, 'key'))).toBe(publicKey);
    }
    // The example of ZeroMQ's RFC 32.
    expect(encodeKey(Buffer.from('864fd26fb559f75b', 'hex'))).toBe('HelloWorld');
    const { publicKey, secretKey } = makeKeyPair();
    expect(publicKeyOf(secretKey, 'key')).toBe(publicKey);
  });

  test('two ends have one secret, a third has another', () => {
    const shared = sharedSecret(alice.secretKey, server.publicKey, 'key');
    expect(sharedSecret(server.secretKey, alice.publicKey, 'key')).toEqual(shared);
    expect(sharedSecret(mallory.secretKey, server.publicKey, 'key')).not.toEqual(shared);
  });

  test.each([
    ['', 'empty'],
    ['x'.repeat(39), 'short'],
    ['x'.repeat(41), 'long'],
    ['~'.repeat(40), 'of other letters'],
    ['#'.repeat(40), 'above 32 bits a word'],
    [7 as never, 'no text'],
  ])('refuses %j: %s, and does not repeat it', (text, _why) => {
    for (const call of [() => decodeKey(text, 'key'), () => publicKeyOf(text, 'key')])
      expect(call).toThrow(
        expect.objectContaining({
          code: 'OPTION_INVALID',
          message: 'key: expected a CURVE key (40 characters of Z85), got something else',
        }),
      );
  });

  test('refuses a public key that shares its secret with everybody', () => {
    expect(() => sharedSecret(alice.secretKey, encodeKey(Buffer.alloc(32)), 'key')).toThrow('expected a CURVE key');
  });
});

describe('files', () => {
  test.each([
    [[], 'peers: expected a map of at most 65536 names'],
    [{ 'a.b': { role: 'engine', key: alice.publicKey } }, 'peers: name: expected up to 64 letters'],
    [{ alice: alice.publicKey }, 'peers.alice: expected a map of role and key'],
    [{ alice: { role: 'engine', key: alice.publicKey, more: 1 } }, 'peers.alice: expected a map of role and key'],
    [
      { alice: { role: 'king', key: alice.publicKey } },
      'peers.alice.role: expected engine, client, observer, got "king"',
    ],
    [{ alice: { role: 'engine', key: 'short' } }, 'peers.alice.key: expected a CURVE key'],
    [
      { alice: { role: 'engine', key: alice.publicKey }, twin: { role: 'client', key: alice.publicKey } },
      'peers.twin.key: expected a key of its own, got "that of alice"',
    ],
  ])('refuses the allow-list %#', (parsed, text) => {
    expect(() => checkAllowList(parsed, 'peers')).toThrow(text);
  });

  test.each([
    ['text', 'key-file: expected a file of `state-handoff keys`'],
    [{ name: '', public_key: alice.publicKey, secret_key: alice.secretKey }, 'key-file.name: expected up to 64'],
    [{ name: 'a', public_key: alice.publicKey, secret_key: 'x' }, 'key-file.secret_key: expected a CURVE key'],
    [{ name: 'a', public_key: mallory.publicKey, secret_key: alice.secretKey }, 'the key that belongs to secret_key'],
  ])('refuses the key file %#', (parsed, text) => {
    expect(() => checkKeyFile(parsed, 'key-file')).toThrow(text);
  });
});

describe('names', () => {
  test('are proven by their key, each connection anew', () => {
    const [one, two] = [idOf('alice', alice.secretKey), idOf('alice', alice.secretKey)];
    expect(one).not.toBe(two);
    expect(one.length).toBeLessThanOrEqual(255);
    for (const id of [one, two]) {
      const proven = proofs().check(id)!;
      expect(proven).toMatchObject({ name: 'alice', role: 'engine' });
      expect(proofs().routingId(proven.name, proven.nonce)).toBe(id);
    }
  });

  test('are not proven by the key of another, for another coordinator, or by parts', () => {
    const mine = idOf('alice', alice.secretKey);
    const [name, nonce, proof] = mine.split('.') as [string, string, string];
    const theirs = idOf('mallory', mallory.secretKey).split('.') as [string, string, string];
    const forged = [
      idOf('alice', mallory.secretKey),
      idOf('alice', alice.secretKey, makeKeyPair().publicKey),
      idOf('bob', alice.secretKey),
      `mallory.${nonce}.${proof}`,
      `${name}.${theirs[1]}.${theirs[2]}`,
      `${name}.${nonce}.${theirs[2]}`,
      `${name}.${theirs[1]}.${proof}`,
      `${name}.${nonce}.${'A'.repeat(43)}`,
      `${mine}.`,
      name,
      '',
      'constructor.AAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA',
    ];
    expect(forged.map((id) => proofs().check(id))).toEqual(forged.map(() => null));
    expect(proofs().check(mine)).not.toBeNull();
  });

  test('are not proven by all but one character of a proof, wherever it is', () => {
    const mine = idOf('alice', alice.secretKey);
    const begin = mine.lastIndexOf('.') + 1;
    const known = proofs();
    for (let at = begin; at < mine.length; at++) {
      const other = mine[at] === 'A' ? 'B' : 'A';
      expect(known.check(`${mine.slice(0, at)}${other}${mine.slice(at + 1)}`)).toBeNull();
    }
    expect(known.check(mine)).not.toBeNull();
  });

  test('are shown without what proves them', () => {
    expect(claimedName(idOf('alice', alice.secretKey))).toBe('alice');
    expect(claimedName('\u0001\u00ff')).toBe('01ff');
  });
});

/** Every header that a coordinator knows: the compiler asks for a new one here. */
const mayBeSaidBy: Record<ToCoordinator['header'], readonly CurveRole[]> = {
  CONNECT: ['client', 'observer'],
  STATUS: ['client', 'observer'],
  DISCONNECT: ['engine', 'client', 'observer'],
  REGISTER: ['engine'],
  REGISTER_ROLE: ['engine'],
  REGISTER_KV: ['engine'],
  ENGINE_REPLY: ['engine'],
  ENGINE_REPLY_PARTIAL: ['engine'],
  ENGINE_STATUS: ['engine'],
  KV_READ_DONE: ['engine'],
  KV_TRANSFER_READY: ['engine'],
  REQUEST_ERROR: ['engine'],
  REQUEST_ABORTED: ['engine'],
  SUBMIT_REQUEST: ['client'],
  SUBMIT_REQUEST_WITH_KV: ['client'],
  ABORT_REQUEST: ['client'],
  CLAIM_KV: ['client'],
  RELEASE_KV: ['client'],
  RELEASE_KV_OWNER: ['client'],
  SHUTDOWN: ['client'],
  PAUSE: ['client'],
  UNPAUSE: ['client'],
  SUSPEND: ['client'],
  RESUME: ['client'],
  STOP: ['client'],
  START_CUDA_PROFILER: ['client'],
  STOP_CUDA_PROFILER: ['client'],
  SET_GENERATION_EPOCH: ['client'],
};

test.each(Object.entries(mayBeSaidBy))('%s is for these roles and no other: %j', (header, roles) => {
  const reaching = (['engine', 'client', 'observer'] as const).filter((role) =>
    mayReach(role, header as ToCoordinator['header']),
  );
  expect(reaching).toEqual(roles);
});
