import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { JobStore } from '../src/jobview/store';
import { type Packed, TestFeed } from './feed';
import { Random } from './random';

let feed: TestFeed;
let store: JobStore;

beforeEach(() => {
  vi.useFakeTimers();
  vi.setSystemTime(1_000_000);
  feed = new TestFeed();
});

afterEach(() => {
  store.dispose();
  vi.useRealTimers();
});

function open(): JobStore {
  store = new JobStore(feed, 'job-1');
  return store;
}

/** All that a store knows, to compare. */
function state(of: JobStore): unknown {
  return {
    head: { ...of.head, now: 0 },
    ranks: [...of.ranks],
    going: of.going,
    lines: Array.from({ length: of.log.total }, (_, i) => of.log.line(i)?.text),
    curves: [...of.curves.values()].map(curve => [
      curve.tag,
      curve.total,
      [...curve.steps],
      [...curve.walls],
      [...curve.values]
    ])
  };
}

describe('following', () => {
  test('a hello brings a snapshot, batches go on from it', () => {
    feed.print('one', 'two');
    feed.log('loss', [0, 1, 0.5]);
    open();
    expect(feed.of('hello')).toHaveLength(1);
    expect(store.status).toBe('open');
    expect(store.log.total).toBe(2);
    feed.print('three');
    feed.log('loss', [1, 2, NaN]);
    feed.batch({
      ranks: [{ rank: 1, node: 0, state: 'running', pid: 7, code: null, line: 'three', done: 0.5 }],
      going: [{ rank: 1, text: '50%' }]
    });
    expect(store.log.line(2)?.text).toBe('three');
    expect([...(store.curves.get('loss')?.values ?? [])]).toEqual([0.5, NaN]);
    expect(store.ranks.get(1)?.state).toBe('running');
    expect(store.going).toEqual([{ rank: 1, text: '50%' }]);
  });

  test('a snapshot for another view is ignored, one for all replaces all', () => {
    feed.print('old');
    feed.log('loss', [0, 1, 2]);
    open();
    feed.lines.length = 0;
    feed.points.clear();
    feed.snapshot('somebody else');
    expect(store.log.total).toBe(1);
    feed.snapshot(null);
    expect(store.log.total).toBe(0);
    expect(store.curves.size).toBe(0);
  });

  test('a missing batch is asked for once; without it a snapshot is asked for', () => {
    open();
    const kept: Packed[] = [];
    feed.deliver = packed => kept.push(packed);
    feed.batch();
    feed.batch();
    feed.batch();
    feed.arrive(kept[1]);
    feed.arrive(kept[2]);
    expect(feed.of('resend')).toEqual([{ type: 'resend', from: 1, to: 1 }]);
    vi.advanceTimersByTime(3_000);
    expect(feed.of('resend')).toHaveLength(1);
    expect(feed.of('hello')).toHaveLength(2);
  });

  test('acknowledgements are at most one in 100 ms, the newest last', () => {
    open();
    for (let i = 0; i < 50; i += 1) {
      feed.batch();
      vi.advanceTimersByTime(10);
    }
    vi.advanceTimersByTime(200);
    const acks = feed.of('ack').map(({ n }) => n);
    expect(acks.length).toBeGreaterThan(3);
    expect(acks.length).toBeLessThanOrEqual(8);
    expect(acks.at(-1)).toBe(50);
  });

  test('a preview is replaced by the whole, whatever its number', () => {
    feed.print('newest');
    feed.n = 5;
    feed.deliver = packed => {
      feed.arrive({ ...packed, message: { ...packed.message, preview: true } });
    };
    open();
    expect(store.preview).toBe(true);
    feed.deliver = packed => {
      feed.arrive(packed);
    };
    feed.n = 0;
    feed.lines.unshift({ text: 'first', rank: 0 });
    feed.snapshot(null);
    expect(store.preview).toBe(false);
    expect(store.log.total).toBe(2);
  });

  test('a feed that counts anew is followed', () => {
    open();
    feed.batch();
    feed.batch();
    feed.n = 0;
    feed.print('after a restart of the kernel');
    feed.snapshot(null);
    expect(store.log.line(0)?.text).toBe('after a restart of the kernel');
    feed.print('more');
    feed.batch();
    expect(store.log.total).toBe(2);
  });

  test('whatever is lost, repeated or late, all stores end alike', () => {
    for (let seed = 1; seed <= 40; seed += 1) {
      const random = new Random(seed);
      feed = new TestFeed();
      open();
      const perfect = new TestFeed();
      const reference = new JobStore(perfect, 'job-1');
      const loss = random.next() * 0.4;
      const late: Packed[] = [];
      feed.deliver = packed => {
        if (random.next() < loss) {
          return;
        }
        late.push(packed);
        if (random.next() < 0.1) {
          late.push(packed);
        }
        while (late.length > 0 && random.next() < 0.8) {
          feed.arrive(late.splice(random.below(Math.min(late.length, 3)), 1)[0]);
        }
      };
      for (let i = 0; i < 60; i += 1) {
        for (const each of [feed, perfect]) {
          each.print(...Array.from({ length: i % 5 }, (_, k) => `line ${i}.${k}`));
          each.log(`tag ${i % 3}`, [i, i * 10, Math.sin(i)]);
          each.head = { reason: `batch ${i}` };
          each.batch({ going: [{ rank: 0, text: String(i) }] });
        }
        vi.advanceTimersByTime(random.below(300));
      }
      feed.deliver = packed => {
        feed.arrive(packed);
      };
      late.forEach(packed => {
        feed.arrive(packed);
      });
      vi.advanceTimersByTime(6_000);
      for (const each of [feed, perfect]) {
        each.batch({ going: [] });
      }
      vi.advanceTimersByTime(6_000);
      expect(state(store), `seed ${seed}`).toEqual(state(reference));
      store.dispose();
      reference.dispose();
    }
  });

  test('hostile messages are dropped and throw nothing', () => {
    feed.print('kept');
    open();
    const random = new Random(9);
    const junk = [null, -1, 1.5, NaN, 2 ** 60, 'x', [], {}, [null], [{}], { count: 1e9 }, true, undefined];
    const keys = [
      'to',
      'n',
      'preview',
      'head',
      'ranks',
      'going',
      'log',
      'series',
      'ok',
      'id',
      'result',
      'error'
    ];
    for (let i = 0; i < 3_000; i += 1) {
      const message: Record<string, unknown> = {
        type: random.pick(['snapshot', 'batch', 'reply', 'what', 7])
      };
      for (const key of keys) {
        if (random.next() < 0.5) {
          message[key] = random.pick(junk);
        }
      }
      const buffers = Array.from({ length: random.below(8) }, () => new ArrayBuffer(random.below(20)));
      feed.arrive({ message, buffers });
    }
    feed.arrive({ message: null as never, buffers: [] });
    vi.advanceTimersByTime(10_000);
    expect(store.log.line(0)?.text).toBe('kept');
    feed.print('and on');
    feed.snapshot(null);
    expect(store.log.total).toBe(2);
  });
});

describe('telling', () => {
  test('listeners are told once for many changes, by topic, and not after they left', () => {
    open();
    vi.advanceTimersByTime(300);
    const told = { head: 0, log: 0, curves: 0 };
    const leave = store.subscribe('head', () => (told.head += 1));
    store.subscribe('log', () => (told.log += 1));
    store.subscribe('curves', () => (told.curves += 1));
    feed.print('x');
    feed.batch();
    feed.batch();
    expect(told.log).toBe(0);
    vi.advanceTimersByTime(300);
    expect(told).toMatchObject({ head: 1, log: 1 });
    leave();
    feed.batch();
    vi.advanceTimersByTime(300);
    expect(told).toMatchObject({ head: 1, log: 2 });
  });

  test('elapsed goes by the clock of the feed', () => {
    const now = Date.now() / 1000 + 500;
    feed.head = { started: now - 60, now };
    open();
    expect(store.elapsed()).toBeCloseTo(60);
    vi.advanceTimersByTime(5_000);
    expect(store.elapsed()).toBeCloseTo(65);
    // A message that was on its way for 3 s does not set the clock back.
    feed.head = { started: now - 60, now: now + 2 };
    feed.batch();
    expect(store.elapsed()).toBeCloseTo(65);
    feed.head = { started: now - 60, ended: now - 20, now: now + 5, phase: 'Succeeded' };
    feed.batch();
    expect(store.elapsed()).toBeCloseTo(40);
  });

  test('visibility is told when it changes, and to every new feed', () => {
    open();
    feed.sent.length = 0;
    store.setVisible(true);
    store.setVisible(false);
    store.setVisible(false);
    expect(feed.of('visible')).toEqual([{ type: 'visible', visible: false }]);
    feed.status('open');
    expect(feed.of('visible')).toHaveLength(2);
  });
});

describe('silence', () => {
  test('a silent feed of a running job is asked; without an answer it is lost, until it is heard again', () => {
    open();
    feed.deliver = () => undefined;
    vi.advanceTimersByTime(9_000);
    expect(feed.of('hello')).toHaveLength(1);
    vi.advanceTimersByTime(2_000);
    expect(feed.of('hello')).toHaveLength(2);
    expect(store.status).toBe('open');
    vi.advanceTimersByTime(5_000);
    expect(store.status).toBe('lost');
    const asked = feed.of('hello').length;
    vi.advanceTimersByTime(20_000);
    expect(feed.of('hello').length - asked).toBe(4);
    feed.deliver = packed => {
      feed.arrive(packed);
    };
    vi.advanceTimersByTime(5_000);
    expect(store.status).toBe('open');
  });

  test('a job that is over may be silent', () => {
    feed.head = { phase: 'Succeeded' };
    open();
    vi.advanceTimersByTime(60_000);
    expect(feed.of('hello')).toHaveLength(1);
    expect(store.status).toBe('open');
  });

  test('a feed that never answers is lost', () => {
    feed.deliver = () => undefined;
    open();
    expect(store.status).toBe('connecting');
    vi.advanceTimersByTime(11_000);
    expect(store.status).toBe('lost');
  });

  test('what the carrier loses is lost at once, and hello is said when it is back', () => {
    open();
    feed.status('lost');
    expect(store.status).toBe('lost');
    vi.advanceTimersByTime(30_000);
    expect(feed.of('hello')).toHaveLength(1);
    feed.status('open');
    expect(feed.of('hello')).toHaveLength(2);
    expect(store.status).toBe('open');
  });

  test('a job that is gone says why', () => {
    open();
    feed.arrive({ message: { type: 'gone', what: 'job-1 is gone.', why: 'deleted', fix: '' }, buffers: [] });
    expect(store.gone).toEqual({ what: 'job-1 is gone.', why: 'deleted', fix: '' });
  });
});

describe('calls', () => {
  test('an answer is the answer to its call, an error is three sentences', async () => {
    feed.onCall = call => {
      if (call.method === 'script') {
        feed.reply(call, { text: 'print()', filename: 'a.py' });
      } else {
        feed.refuse(call);
      }
    };
    open();
    await expect(store.script()).resolves.toEqual({ text: 'print()', filename: 'a.py' });
    await expect(store.again()).rejects.toMatchObject({
      what: 'No.',
      why: 'A test says so.',
      fix: 'Ask another.'
    });
  });

  test('a call that nobody answers fails, and so do those that wait when the connection is lost', async () => {
    feed.onCall = () => undefined;
    open();
    const asked = expect(store.again()).rejects.toMatchObject({ what: 'No answer came.' });
    await vi.advanceTimersByTimeAsync(15_000);
    await asked;
    const waiting = expect(store.again()).rejects.toMatchObject({ what: 'The job cannot be asked now.' });
    feed.status('lost');
    await waiting;
    await expect(store.again()).rejects.toMatchObject({ what: 'The job cannot be asked now.' });
  });

  test('an answer that cannot be used is an error', async () => {
    feed.onCall = call => {
      feed.reply(call, { count: 3 }, [new ArrayBuffer(8)]);
    };
    open();
    await expect(store.fetchCurve('a', 'step', 0, 1, 10)).rejects.toMatchObject({ name: 'FeedError' });
    await expect(store.stacks()).rejects.toMatchObject({ name: 'FeedError' });
    await expect(store.log.whole(0)).rejects.toMatchObject({ name: 'FeedError' });
  });

  test('stop takes the other way where no answer comes, or a refusal', async () => {
    const other = vi.fn(() => Promise.resolve());
    Object.assign(feed, { stop: other });
    feed.onCall = () => undefined;
    open();
    const stopped = store.stop();
    await vi.advanceTimersByTimeAsync(1_900);
    expect(other).not.toHaveBeenCalled();
    await vi.advanceTimersByTimeAsync(200);
    await stopped;
    expect(other).toHaveBeenCalledTimes(1);
    feed.onCall = call => {
      feed.refuse(call);
    };
    await store.stop();
    expect(other).toHaveBeenCalledTimes(2);
    feed.onCall = call => {
      feed.reply(call, { phase: 'Stopping' });
    };
    await store.stop();
    expect(other).toHaveBeenCalledTimes(2);
  });

  test('stop without another way says why it failed', async () => {
    feed.onCall = call => {
      feed.refuse(call);
    };
    open();
    await expect(store.stop()).rejects.toMatchObject({ what: 'No.' });
  });

  test('a store that is disposed of says goodbye and is quiet', () => {
    open();
    store.dispose();
    expect(feed.sent.at(-1)).toMatchObject({ type: 'bye', client: expect.any(String) as string });
    expect(feed.closed).toBe(true);
    const sent = feed.sent.length;
    feed.batch();
    vi.advanceTimersByTime(60_000);
    expect(feed.sent).toHaveLength(sent);
    expect(vi.getTimerCount()).toBe(0);
  });
});
