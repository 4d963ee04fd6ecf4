/** Milliseconds of a frame that redrawing may take, and between two redraws of the same thing. */
const BUDGET = 8;
const APART = 250;

export interface Clock {
  now: () => number;
  frame: (callback: () => void) => number;
  cancelFrame: (handle: number) => void;
  later: (callback: () => void, delay: number) => ReturnType<typeof setTimeout>;
  cancelLater: (handle: ReturnType<typeof setTimeout>) => void;
}

const PAGE: Clock = {
  now: () => performance.now(),
  frame: callback => requestAnimationFrame(callback),
  cancelFrame: handle => {
    cancelAnimationFrame(handle);
  },
  later: (callback, delay) => setTimeout(callback, delay),
  cancelLater: handle => {
    clearTimeout(handle);
  }
};

/**
 * Redraws what was asked for, the longest waiting first: at most four times a second each, and only as many in a
 * frame as fit in a share of it, so that the page answers however many plots there are.
 */
export class Scheduler {
  readonly #clock: Clock;
  readonly #waiting = new Map<object, () => void>();
  readonly #drawn = new WeakMap<object, number>();
  #frame: number | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(clock: Clock = PAGE) {
    this.#clock = clock;
  }

  /** Draw `key` by `draw` when its time has come; `soon`: in the next frame, since the user did something. */
  request(key: object, draw: () => void, soon = false): void {
    if (soon) {
      this.#drawn.delete(key);
    }
    this.#waiting.set(key, draw);
    this.#plan();
  }

  cancel(key: object): void {
    this.#waiting.delete(key);
  }

  dispose(): void {
    this.#waiting.clear();
    if (this.#frame !== undefined) {
      this.#clock.cancelFrame(this.#frame);
    }
    if (this.#timer !== undefined) {
      this.#clock.cancelLater(this.#timer);
    }
  }

  #plan(): void {
    if (this.#frame !== undefined || this.#waiting.size === 0) {
      return;
    }
    const now = this.#clock.now();
    const wait = Math.min(...[...this.#waiting.keys()].map(key => this.#due(key) - now));
    if (this.#timer !== undefined) {
      this.#clock.cancelLater(this.#timer);
      this.#timer = undefined;
    }
    if (wait > 0) {
      this.#timer = this.#clock.later(() => {
        this.#timer = undefined;
        this.#plan();
      }, wait);
      return;
    }
    this.#frame = this.#clock.frame(() => {
      this.#frame = undefined;
      this.#run();
      this.#plan();
    });
  }

  #run(): void {
    const start = this.#clock.now();
    const due = [...this.#waiting]
      .filter(([key]) => this.#due(key) <= start)
      .sort(([a], [b]) => this.#due(a) - this.#due(b));
    for (const [key, draw] of due) {
      this.#waiting.delete(key);
      draw();
      this.#drawn.set(key, this.#clock.now());
      if (this.#clock.now() - start >= BUDGET) {
        return;
      }
    }
  }

  #due(key: object): number {
    const drawn = this.#drawn.get(key);
    return drawn === undefined ? -Infinity : drawn + APART;
  }
}
