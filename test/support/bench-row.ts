/** What a bench reports. Every file of `test/bench` that exports `run(): Promise<BenchRow[]>` is run by `npm run bench`. */
export interface BenchRow {
  readonly name: string;
  readonly value: number;
  /** Of `value`, for example `GB/s` or `µs`. */
  readonly unit: string;
  /** The plain operation it is compared with, measured in the same run; null when there is none. */
  readonly against: string | null;
  /** `value` over that of `against`; null when there is none. */
  readonly ratio: number | null;
  /** For example `≥ 0.90`; null when the row only informs. */
  readonly target: string | null;
  /** Whether the target is met; true when there is none. */
  readonly ok: boolean;
}
