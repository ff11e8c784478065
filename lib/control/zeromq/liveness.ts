/**
 * How sockets notice that the other end's machine is gone, by options of TCP. ZeroMQ's own heartbeats are not used: a stopped
 * process answers none and is not dead, and in libzmq 4.3.5 one that is due for a connection that broke with messages still
 * unread ends the whole process (`Assertion failed: !_io_error`). A machine's kernel does answer for a process that stands still.
 */
import type { Router, SocketOptions } from 'zeromq';

/**
 * Of a socket that others connect to: within two heartbeats where nothing is on its way. What is on its way the kernel sends
 * again and again for a quarter of an hour; less than that cannot be asked for, since a process that stands still and has no
 * room for more would lose its connection by it, too.
 */
export function routerLiveness(heartbeatMs: number): SocketOptions<Router> {
  const seconds = Math.max(1, Math.round(heartbeatMs / 1_000));
  return {
    tcpKeepalive: 1,
    tcpKeepaliveIdle: seconds,
    tcpKeepaliveInterval: seconds,
    tcpKeepaliveCount: 1,
  };
}

/** Of a socket that connects: within 40 seconds of silence; a coordinator that stands still is waited for. */
export const dealerLiveness = { tcpKeepalive: 1, tcpKeepaliveIdle: 10, tcpKeepaliveInterval: 10, tcpKeepaliveCount: 3 };
