/** The test engine of the lifecycle tests. */
import type { PrefilledRequest } from '../../lib/engine-context.js';
import { TestEngine } from '../../lib/testing/index.js';

/** A test engine that a test can fill up, and that remembers what it was given. */
export class LifecycleEngine extends TestEngine {
  readonly admitted: PrefilledRequest[] = [];
  /** The batch takes nothing, however few run. */
  batchIsFull = false;
  /** Tokens that complete a stop word. */
  readonly stopTokens = new Set<number>();

  override canAdmitPrefilledDecode(request: PrefilledRequest): boolean {
    return !this.batchIsFull && super.canAdmitPrefilledDecode(request);
  }

  override admitPrefilledDecode(request: PrefilledRequest): void {
    this.admitted.push(request);
    super.admitPrefilledDecode(request);
  }

  override isComplete(request: PrefilledRequest, firstToken: number): 'no' | 'length' | 'stop' {
    return this.stopTokens.has(firstToken) ? 'stop' : super.isComplete(request, firstToken);
  }
}
