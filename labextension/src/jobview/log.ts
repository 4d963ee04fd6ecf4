import { decodeLines, isCount } from './decode';
import { type Filter, Matches } from './matches';
import { PAGE, Pages } from './pages';
import {
  type Answer,
  type Call,
  type CallParams,
  type GoingLine,
  type LogHeader,
  type LogLine,
  unusable
} from './protocol';

/** Requests for lines that are under way at a time. */
const REQUESTS = 4;

/** Indices that wait to be asked for: a page or two of a screen. What was scrolled past is forgotten. */
const WANTED = 400;

/** Milliseconds before lines that could not be had are asked for again. */
const RETRY = 1_000;

/** Lines that one request may ask for. */
const AT_ONCE = 2_000;

/** A job's log as far as it is here: its tail, what was looked at last, and which lines match a filter. */
export class Log {
  readonly #call: Call;
  readonly #changed: () => void;
  readonly #pages = new Pages();
  readonly #matches: Matches;
  #total = 0;
  #preview = false;
  #going: readonly GoingLine[] = [];
  /** Counts the replacements of the whole: answers to what was asked of an earlier one are dropped. */
  #generation = 0;
  /** Indices in the order in which they were wanted, and those that are asked for. */
  #wanted = new Set<number>();
  #asked = new Set<number>();
  #requests = 0;
  #planned = false;
  #rest: ReturnType<typeof setTimeout> | undefined;

  /** `changed` is called when a view would see something else than before. */
  constructor(call: Call, changed: () => void) {
    this.#call = call;
    this.#changed = changed;
    this.#matches = new Matches(call, changed);
  }

  /** Lines that there are. */
  get total(): number {
    return this.#total;
  }

  /** Lines that go on, as progress bars do. */
  get going(): readonly GoingLine[] {
    return this.#going;
  }

  get filter(): Filter | null {
    return this.#matches.filter;
  }

  /** Show only some lines. The matches of the filter before stay until those of this one are known. */
  setFilter(filter: Filter | null): void {
    this.#wanted.clear();
    this.#matches.set(filter);
  }

  /**
   * Ascending indices of the lines that match the filter; null without one, and until its first search is answered.
   * An index may be that of a line that is still on its way (`index >= total`).
   */
  get matches(): Uint32Array | null {
    return this.#matches.indices;
  }

  /** Whether `matches` do not belong to `filter` yet. */
  get scanning(): boolean {
    return this.#matches.scanning;
  }

  /** Whether older lines match too. */
  get truncated(): boolean {
    return this.#matches.truncated;
  }

  /** A line; undefined where it is not here. It is asked for then, and listeners are told when it has come. */
  line(index: number): LogLine | undefined {
    const line = this.#pages.get(index);
    if (line === undefined && isCount(index) && index < this.#total && !this.#preview) {
      this.#want(index);
    }
    return line;
  }

  /** All of a line's text, up to 1 MiB of it, where the line itself is cut. */
  async whole(index: number): Promise<string> {
    const answer = await this.#call('lines', { indices: [index], whole: true });
    const line = readLines(answer, { indices: [index] })?.[0];
    if (!line) {
      throw unusable('lines');
    }
    return line.text;
  }

  /** The newest `limit` lines of those that are shown: the matches, or all. `cut`: there are more. */
  async collect(limit: number): Promise<{ lines: LogLine[]; cut: boolean }> {
    const shown = this.matches?.slice();
    const count = shown ? shown.length : this.#total;
    const lines: LogLine[] = [];
    for (let from = Math.max(count - limit, 0); from < count; from += AT_ONCE) {
      const length = Math.min(AT_ONCE, count - from);
      const indices = Array.from({ length }, (_, i) => shown?.[from + i] ?? from + i);
      const missing = indices.filter(index => !this.#pages.has(index));
      const fetched = new Map<number, LogLine>();
      if (missing.length > 0 && !this.#preview) {
        const params = { indices: missing };
        for (const line of readLines(await this.#call('lines', params), params) ?? []) {
          fetched.set(line.index, line);
        }
      }
      for (const index of indices) {
        const line = fetched.get(index) ?? this.#pages.get(index);
        if (line) {
          lines.push(line);
        }
      }
    }
    return { lines, cut: count > limit || this.#preview };
  }

  /** Take lines that were added. Indices between the end before and `first` are lines that were skipped. */
  add({ total, lines }: LogHeader & { lines: readonly LogLine[] }): void {
    this.#total = Math.max(total, this.#total);
    this.#pages.put(lines, this.#total);
    this.#matches.grown(this.#total);
    this.#changed();
  }

  /** Forget all, and take this instead. */
  replace({ total, lines }: { total: number; lines: readonly LogLine[] }, preview: boolean): void {
    this.#generation += 1;
    this.#pages.clear();
    this.#wanted.clear();
    this.#asked.clear();
    this.#requests = 0;
    this.#total = total;
    this.#preview = preview;
    this.#pages.put(lines, total);
    this.#matches.replaced(total, preview);
    this.#changed();
  }

  setGoing(going: readonly GoingLine[]): void {
    this.#going = going;
    this.#changed();
  }

  dispose(): void {
    this.#generation += 1;
    clearTimeout(this.#rest);
    this.#wanted.clear();
    this.#matches.dispose();
  }

  #want(index: number): void {
    if (this.#asked.has(index)) {
      return;
    }
    this.#wanted.delete(index);
    this.#wanted.add(index);
    if (this.#wanted.size > WANTED) {
      for (const oldest of this.#wanted) {
        this.#wanted.delete(oldest);
        break;
      }
    }
    if (!this.#planned) {
      // A view asks for a screenful at once; which page is needed most is known when it has.
      this.#planned = true;
      queueMicrotask(() => {
        this.#planned = false;
        this.#request();
      });
    }
  }

  #request(): void {
    while (this.#requests < REQUESTS && this.#wanted.size > 0 && this.#rest === undefined) {
      const newest = [...this.#wanted].pop() ?? 0;
      const page = newest - (newest % PAGE);
      const params = this.#matches.indices
        ? { indices: [...this.#wanted].slice(-PAGE).sort((a, b) => a - b) }
        : { first: page, count: Math.min(PAGE, this.#total - page) };
      const indices = 'indices' in params ? params.indices : range(params.first, params.count);
      for (const index of indices) {
        this.#asked.add(index);
        this.#wanted.delete(index);
      }
      void this.#fetch(params, indices);
    }
  }

  async #fetch(params: CallParams['lines'], indices: readonly number[]): Promise<void> {
    const generation = this.#generation;
    this.#requests += 1;
    let lines: LogLine[] | undefined;
    try {
      lines = readLines(await this.#call('lines', params), params);
    } catch {
      // Why does not matter to the lines: they are asked for again while somebody looks at them.
    }
    if (generation !== this.#generation) {
      return;
    }
    this.#requests -= 1;
    for (const index of indices) {
      this.#asked.delete(index);
    }
    if (lines !== undefined && lines.length > 0) {
      this.#pages.put(lines, this.#total);
      this.#changed();
    } else {
      this.#pause();
    }
    this.#request();
  }

  /** Ask for nothing for a while, then have the view ask for what it still wants. */
  #pause(): void {
    this.#rest ??= setTimeout(() => {
      this.#rest = undefined;
      this.#wanted.clear();
      this.#changed();
    }, RETRY);
  }
}

/** The lines that an answer holds, of those that were asked for. */
function readLines({ result, buffers }: Answer, params: CallParams['lines']): LogLine[] | undefined {
  const { first, count, indices } = result;
  if (!isCount(count)) {
    return undefined;
  }
  if ('indices' in params) {
    const wanted = new Set(params.indices);
    const place = Array.isArray(indices) && indices.every(isCount) ? indices : params.indices;
    return place.length === count
      ? decodeLines(buffers, count, place)?.filter(line => wanted.has(line.index))
      : undefined;
  }
  if (first !== params.first || count > params.count) {
    return undefined;
  }
  return decodeLines(buffers, count, first);
}

function range(first: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => first + i);
}
