/**
 * The coordinator's metrics over HTTP, for Prometheus on this machine: `GET /metrics` on the loopback address and nothing
 * else. Has a registry of its own; the package's global one is not touched.
 */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type * as promClient from 'prom-client';
import { argumentError, HandoffError } from '../../errors.js';
import type { Coordinator } from '../coordinator/coordinator.js';
import { registerCoordinatorMetrics } from './coordinator-metrics.js';
import type { CoordinatorServer } from './coordinator-server.js';

const host = '127.0.0.1';
/** For answers that are under way at the end. */
const closeMs = 1_000;

/** Where a coordinator's metrics are read. */
export interface MetricsEndpoint {
  readonly url: string;
  /** Answers what was asked, and ends. */
  close(): Promise<void>;
}

/**
 * @param port - 0: a free one
 * @throws `OPTION_INVALID` when the port cannot be had; `ZEROMQ_UNAVAILABLE` without prom-client
 */
export async function openMetrics(
  port: number,
  server: CoordinatorServer,
  coordinator: Coordinator,
): Promise<MetricsEndpoint> {
  if (!Number.isInteger(port) || port < 0 || port > 0xffff)
    throw argumentError('metrics-port', 'a port, or 0 for a free one', port, 'OPTION_INVALID');
  const { Registry, collectDefaultMetrics } = loadPromClient();
  const registry = new Registry();
  registerCoordinatorMetrics(server, coordinator, registry);
  collectDefaultMetrics({ register: registry });
  const http = createServer((request, response) => {
    const path = request.url?.split('?', 1)[0];
    if (path !== '/metrics') {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('metrics are at /metrics\n');
      return;
    }
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.writeHead(405, { allow: 'GET, HEAD' }).end();
      return;
    }
    registry.metrics().then(
      (text) => response.writeHead(200, { 'content-type': registry.contentType }).end(text),
      (error: unknown) => response.writeHead(500, { 'content-type': 'text/plain' }).end(String(error)),
    );
  });
  await listen(http, port);
  return {
    url: `http://${host}:${(http.address() as AddressInfo).port}/metrics`,
    close: () =>
      new Promise((resolve) => {
        registry.clear();
        // Who has not asked to the end, or does not read the answer, is not waited for long.
        const timer = setTimeout(() => http.closeAllConnections(), closeMs);
        http.close(() => {
          clearTimeout(timer);
          resolve();
        });
        http.closeIdleConnections();
      }),
  };
}

function listen(http: Server, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    http.once('error', (cause: NodeJS.ErrnoException) => {
      const details = { path: 'metrics-port', code: cause.code };
      const message = `metrics-port: ${host}:${port} cannot be listened at because ${cause.code}`;
      reject(new HandoffError('OPTION_INVALID', message, { cause, details }));
    });
    http.listen(port, host, resolve);
  });
}

function loadPromClient(): typeof promClient {
  try {
    // eslint-disable-next-line @typescript-eslint/no-require-imports -- an optional package: only this endpoint needs it
    return require('prom-client') as typeof promClient;
  } catch (cause) {
    throw new HandoffError(
      'ZEROMQ_UNAVAILABLE',
      `prom-client does not load because ${(cause as Error).message}; install it beside state-handoff`,
      { cause },
    );
  }
}
