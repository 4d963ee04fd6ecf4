import { ServerConnection } from '@jupyterlab/services';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { FeedMessage } from '../src/jobview/protocol';
import { Connection, unpack } from '../src/server';
import { TestSocket, frame } from './frames';

interface Asked {
  method: string;
  path: string;
}

let asked: Asked[];
let answer: () => Response;

beforeEach(() => {
  vi.useFakeTimers();
  TestSocket.opened = [];
  asked = [];
  answer = () => new Response('{}');
});

afterEach(() => {
  vi.useRealTimers();
});

function connection(options: Partial<ServerConnection.ISettings> = {}): Connection {
  return new Connection(
    ServerConnection.makeSettings({
      baseUrl: 'https://host/base/',
      wsUrl: 'wss://host/base/',
      token: 'a b',
      appendToken: true,
      WebSocket: TestSocket as unknown as typeof WebSocket,
      fetch: input => {
        const { method, url } = input as Request;
        asked.push({ method, path: new URL(url).pathname });
        return Promise.resolve(answer());
      },
      ...options
    })
  );
}

function follow(
  to: Connection,
  id: string
): {
  heard: { message: FeedMessage; buffers: ArrayBuffer[] }[];
  statuses: string[];
  send: (type: 'hello' | 'bye') => void;
  close: () => void;
} {
  const heard: { message: FeedMessage; buffers: ArrayBuffer[] }[] = [];
  const statuses: string[] = [];
  const carrier = to.carrier(id);
  const close = carrier.open(
    (message, buffers) => heard.push({ message, buffers }),
    status => statuses.push(status)
  );
  const send = (type: 'hello' | 'bye'): void => {
    carrier.send(type === 'hello' ? { type, client: 'c', version: 1 } : { type, client: 'c' });
  };
  return { heard, statuses, send, close };
}

test('All views of a page share one socket, and each hears its own', () => {
  const page = connection();
  const first = follow(page, 'a-1');
  const second = follow(page, 'b-2');
  expect(TestSocket.opened.map(socket => socket.url)).toEqual([
    'wss://host/base/kfnb/api/events?token=a%20b'
  ]);
  first.send('hello');
  const socket = TestSocket.newest().accept();
  expect(socket.sent).toEqual([]); // what could not be sent is dropped: a store says hello at "open"
  first.send('hello');
  second.send('hello');
  expect(socket.sent.map(({ job, message }) => [job, message.type])).toEqual([
    ['a-1', 'hello'],
    ['b-2', 'hello']
  ]);
  const [a, b] = socket.sent.map(({ channel }) => channel);
  expect(a).not.toBe(b);

  const buffer = Float64Array.of(1, 2).buffer;
  socket.say(frame(a ?? '', { type: 'batch', n: 1 }, [new ArrayBuffer(3), buffer]));
  expect(first.heard.map(({ message }) => message)).toEqual([{ type: 'batch', n: 1 }]);
  expect(Array.from(new Float64Array(first.heard[0]?.buffers[1] ?? new ArrayBuffer(0)))).toEqual([1, 2]);
  expect(second.heard).toEqual([]);
  expect([first.statuses, second.statuses]).toEqual([['open'], ['open']]);

  const third = follow(page, 'c-3');
  expect(third.statuses).toEqual(['open']);
  expect(TestSocket.opened).toHaveLength(1);
});

test('No token is in an address where the page has none, or sends it otherwise', () => {
  follow(connection({ token: '' }), 'a-1');
  follow(connection({ appendToken: false }), 'a-1');
  expect(TestSocket.opened.map(({ url }) => url)).toEqual(Array(2).fill('wss://host/base/kfnb/api/events'));
});

test('A lost socket is opened again, ever less often, and at once for a new view', () => {
  const page = connection();
  const view = follow(page, 'a-1');
  TestSocket.newest().accept().close();
  expect(view.statuses).toEqual(['open', 'lost']);
  const waits: number[] = [];
  for (let tries = 1; tries <= 8; tries += 1) {
    const before = Date.now();
    while (TestSocket.opened.length === tries) {
      vi.advanceTimersByTime(100);
    }
    waits.push((Date.now() - before) / 1_000);
    TestSocket.newest().close();
  }
  waits.forEach((wait, i) => {
    const most = Math.min(2 ** i, 30);
    expect(wait).toBeGreaterThanOrEqual(most);
    expect(wait).toBeLessThanOrEqual(1.5 * most + 0.1);
  });

  follow(page, 'b-2');
  expect(TestSocket.opened).toHaveLength(10);
  TestSocket.newest().accept();
  expect(view.statuses.at(-1)).toBe('open');
  vi.advanceTimersByTime(60_000);
  expect(TestSocket.opened).toHaveLength(10);
});

test('A server that takes the page and drops it is asked ever less often; after one that held, soon', () => {
  follow(connection(), 'a-1');
  const wait = (held: number): number => {
    const before = TestSocket.opened.length;
    const socket = TestSocket.newest().accept();
    vi.advanceTimersByTime(held);
    socket.close();
    const from = Date.now();
    while (TestSocket.opened.length === before) {
      vi.advanceTimersByTime(100);
    }
    return Date.now() - from;
  };
  expect([100, 100, 100, 100, 100].map(wait).at(-1)).toBeGreaterThanOrEqual(16_000);
  expect(wait(60_000)).toBeLessThan(2_000);
});

test('It closes some time after the last view, and opens with the next', () => {
  const page = connection();
  const first = follow(page, 'a-1');
  const socket = TestSocket.newest().accept();
  first.close();
  vi.advanceTimersByTime(9_000);
  const second = follow(page, 'a-1'); // rendered again
  vi.advanceTimersByTime(60_000);
  expect(socket.readyState).toBe(WebSocket.OPEN);
  second.close();
  vi.advanceTimersByTime(11_000);
  expect(socket.readyState).toBe(WebSocket.CLOSED);
  vi.advanceTimersByTime(60_000);
  expect(TestSocket.opened).toHaveLength(1);
  expect(first.heard).toEqual([]);

  const third = follow(page, 'a-1');
  expect(TestSocket.opened).toHaveLength(2);
  TestSocket.newest().accept();
  expect(third.statuses).toEqual(['open']);
});

test('Frames that cannot be read, and those of views that have gone, are dropped', () => {
  const page = connection();
  const view = follow(page, 'a-1');
  const gone = follow(page, 'b-2');
  const socket = TestSocket.newest().accept();
  view.send('hello');
  gone.send('hello');
  const [mine = '', other = ''] = socket.sent.map(({ channel }) => channel);
  gone.close();
  const whole = frame(mine, { type: 'batch', n: 1 }, [new ArrayBuffer(8)]);
  for (const data of ['text', null, new ArrayBuffer(0), new ArrayBuffer(64), whole.slice(0, -1)]) {
    socket.say(data);
  }
  socket.say(frame(other, { type: 'batch', n: 1 }));
  socket.say(frame('unknown', { type: 'batch', n: 1 }));
  expect([view.heard, gone.heard]).toEqual([[], []]);
  socket.say(whole);
  expect(view.heard).toHaveLength(1);
  expect(unpack(whole.slice(0, 3))).toBeNull();
});

test.each([
  [200, true],
  [404, false],
  [403, false]
])('A server is asked once whether it has kfnb: %i', async (status, served) => {
  const page = connection();
  answer = () => new Response('{}', { status });
  expect(await Promise.all([page.served(), page.served()])).toEqual([served, served]);
  expect(await page.served()).toBe(served);
  expect(asked).toEqual([{ method: 'GET', path: '/base/kfnb/api/status' }]);
});

test('A server that cannot say whether it has kfnb is asked again, a few times', async () => {
  const page = connection();
  const answers = [
    (): Response => {
      throw new TypeError('no network');
    },
    () => new Response('', { status: 503 }),
    () => new Response('{}')
  ];
  answer = () => (answers.shift() ?? (() => new Response('', { status: 500 })))();
  const there = page.served();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(await there).toBe(true);
  expect(asked).toHaveLength(3);

  const other = connection();
  const never = other.served();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(await never).toBe(false);
  expect(asked).toHaveLength(7);
  answer = () => new Response('{}');
  expect(await other.served()).toBe(true); // it is back
});

test('A job is stopped by the server, and a refusal is told', async () => {
  const carrier = connection().carrier('a-1');
  await carrier.stop?.();
  expect(asked).toEqual([{ method: 'POST', path: '/base/kfnb/api/jobs/a-1/stop' }]);
  answer = () => new Response(JSON.stringify({ message: 'Forbidden' }), { status: 403 });
  await expect(carrier.stop?.()).rejects.toThrow('Forbidden');
});
