/**
 * Processes with regions on GPUs, or over the stand-in for their driver, that pull from one another over one transport
 * (`gpu-end-child.js`).
 */
import type { JsonObject } from '../../lib/json.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import { startChild, type Child } from './child-process.js';
import { eachFragment } from './program-oracle.js';

export interface GpuSetting {
  readonly env?: NodeJS.ProcessEnv;
  /** Of a region. */
  readonly bytes: number;
  readonly gpus: { readonly source: number; readonly target: number };
}

export interface Pulled {
  readonly status: string;
  readonly error: string | null;
  readonly message: string | null;
  /** Bytes of the target that are not as they should be. */
  readonly wrong: number | null;
  readonly bytes: number;
}

export interface Exporter {
  readonly child: Child;
  readonly grant: JsonObject;
}

/** How a pull ends that went well. */
export const right = { status: 'done', error: null, wrong: 0 };

/** What a child compares with. */
function fragmentsOf(program: CopyProgram): Float64Array {
  const values: number[] = [];
  eachFragment(program, (...each) => void values.push(...each));
  return Float64Array.from(values);
}

export class GpuEnds {
  constructor(
    private readonly transport: 'cuda-ipc' | 'nixl',
    private readonly setting: GpuSetting,
  ) {}

  /** A process with regions on GPUs, or in host memory where a device is null. */
  async open(
    values: { seed: number | null; devices: readonly (number | null)[]; bytes?: number; blocks?: number },
    options: object = {},
  ): Promise<Exporter> {
    const { env = {}, bytes } = this.setting;
    const { transport } = this;
    const child = startChild('gpu-end', [], env as Record<string, string>);
    return { child, grant: await child.ask<JsonObject>('open', { transport, bytes, ...values, options }) };
  }

  exporter(seed: number, options?: object): Promise<Exporter> {
    return this.open({ seed, devices: [this.setting.gpus.source] }, options);
  }

  async importer(options: object = {}): Promise<Child> {
    const importing = this.transport === 'nixl' ? { exports: false, ...options } : options;
    return (await this.open({ seed: null, devices: [this.setting.gpus.target] }, importing)).child;
  }

  pull(child: Child, grant: JsonObject, program: CopyProgram, seed: number): Promise<Pulled> {
    return child.ask<Pulled>('pull', { grant, program, seed, fragments: fragmentsOf(program) });
  }

  /** The same, again and again; `failure` of the child tells how the last one ended. */
  async pullOn(child: Child, grant: JsonObject, program: CopyProgram, seed: number): Promise<void> {
    const pulled = await child.ask('pullOn', { grant, program, seed, fragments: fragmentsOf(program) });
    expect(pulled).toMatchObject(right);
  }

  async close(...children: readonly Child[]): Promise<void> {
    for (const child of children) expect(await child.ask('close')).toBeNull();
    await Promise.all(children.map((child) => child.kill()));
  }
}
