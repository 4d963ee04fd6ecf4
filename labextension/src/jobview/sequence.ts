import type { Changes } from './protocol';

/** What is to be done after a batch came. */
export interface Step {
  /** The changes whose turn it is, in order. */
  apply: Changes[];
  /** Batches to ask for again; `null`: none. */
  resend: { from: number; to: number } | null;
  /** Too much is missing: a snapshot is needed. */
  lost: boolean;
}

/** Batches kept while an earlier one is missing; as many as the feed keeps to send again. */
const AHEAD = 64;

/** Puts numbered batches in order: each is applied once, and a missing one is asked for once. */
export class Sequence {
  #next: number | undefined;
  #asked = -1;
  readonly #ahead = new Map<number, Changes>();

  /** Whether nothing can be applied before a snapshot comes. */
  get waiting(): boolean {
    return this.#next === undefined;
  }

  /** The newest batch that was applied; undefined while waiting. */
  get newest(): number | undefined {
    return this.#next === undefined ? undefined : this.#next - 1;
  }

  /** Whether later batches wait for one that is missing. */
  get gap(): boolean {
    return this.#ahead.size > 0;
  }

  /** From now on wait for a snapshot. */
  restart(): void {
    this.#next = undefined;
    this.#ahead.clear();
  }

  /** A snapshot that holds all up to batch `n` was taken. What came ahead of it may go on from it. */
  start(n: number): Step {
    this.#next = n + 1;
    this.#asked = n;
    for (const early of this.#ahead.keys()) {
      if (early <= n) {
        this.#ahead.delete(early);
      }
    }
    return this.#drain();
  }

  add(n: number, changes: Changes): Step {
    const step: Step = { apply: [], resend: null, lost: false };
    if (this.#next === undefined || n < this.#next || this.#ahead.has(n)) {
      return step;
    }
    this.#ahead.set(n, changes);
    if (n === this.#next) {
      return this.#drain();
    }
    if (this.#ahead.size > AHEAD) {
      return { ...step, lost: true };
    }
    const from = Math.max(this.#next, this.#asked + 1);
    if (from < n) {
      step.resend = { from, to: n - 1 };
    }
    this.#asked = Math.max(this.#asked, n);
    return step;
  }

  #drain(): Step {
    const apply: Changes[] = [];
    for (;;) {
      const changes = this.#next === undefined ? undefined : this.#ahead.get(this.#next);
      if (this.#next === undefined || changes === undefined) {
        return { apply, resend: null, lost: false };
      }
      apply.push(changes);
      this.#ahead.delete(this.#next);
      this.#next += 1;
    }
  }
}
