// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import anywidget, { type Model, widgetCarrier } from '../src/jobview/anywidget';
import type { FeedMessage, ViewMessage } from '../src/jobview/protocol';
import { TestFeed } from './feed';

type Listener = Parameters<Model['on']>[1];

/** A widget's model, and how its kernel answers. */
class KernelModel {
  readonly feed = new TestFeed();
  readonly listeners = new Set<Listener>();

  constructor(readonly id: string) {
    this.feed.open(
      (message, buffers) => {
        // As they come from a kernel: views into one larger buffer, at any offset.
        const views = buffers.map(buffer => {
          const large = new Uint8Array(buffer.byteLength + 3);
          large.set(new Uint8Array(buffer), 3);
          return new DataView(large.buffer, 3);
        });
        this.listeners.forEach(listener => {
          listener(message, views);
        });
      },
      () => undefined
    );
  }

  /** Every view gets another object. */
  proxy(): Model {
    return {
      get: name => (name === 'job_id' ? this.id : undefined),
      on: (_, listener) => this.listeners.add(listener),
      off: (_, listener) => this.listeners.delete(listener),
      send: message => {
        this.feed.send(message as ViewMessage);
      }
    };
  }
}

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  document.body.replaceChildren();
});

describe('the widget', () => {
  test('has one store for all of its views, which lives as long as the widget', () => {
    const kernel = new KernelModel('job-1');
    kernel.feed.print('hello');
    const close = anywidget.initialize({ model: kernel.proxy() });
    const elements = [document.createElement('div'), document.createElement('div')];
    document.body.append(...elements);
    const unmount = elements.map(el => anywidget.render({ model: kernel.proxy(), el }));
    vi.advanceTimersByTime(500);
    expect(kernel.feed.of('hello')).toHaveLength(1);
    for (const el of elements) {
      expect(
        el.firstElementChild?.shadowRoot?.querySelector('section.kf-job')?.getAttribute('data-phase')
      ).toBe('Running');
    }
    unmount.forEach(each => {
      each();
    });
    expect(kernel.feed.of('bye')).toEqual([]);
    close();
    close();
    expect(kernel.feed.of('bye')).toHaveLength(1);
    expect(kernel.listeners.size).toBe(0);
  });

  test('that was not initialized works too, and one that is opened again says hello again', () => {
    const kernel = new KernelModel('job-2');
    for (const hellos of [1, 2]) {
      const el = document.createElement('div');
      document.body.append(el);
      const unmount = anywidget.render({ model: kernel.proxy(), el });
      expect(kernel.feed.of('hello')).toHaveLength(hellos);
      unmount();
      expect(kernel.listeners.size).toBe(0);
    }
  });
});

describe('the carrier of a widget', () => {
  test('hands on whole buffers, and drops what cannot be sent', async () => {
    const kernel = new KernelModel('job-3');
    kernel.feed.print('zwölf');
    const received: [FeedMessage, ArrayBuffer[]][] = [];
    const carrier = widgetCarrier(kernel.proxy(), 'job-3');
    const close = carrier.open(
      (message, buffers) => received.push([message, buffers]),
      () => undefined
    );
    carrier.send({ type: 'hello', client: 'me', version: 1 });
    await vi.advanceTimersByTimeAsync(0);
    expect(new TextDecoder().decode(received[0]?.[1][0])).toBe('zwölf');
    close();
    const broken = widgetCarrier(
      {
        ...kernel.proxy(),
        send: () => {
          throw new Error('no kernel');
        }
      },
      'job-3'
    );
    broken.send({ type: 'bye', client: 'c' });
    await vi.advanceTimersByTimeAsync(0);
  });

  test('tells the jobs of one widget apart', () => {
    const sent: unknown[] = [];
    const listeners: Listener[] = [];
    const model: Model = {
      get: () => 'job-7',
      on: (_, listener) => listeners.push(listener),
      off: () => undefined,
      send: message => sent.push(message)
    };
    const heard: Record<string, FeedMessage[]> = { 'job-7': [], 'job-8': [] };
    for (const [id, messages] of Object.entries(heard)) {
      const carrier = widgetCarrier(model, id);
      carrier.open(
        message => messages.push(message),
        () => undefined
      );
      carrier.send({ type: 'bye', client: 'c' });
    }
    expect(sent).toEqual([
      { type: 'bye', client: 'c' },
      { type: 'bye', client: 'c', job: 'job-8' }
    ]);
    const gone: FeedMessage = { type: 'gone', error: { what: 'It is gone.', why: '', fix: '' } };
    listeners.forEach(listener => {
      listener(gone);
      listener({ ...gone, job: 'job-8' });
    });
    expect(heard).toEqual({ 'job-7': [gone], 'job-8': [{ ...gone, job: 'job-8' }] });
  });

  test('has no other way to stop in a page without a server of JupyterLab', () => {
    expect(widgetCarrier(new KernelModel('job-4').proxy(), 'job-4')).not.toHaveProperty('stop');
  });

  describe('in JupyterLab', () => {
    function configure(config: object): void {
      const element = document.createElement('script');
      element.id = 'jupyter-config-data';
      element.type = 'application/json';
      element.textContent = JSON.stringify(config);
      document.body.append(element);
      document.cookie = '_xsrf=2|ab=cd';
    }

    test('stops through the server, with its token and against forgery', async () => {
      configure({ baseUrl: '/user/me/', token: 'secret' });
      const fetched = vi.fn(() => Promise.resolve(new Response('{"phase": "Stopping"}')));
      vi.stubGlobal('fetch', fetched);
      await widgetCarrier(new KernelModel('job-5').proxy(), 'job/5').stop?.();
      const [address, options] = fetched.mock.calls[0] as unknown as [URL, RequestInit];
      expect(address.pathname).toBe('/user/me/kfnb/api/jobs/job%2F5/stop');
      expect(options).toMatchObject({
        method: 'POST',
        headers: { Authorization: 'token secret', 'X-XSRFToken': '2|ab=cd' }
      });
    });

    test('says why the server did not stop it', async () => {
      configure({ baseUrl: '/' });
      const refusal = { what: 'Not yours.', why: 'Another user started it.', fix: 'Ask them.' };
      vi.stubGlobal('fetch', () => Promise.resolve(new Response(JSON.stringify(refusal), { status: 403 })));
      const carrier = widgetCarrier(new KernelModel('job-6').proxy(), 'job-6');
      await expect(carrier.stop?.()).rejects.toMatchObject({ what: 'Not yours.' });
      vi.stubGlobal('fetch', () => Promise.resolve(new Response('<html>', { status: 404 })));
      await expect(carrier.stop?.()).rejects.toMatchObject({ what: 'job-6 was not stopped.' });
      vi.stubGlobal('fetch', () => Promise.reject(new TypeError('network')));
      await expect(carrier.stop?.()).rejects.toMatchObject({ what: 'job-6 was not stopped.' });
    });

    test('gives the token to no other server', () => {
      configure({ baseUrl: 'https://elsewhere.example/', token: 'secret' });
      expect(widgetCarrier(new KernelModel('job-7').proxy(), 'job-7')).not.toHaveProperty('stop');
    });
  });
});
