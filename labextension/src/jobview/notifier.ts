/** What somebody can be told about. `head` is also status, gone and preview; `log` is also going lines and matches. */
export type Topic = 'head' | 'ranks' | 'log' | 'curves';

/** After this many milliseconds listeners are told though the page draws no frames: it is hidden. */
const HIDDEN = 250;

/** Tells listeners about changes, at most once a frame and topic. */
export class Notifier {
  readonly #listeners = new Map<Topic, Set<() => void>>();
  readonly #changed = new Set<Topic>();
  #frame: number | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  subscribe(topic: Topic, listener: () => void): () => void {
    const listeners = this.#listeners.get(topic) ?? new Set();
    this.#listeners.set(topic, listeners);
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }

  changed(topic: Topic): void {
    this.#changed.add(topic);
    if (this.#timer !== undefined) {
      return;
    }
    const flush = this.#flush.bind(this);
    this.#timer = setTimeout(flush, HIDDEN);
    if (typeof requestAnimationFrame === 'function') {
      this.#frame = requestAnimationFrame(flush);
    }
  }

  dispose(): void {
    this.#cancel();
    this.#changed.clear();
    this.#listeners.clear();
  }

  #cancel(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#frame !== undefined) {
      cancelAnimationFrame(this.#frame);
      this.#frame = undefined;
    }
  }

  #flush(): void {
    this.#cancel();
    const topics = [...this.#changed];
    this.#changed.clear();
    for (const topic of topics) {
      for (const listener of [...(this.#listeners.get(topic) ?? [])]) {
        try {
          listener();
        } catch (error) {
          // One broken listener does not keep the others from being told.
          reportError(error);
        }
      }
    }
  }
}
