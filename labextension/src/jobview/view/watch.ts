import type { Topic } from '../notifier';
import type { JobStore } from '../store';

/** Hands on what the store tells while the view can be seen; what changed meanwhile is told when it is seen again. */
export class Watch {
  readonly #listeners = new Map<Topic, Set<() => void>>();
  readonly #missed = new Set<Topic>();
  readonly #unsubscribe: (() => void)[];
  #visible = true;

  constructor(store: JobStore) {
    const topics: Topic[] = ['head', 'ranks', 'log', 'curves'];
    this.#unsubscribe = topics.map(topic =>
      store.subscribe(topic, () => {
        this.#told(topic);
      })
    );
  }

  get visible(): boolean {
    return this.#visible;
  }

  set visible(visible: boolean) {
    this.#visible = visible;
    if (visible) {
      const missed = [...this.#missed];
      this.#missed.clear();
      missed.forEach(topic => {
        this.#told(topic);
      });
    }
  }

  on(topic: Topic, listener: () => void): () => void {
    const listeners = this.#listeners.get(topic) ?? new Set();
    this.#listeners.set(topic, listeners);
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }

  dispose(): void {
    this.#unsubscribe.forEach(unsubscribe => {
      unsubscribe();
    });
    this.#listeners.clear();
  }

  #told(topic: Topic): void {
    if (!this.#visible) {
      this.#missed.add(topic);
      return;
    }
    [...(this.#listeners.get(topic) ?? [])].forEach(listener => {
      listener();
    });
  }
}
