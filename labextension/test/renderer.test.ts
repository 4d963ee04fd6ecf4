import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ServerConnection } from '@jupyterlab/services';
import { Widget } from '@lumino/widgets';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { RECORD, WIDGET, addRenderer } from '../src/renderer';
import { Connection } from '../src/server';
import { TestFeed } from './feed';
import { TestSocket, frame } from './frames';

/** What the notebook can show besides: each as its type and what it was given. */
class Shown extends Widget implements IRenderMime.IRenderer {
  readonly #mime: string;

  constructor(mime: string) {
    super();
    this.#mime = mime;
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.node.textContent = `${this.#mime}: ${JSON.stringify(model.data[this.#mime])}`;
    return Promise.resolve();
  }
}

const HTML = 'text/html';

let seen: (() => void)[];
let asked: string[];
let status: number;
let factory: IRenderMime.IRendererFactory;
let rank: number | undefined;
let mimeTypes: string[];

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal(
    'IntersectionObserver',
    class {
      readonly #see: () => void;
      constructor(callback: (entries: { isIntersecting: boolean }[]) => void) {
        this.#see = () => {
          callback([{ isIntersecting: true }]);
        };
      }
      observe(): void {
        seen.push(this.#see);
      }
      disconnect(): void {
        seen = seen.filter(see => see !== this.#see);
      }
    }
  );
  seen = [];
  asked = [];
  status = 200;
  mimeTypes = [HTML, WIDGET];
  TestSocket.opened = [];
  const connection = new Connection(
    ServerConnection.makeSettings({
      baseUrl: 'https://host/',
      wsUrl: 'wss://host/',
      WebSocket: TestSocket as unknown as typeof WebSocket,
      fetch: input => {
        asked.push(new URL((input as Request).url).pathname);
        return Promise.resolve(new Response('{}', { status }));
      }
    })
  );
  const rendermime = {
    get mimeTypes() {
      return mimeTypes;
    },
    addFactory: (added: IRenderMime.IRendererFactory, at?: number) => {
      factory = added;
      rank = at;
    },
    createRenderer: (mime: string) => new Shown(mime)
  };
  addRenderer(rendermime as unknown as IRenderMimeRegistry, connection);
});

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function model(data: Record<string, unknown>): IRenderMime.IMimeModel {
  return { data, metadata: {}, trusted: true } as unknown as IRenderMime.IMimeModel;
}

function bundle(id: string, html: string, widget = true): IRenderMime.IMimeModel {
  return model({
    [RECORD]: { version: 1, id },
    [HTML]: html,
    ...(widget && { [WIDGET]: { model_id: 'm' } })
  });
}

async function rendered(first: IRenderMime.IMimeModel): Promise<IRenderMime.IRenderer> {
  const output = factory.createRenderer({} as IRenderMime.IRendererOptions);
  await output.renderModel(first);
  return output;
}

async function look(): Promise<void> {
  for (const see of [...seen]) {
    see();
  }
  await settle();
}

async function settle(): Promise<void> {
  await vi.advanceTimersByTimeAsync(100);
}

/** The server follows the job for each channel that says hello. */
function serve(socket: TestSocket): TestFeed {
  const feed = new TestFeed();
  const send = socket.send.bind(socket);
  socket.send = text => {
    send(text);
    const { channel, message } = socket.sent.at(-1) ?? { channel: '', message: {} };
    feed.deliver = ({ message, buffers }) => {
      socket.say(frame(channel, message, buffers));
    };
    feed.send(message as Parameters<TestFeed['send']>[0]);
  };
  socket.accept();
  return feed;
}

function isLive(output: Widget): boolean {
  return [...output.node.querySelectorAll('*')].some(element =>
    element.shadowRoot?.querySelector('section.kf-job')
  );
}

test('It is chosen before the widget, and only in a trusted notebook', () => {
  expect(factory.mimeTypes).toEqual([RECORD]);
  expect(factory.safe).toBe(false);
  expect(rank).toBeLessThan(0);
});

test('The saved form is shown and renewed until the job comes, which then stays as it is', async () => {
  const output = await rendered(bundle('a-1', 'one'));
  expect(output.node.textContent).toBe('text/html: "one"');
  expect(asked).toEqual([]); // nothing is asked for a job that nobody looks at
  await look();
  expect(asked).toEqual(['/kfnb/api/status']);
  await output.renderModel(bundle('a-1', 'two'));
  expect(output.node.textContent).toBe('text/html: "two"');
  expect(isLive(output)).toBe(false);

  const feed = serve(TestSocket.newest());
  await settle();
  expect(isLive(output)).toBe(true);
  expect(output.node.textContent).not.toContain('two');
  const [shown] = output.node.children;
  for (const html of ['three', 'four']) {
    await output.renderModel(bundle('a-1', html));
  }
  await output.renderModel(bundle('a-1', 'the end', false));
  expect([...output.node.children]).toEqual([shown]);
  expect(feed.of('hello')).toHaveLength(1);

  output.dispose();
  expect(feed.of('bye')).toHaveLength(1);
  vi.advanceTimersByTime(20_000);
  expect(TestSocket.newest().readyState).toBe(WebSocket.CLOSED);
});

test('Another job in the same output is another view', async () => {
  const output = await rendered(bundle('a-1', 'one'));
  await look();
  const feed = serve(TestSocket.newest());
  await settle();
  await output.renderModel(bundle('b-2', 'two'));
  expect(feed.of('bye')).toHaveLength(1);
  expect(output.node.textContent).toBe('text/html: "two"');
  await look();
  expect(isLive(output)).toBe(true);
  expect(TestSocket.newest().sent.at(-1)?.job).toBe('b-2');
});

test.each([
  ['its widget', true, [HTML, WIDGET], `${WIDGET}: {"model_id":"m"}`],
  ['its text where the output has no widget', false, [HTML, WIDGET], 'text/html: "one"'],
  ['its text where the page shows no widgets', true, [HTML], 'text/html: "one"']
])('Where the server has no kfnb, a job is shown as %s', async (_, widget, known, expected) => {
  status = 404;
  mimeTypes = known;
  const output = await rendered(bundle('a-1', 'one', widget));
  await look();
  expect(output.node.textContent).toBe(expected);
  expect(TestSocket.opened).toEqual([]);
  const [shown] = output.node.children;
  await output.renderModel(bundle('a-1', 'one', widget));
  expect([...output.node.children]).toEqual([shown]);
  await output.renderModel(bundle('a-1', 'the end', false));
  expect(output.node.textContent).toBe('text/html: "the end"');
  await look();
  expect(asked).toHaveLength(1);
});

test.each([
  [false, 'text/html: "one"'],
  [true, `${WIDGET}: {"model_id":"m"}`]
])(
  'A job that the server does not have is shown by what else there is (a widget: %s)',
  async (widget, expected) => {
    const output = await rendered(bundle('a-1', 'one', widget));
    await look();
    const socket = TestSocket.newest().accept();
    const [{ channel } = { channel: '' }] = socket.sent;
    socket.say(frame(channel, { type: 'gone', what: 'It was deleted.', why: '', fix: '' }));
    await settle();
    expect(output.node.textContent).toBe(expected);
    expect(socket.sent.at(-1)?.message.type).toBe('bye');
  }
);

test('An output that goes before it was looked at, or while it asks, opens nothing', async () => {
  (await rendered(bundle('a-1', 'one'))).dispose();
  expect(seen).toEqual([]);
  expect(TestSocket.opened).toEqual([]);
  const output = await rendered(bundle('a-1', 'one'));
  seen.forEach(see => {
    see();
  });
  output.dispose();
  await settle();
  expect(TestSocket.opened).toEqual([]);
});

test.each([null, 7, 'a-1', [], {}, { id: 7 }, { id: '' }])(
  'What is no record (%j) is shown by what else there is',
  async record => {
    const output = await rendered(model({ [RECORD]: record, [HTML]: 'one' }));
    expect(output.node.textContent).toBe('text/html: "one"');
    await look();
    expect(asked).toEqual([]);
  }
);
