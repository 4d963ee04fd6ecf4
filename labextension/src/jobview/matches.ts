import { isCount } from './decode';
import { type Answer, type Call, unusable } from './protocol';

/** Which lines are wanted: those with this text in them (in any case), of these ranks (-1-node: a node's own). */
export interface Filter {
  text: string;
  ranks: ReadonlySet<number> | null;
}

/** Milliseconds without a change of the filter before the log is searched. */
const DEBOUNCE = 150;

/** Milliseconds between searches of what was added. */
const GROWTH = 250;

/** Milliseconds after which a search that failed is tried again. */
const RETRY = 2_000;

/** Matches kept; where there are twice as many, the oldest half goes. */
const KEPT = 200_000;

/** Which lines of a log match a filter. The feed searches; this asks it, again and again while the log grows. */
export class Matches {
  readonly #call: Call;
  readonly #changed: () => void;
  #filter: Filter | null = null;
  #found: Uint32Array | null = null;
  #view: Uint32Array | null = null;
  #count = 0;
  #truncated = false;
  #scanning = false;
  /** Lines of the log, and how many of them have been searched. */
  #total = 0;
  #searched = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** The search that is under way; the answer to any other is dropped. */
  #search: symbol | undefined;
  #paused = false;

  constructor(call: Call, changed: () => void) {
    this.#call = call;
    this.#changed = changed;
  }

  get filter(): Filter | null {
    return this.#filter;
  }

  /** The matching lines' indices, ascending; null without a filter, and until the first search has been answered. */
  get indices(): Uint32Array | null {
    if (this.#found && this.#view?.length !== this.#count) {
      this.#view = this.#found.subarray(0, this.#count);
    }
    return this.#found ? this.#view : null;
  }

  /** Whether the indices do not yet belong to the filter. */
  get scanning(): boolean {
    return this.#scanning;
  }

  /** Whether there are more matches, older ones. */
  get truncated(): boolean {
    return this.#truncated;
  }

  set(filter: Filter | null): void {
    const ranks = filter?.ranks ? new Set(filter.ranks) : null;
    this.#filter = filter && (filter.text !== '' || ranks) ? { text: filter.text, ranks } : null;
    if (this.#filter) {
      this.#again(DEBOUNCE);
    } else {
      this.#stop();
      this.#found = null;
      this.#view = null;
      this.#truncated = false;
      this.#scanning = false;
    }
    this.#changed();
  }

  /** The log has `total` lines now. */
  grown(total: number): void {
    this.#total = total;
    if (this.#filter && !this.#paused && this.#search === undefined && this.#timer === undefined) {
      this.#goOn();
    }
  }

  /** The log was replaced; `paused`: by a picture of it that cannot be searched. */
  replaced(total: number, paused: boolean): void {
    this.#total = total;
    this.#paused = paused;
    if (this.#filter) {
      this.#again(0);
    }
  }

  dispose(): void {
    this.#stop();
    this.#filter = null;
  }

  #again(delay: number): void {
    this.#stop();
    this.#searched = 0;
    this.#scanning = true;
    if (!this.#paused) {
      this.#later(delay);
    }
  }

  #stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#search = undefined;
  }

  #later(delay: number): void {
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      void this.#scan();
    }, delay);
  }

  #goOn(): void {
    if (this.#total > this.#searched) {
      this.#later(GROWTH);
    }
  }

  async #scan(): Promise<void> {
    const filter = this.#filter;
    if (!filter) {
      return;
    }
    const search = Symbol();
    this.#search = search;
    const since = this.#searched;
    const ranks = filter.ranks ? [...filter.ranks].sort((a, b) => a - b) : null;
    try {
      const answer = await this.#call('scan', { text: filter.text, ranks, since });
      if (this.#search === search) {
        this.#take(answer, since);
        this.#search = undefined;
        this.#scanning = false;
        this.#goOn();
        this.#changed();
      }
    } catch {
      if (this.#search === search) {
        this.#search = undefined;
        this.#later(RETRY);
      }
    }
  }

  #take({ result, buffers }: Answer, since: number): void {
    const [bytes] = buffers;
    const { upto } = result;
    if (!bytes || bytes.byteLength % 4 !== 0 || !isCount(upto)) {
      throw unusable('scan');
    }
    const more = new Uint32Array(bytes);
    if (!ascending(more, since)) {
      throw unusable('scan');
    }
    if (since === 0) {
      this.#count = 0;
      this.#found = new Uint32Array(more.length);
      this.#truncated = false;
    }
    this.#append(more);
    this.#truncated ||= result.truncated === true;
    this.#searched = Math.max(upto, since);
  }

  #append(more: Uint32Array): void {
    let found = this.#found ?? new Uint32Array(0);
    if (this.#count + more.length > 2 * KEPT) {
      const kept = Math.min(this.#count, Math.max(KEPT - more.length, 0));
      found = found.slice(this.#count - kept, this.#count);
      this.#count = kept;
      this.#truncated = true;
    }
    const count = this.#count + more.length;
    if (count > found.length) {
      const larger = new Uint32Array(Math.max(count, 2 * found.length));
      larger.set(found.subarray(0, this.#count));
      found = larger;
    }
    found.set(more, this.#count);
    this.#found = found;
    this.#view = null;
    this.#count = count;
  }
}

function ascending(indices: Uint32Array, since: number): boolean {
  let least = since;
  for (const index of indices) {
    if (index < least) {
      return false;
    }
    least = index + 1;
  }
  return true;
}
