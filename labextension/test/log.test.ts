import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { JobStore } from '../src/jobview/store';
import { FETCHED, PAGE, Pages, TAIL } from '../src/jobview/pages';
import type { LogLine, ViewMessage } from '../src/jobview/protocol';
import { TestFeed } from './feed';
import { Random } from './random';

let feed: TestFeed;
let opened: JobStore[] = [];
let store: JobStore;

beforeEach(() => {
  vi.useFakeTimers();
  feed = new TestFeed();
  feed.newest = 300;
});

afterEach(() => {
  opened.forEach(each => {
    each.dispose();
  });
  opened = [];
  vi.useRealTimers();
});

function open(count: number): void {
  feed.print(...Array.from({ length: count }, (_, i) => `line ${i}`));
  store = new JobStore(feed, 'job-1');
  opened.push(store);
}

/** Let answers that are there arrive, and what follows from them. */
const settle = (): Promise<unknown> => vi.advanceTimersByTimeAsync(0);

describe('pages', () => {
  const lines = (first: number, count: number): LogLine[] =>
    Array.from({ length: count }, (_, i) => {
      return { index: first + i, text: String(first + i), rank: 0, time: 0, flags: 0 };
    });

  test('the tail is always here, the rest within bounds, what was used last the longest', () => {
    const pages = new Pages();
    const total = 200_000;
    for (let first = 0; first < total; first += 1_000) {
      pages.put(lines(first, 1_000), first + 1_000);
    }
    expect(pages.size).toBeLessThanOrEqual(TAIL + FETCHED + PAGE);
    for (let index = total - TAIL; index < total; index += 1) {
      expect(pages.get(index)?.text).toBe(String(index));
    }
    pages.put(lines(0, PAGE), total);
    for (let first = 1_000; first < 150_000; first += PAGE) {
      expect(pages.get(5)?.index).toBe(5);
      pages.put(lines(first, PAGE), total);
    }
    expect(pages.get(PAGE * 6)).toBeUndefined();
    expect(pages.has(total - TAIL)).toBe(true);
    expect(pages.size).toBeLessThanOrEqual(TAIL + FETCHED + PAGE);
  });

  test('single lines of many pages are bounded too', () => {
    const pages = new Pages();
    const random = new Random(3);
    for (let i = 0; i < 5_000; i += 1) {
      const index = random.below(5_000_000);
      pages.put(lines(index, 1), 6_000_000);
      expect(pages.get(index)?.index).toBe(index);
    }
    expect(pages.size).toBeLessThan(1_000);
  });
});

describe('lines that are not here', () => {
  test('are asked for a page at a time, once, and told of when they come', async () => {
    open(5_000);
    const told = vi.fn();
    store.subscribe('log', told);
    vi.advanceTimersByTime(300);
    told.mockClear();
    for (let index = 1_000; index < 1_050; index += 1) {
      expect(store.log.line(index)).toBeUndefined();
      expect(store.log.line(index)).toBeUndefined();
    }
    await settle();
    expect(feed.calls('lines').map(call => call.params)).toEqual([{ first: 1_000, count: 200 }]);
    expect(store.log.line(1_000)).toEqual({ index: 1_000, text: 'line 1000', rank: 0, time: 0, flags: 0 });
    await vi.advanceTimersByTimeAsync(300);
    expect(told).toHaveBeenCalledTimes(1);
    expect(feed.calls('lines')).toHaveLength(1);
  });

  test('at most four requests at a time, what was wanted last first', async () => {
    const waiting: (ViewMessage & { type: 'call' })[] = [];
    open(50_000);
    feed.onCall = call => waiting.push(call);
    for (let page = 0; page < 10; page += 1) {
      store.log.line(page * PAGE);
    }
    await settle();
    expect(waiting.map(call => call.params)).toEqual(
      [9, 8, 7, 6].map(page => ({ first: page * PAGE, count: PAGE }))
    );
    store.log.line(30_000);
    store.log.line(9 * PAGE + 1);
    await settle();
    expect(waiting).toHaveLength(4);
    feed.answer(waiting[0] as ViewMessage & { type: 'call' });
    await settle();
    expect(waiting[4]?.params).toEqual({ first: 30_000, count: PAGE });
  });

  test('an error does not ask at once again, but after a while', async () => {
    open(5_000);
    feed.onCall = call => {
      feed.refuse(call);
    };
    const look = (): unknown => store.log.line(0);
    store.subscribe('log', look);
    look();
    await settle();
    look();
    await settle();
    expect(feed.calls('lines')).toHaveLength(1);
    feed.onCall = undefined;
    await vi.advanceTimersByTimeAsync(1_500);
    expect(feed.calls('lines')).toHaveLength(2);
    expect(store.log.line(0)?.text).toBe('line 0');
  });

  test('skipped lines are holes that are filled when they are looked at', async () => {
    open(10);
    feed.print(...Array.from({ length: 100 }, (_, i) => `skipped ${i}`));
    const skip = feed.deliver;
    feed.deliver = packed => {
      const log = packed.message.log as { total: number };
      skip({
        message: { ...packed.message, log: { total: log.total, first: log.total, count: 0 } },
        buffers: [...Array.from({ length: 4 }, () => new ArrayBuffer(0)), ...packed.buffers.slice(4)]
      });
    };
    feed.batch();
    expect(store.log.total).toBe(110);
    expect(store.log.line(50)).toBeUndefined();
    await settle();
    expect(store.log.line(50)?.text).toBe('skipped 40');
    expect(store.log.line(5)?.text).toBe('line 5');
  });

  test('beyond the end, of a preview, or of no index: nothing is asked', async () => {
    open(10);
    store.log.line(10);
    store.log.line(-1);
    store.log.line(1.5);
    feed.lines.length = 0;
    feed.print(...Array.from({ length: 1_000 }, () => 'x'));
    feed.snapshot(null, { preview: true });
    store.log.line(0);
    await settle();
    expect(feed.calls('lines')).toEqual([]);
  });

  test('an answer about a log that was replaced is dropped', async () => {
    const waiting: (ViewMessage & { type: 'call' })[] = [];
    open(5_000);
    feed.onCall = call => waiting.push(call);
    store.log.line(0);
    await settle();
    feed.answer(waiting[0] as ViewMessage & { type: 'call' });
    feed.lines.splice(0, 5_000, ...Array.from({ length: 1_000 }, () => ({ text: 'new', rank: 0 })));
    feed.snapshot(null);
    await settle();
    expect(store.log.line(0)).toBeUndefined();
  });

  test('a whole text, and what is shown', async () => {
    open(5_000);
    await expect(store.log.whole(7)).resolves.toBe('line 7');
    const all = await store.log.collect(100_000);
    expect(all.cut).toBe(false);
    expect(all.lines.map(line => line.text)).toEqual(feed.lines.map(line => line.text));
    const newest = await store.log.collect(3);
    expect(newest.lines.map(line => line.text)).toEqual(['line 4997', 'line 4998', 'line 4999']);
    expect(newest.cut).toBe(true);
    store.log.setFilter({ text: '99', ranks: null });
    await vi.advanceTimersByTimeAsync(200);
    const matching = await store.log.collect(100_000);
    expect(matching.lines.map(line => line.index)).toEqual(feed.matching('99', null));
  });
});

describe('a filter', () => {
  const matches = (): number[] => [...(store.log.matches ?? [])];

  test('asks after a moment without typing, and grows with the log', async () => {
    open(1_000);
    store.log.setFilter({ text: 'LINE 1', ranks: null });
    await vi.advanceTimersByTimeAsync(100);
    store.log.setFilter({ text: 'LINE 12', ranks: null });
    expect(store.log.scanning).toBe(true);
    expect(store.log.matches).toBeNull();
    await vi.advanceTimersByTimeAsync(200);
    expect(feed.calls('scan')).toHaveLength(1);
    expect(matches()).toEqual(feed.matching('line 12', null));
    expect(store.log.scanning).toBe(false);
    for (let i = 0; i < 20; i += 1) {
      feed.print(`line 12 again ${i}`);
      feed.batch();
      await vi.advanceTimersByTimeAsync(50);
    }
    await vi.advanceTimersByTimeAsync(500);
    const scans = feed.calls('scan');
    expect(scans.length).toBeLessThanOrEqual(6);
    expect(scans.at(-1)?.params.since).toBeGreaterThan(1_000);
    expect(matches()).toEqual(feed.matching('line 12', null));
    await vi.advanceTimersByTimeAsync(3_000);
    expect(feed.calls('scan')).toHaveLength(scans.length);
  });

  test('of ranks; an empty one is none', async () => {
    open(100);
    store.log.setFilter({ text: '', ranks: new Set([2, 1]) });
    await vi.advanceTimersByTimeAsync(200);
    expect(feed.calls('scan')[0]?.params).toEqual({ text: '', ranks: [1, 2], since: 0 });
    expect(matches()).toEqual(feed.matching('', [1, 2]));
    store.log.setFilter({ text: '', ranks: null });
    expect(store.log.filter).toBeNull();
    expect(store.log.matches).toBeNull();
  });

  test('the answer to an outdated one is dropped', async () => {
    const waiting: (ViewMessage & { type: 'call' })[] = [];
    open(100);
    feed.onCall = call => waiting.push(call);
    store.log.setFilter({ text: '1', ranks: null });
    await vi.advanceTimersByTimeAsync(200);
    store.log.setFilter({ text: '7', ranks: null });
    await vi.advanceTimersByTimeAsync(200);
    feed.answer(waiting[1] as ViewMessage & { type: 'call' });
    feed.answer(waiting[0] as ViewMessage & { type: 'call' });
    await settle();
    expect(matches()).toEqual(feed.matching('7', null));
    store.log.setFilter(null);
    expect(store.log.matches).toBeNull();
  });

  test('an answer that makes no sense is asked for again', async () => {
    open(100);
    feed.onCall = call => {
      feed.reply(call, { count: 2, truncated: false, upto: 100 }, [Uint32Array.of(9, 3).buffer]);
    };
    store.log.setFilter({ text: '1', ranks: null });
    await vi.advanceTimersByTimeAsync(200);
    expect(store.log.scanning).toBe(true);
    feed.onCall = undefined;
    await vi.advanceTimersByTimeAsync(2_500);
    expect(matches()).toEqual(feed.matching('1', null));
  });

  test('a preview is not searched, the whole is', async () => {
    open(100);
    feed.snapshot(null, { preview: true });
    store.log.setFilter({ text: '1', ranks: null });
    feed.print('1');
    feed.batch();
    await vi.advanceTimersByTimeAsync(1_000);
    expect(feed.calls('scan')).toEqual([]);
    expect(store.log.scanning).toBe(true);
    feed.snapshot(null);
    await vi.advanceTimersByTimeAsync(100);
    expect(matches()).toEqual(feed.matching('1', null));
  });

  test('lines that match far apart are asked for by themselves', async () => {
    open(50_000);
    store.log.setFilter({ text: '0000', ranks: null });
    await vi.advanceTimersByTimeAsync(200);
    matches().forEach(index => store.log.line(index));
    await settle();
    expect(feed.calls('lines')).toHaveLength(1);
    expect(matches().map(index => store.log.line(index)?.text)).toEqual([
      'line 10000',
      'line 20000',
      'line 30000',
      'line 40000'
    ]);
  });

  test('millions of matches stay bounded: the newest are kept', async () => {
    open(10);
    let next = 0;
    feed.onCall = call => {
      const found = Uint32Array.from({ length: 150_000 }, (_, i) => next + i);
      next += 150_000;
      feed.reply(call, { count: found.length, truncated: false, upto: next }, [found.buffer]);
      feed.lines.length = 0;
    };
    store.log.setFilter({ text: 'x', ranks: null });
    await vi.advanceTimersByTimeAsync(200);
    for (let i = 0; i < 10; i += 1) {
      store.log.add({ total: next + 1, first: next, count: 0, lines: [] });
      await vi.advanceTimersByTimeAsync(300);
      const found = store.log.matches ?? new Uint32Array();
      expect(found.at(-1)).toBe(next - 1);
      expect(found.length).toBeLessThanOrEqual(400_000);
      expect(found.every((index, at) => at === 0 || index > (found[at - 1] ?? 0))).toBe(true);
    }
    expect(store.log.truncated).toBe(true);
  });
});
