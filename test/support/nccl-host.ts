/**
 * What lets NCCL itself link two ranks on one GPU, which it refuses on one host: each believes to be on a host of its own
 * and reaches the other over loopback.
 */
let hosts = 0;

/** The environment of one more process; no two get the same host. */
export function hostOfItsOwn(): Record<string, string> {
  hosts += 1;
  return { NCCL_HOSTID: `host-${process.pid}-${hosts}`, NCCL_NET: 'Socket', NCCL_SOCKET_IFNAME: 'lo' };
}
