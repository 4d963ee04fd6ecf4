import type { LogLine } from './protocol';

/** Lines of a page. */
export const PAGE = 200;

/** Lines at the end of the log that are always kept. */
export const TAIL = 5_000;

/** Lines kept besides, those used last. */
export const FETCHED = 20_000;

/** Pages kept besides: a filtered log takes a few lines of each of many pages. */
const FETCHED_PAGES = 500;

interface Page {
  lines: (LogLine | undefined)[];
  count: number;
}

/** The lines of a log that are here, by index: its tail, and what was used last of the rest. */
export class Pages {
  /** In the order of their use. */
  readonly #pages = new Map<number, Page>();
  #last = -1;

  get(index: number): LogLine | undefined {
    const number = Math.floor(index / PAGE);
    const page = this.#pages.get(number);
    if (page && number !== this.#last) {
      this.#pages.delete(number);
      this.#pages.set(number, page);
      this.#last = number;
    }
    return page?.lines[index % PAGE];
  }

  has(index: number): boolean {
    return this.#pages.get(Math.floor(index / PAGE))?.lines[index % PAGE] !== undefined;
  }

  /** Keep these lines of a log of `total` lines, and let go of the ones used longest ago where that is too many. */
  put(lines: readonly LogLine[], total: number): void {
    for (const line of lines) {
      const number = Math.floor(line.index / PAGE);
      let page = this.#pages.get(number);
      if (!page) {
        page = { lines: new Array<LogLine | undefined>(PAGE).fill(undefined), count: 0 };
        this.#pages.set(number, page);
        this.#last = number;
      }
      const slot = line.index % PAGE;
      if (page.lines[slot] === undefined) {
        page.count += 1;
      }
      page.lines[slot] = line;
    }
    this.#trim(total);
  }

  clear(): void {
    this.#pages.clear();
    this.#last = -1;
  }

  /** Lines that are here. */
  get size(): number {
    let size = 0;
    for (const page of this.#pages.values()) {
      size += page.count;
    }
    return size;
  }

  #trim(total: number): void {
    const tail = Math.floor(Math.max(total - TAIL, 0) / PAGE);
    let pages = 0;
    let lines = 0;
    for (const [number, page] of this.#pages) {
      if (number < tail) {
        pages += 1;
        lines += page.count;
      }
    }
    for (const [number, page] of this.#pages) {
      if (lines <= FETCHED && pages <= FETCHED_PAGES) {
        return;
      }
      if (number < tail) {
        this.#pages.delete(number);
        pages -= 1;
        lines -= page.count;
      }
    }
  }
}
