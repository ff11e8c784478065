/** Where a coordinator may listen without keys: what only looks like this machine is not it. Opens no socket. */
import { checkReach, parseEndpoint } from '../../lib/control/zeromq/address.js';

const check = (address: string, isEncrypted = false, isInsecure = false): void =>
  checkReach(parseEndpoint(address, 'address'), isEncrypted, isInsecure, 'address');

test.each([
  'tcp://127.0.0.1:5757',
  'tcp://127.0.0.9:*',
  'tcp://localhost:5757',
  'tcp://[::1]:5757',
  'ipc://@name',
  'inproc://name',
])('%s is this machine', (address) => {
  expect(() => check(address)).not.toThrow();
});

test.each([
  'tcp://0.0.0.0:5757',
  'tcp://*:5757',
  'tcp://[::]:5757',
  'tcp://[::ffff:10.0.0.1]:5757',
  'tcp://10.0.0.1:5757',
  'tcp://eth0:5757',
  'tcp://127.0.0.1.example.org:5757',
  'tcp://10.127.0.0.1:5757',
  'tcp://a127.0.0.1:5757',
  'tcp://127.0.0:5757',
  'tcp://localhost.example.org:5757',
  'tcp://notlocalhost:5757',
])('%s is beyond it: refused, unless encrypted or told so', (address) => {
  expect(() => check(address)).toThrow(
    expect.objectContaining({
      code: 'OPTION_INVALID',
      message: expect.stringMatching(/^address: expected a loopback address without CURVE keys/) as string,
    }),
  );
  expect(() => check(address, true)).not.toThrow();
  expect(() => check(address, false, true)).not.toThrow();
});
