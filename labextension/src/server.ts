import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { Carrier, Status } from './jobview';

type Receive = Parameters<Carrier['open']>[0];

/** Milliseconds until a lost connection is tried again: first and most, doubling in between. */
const FIRST = 1_000;
const MOST = 30_000;

/** Times that the server is asked whether it has kfnb, while it cannot say. */
const QUESTIONS = 4;

/** Milliseconds that a connection stays open without a channel: cells are rendered again and again. */
const LINGER = 10_000;

interface Channel {
  job: string;
  receive: Receive;
  status: (status: Status) => void;
}

/** The page's one WebSocket to the server's `kfnb/api/events`, shared by all views that need it. */
export class Connection {
  readonly #settings: ServerConnection.ISettings;
  readonly #channels = new Map<string, Channel>();
  #socket: WebSocket | null = null;
  #served: Promise<boolean> | null = null;
  #attempts = 0;
  #opened = Infinity;
  #made = 0;
  #again: ReturnType<typeof setTimeout> | undefined;
  #linger: ReturnType<typeof setTimeout> | undefined;

  constructor(settings: ServerConnection.ISettings = ServerConnection.makeSettings()) {
    this.#settings = settings;
  }

  /**
   * Whether the server has kfnb's part, which gets ready by being asked. It is asked once, and a few times where it
   * cannot be reached, or fails; then it is a no for now.
   */
  served(): Promise<boolean> {
    return (this.#served ??= this.#askWhetherServed());
  }

  async #askWhetherServed(): Promise<boolean> {
    for (let attempt = 0; attempt < QUESTIONS; attempt += 1) {
      if (attempt > 0) {
        await new Promise(resolve => setTimeout(resolve, pause(attempt - 1)));
      }
      try {
        const { ok, status } = await this.#request('kfnb/api/status');
        if (ok || (status < 500 && status !== 429)) {
          return ok;
        }
      } catch {
        // the network, or a server that starts
      }
    }
    this.#served = null;
    return false;
  }

  /** What carries the feed of the job `id` to one store. */
  carrier(id: string): Carrier {
    const name = String(++this.#made);
    return {
      open: (receive, status) => {
        this.#channels.set(name, { job: id, receive, status });
        clearTimeout(this.#linger);
        if (this.#socket?.readyState === WebSocket.OPEN) {
          status('open');
        } else {
          this.#connect();
        }
        return () => {
          this.#channels.delete(name);
          this.#closeLater();
        };
      },
      send: message => {
        if (this.#socket?.readyState === WebSocket.OPEN) {
          this.#socket.send(JSON.stringify({ channel: name, job: id, message }));
        }
      },
      stop: async () => {
        const response = await this.#request(`kfnb/api/jobs/${encodeURIComponent(id)}/stop`, {
          method: 'POST'
        });
        if (!response.ok) {
          throw await ServerConnection.ResponseError.create(response);
        }
      }
    };
  }

  #request(path: string, init: RequestInit = {}): Promise<Response> {
    return ServerConnection.makeRequest(URLExt.join(this.#settings.baseUrl, path), init, this.#settings);
  }

  #connect(): void {
    if (this.#socket || this.#channels.size === 0) {
      return;
    }
    clearTimeout(this.#again);
    const { wsUrl, token, appendToken } = this.#settings;
    const query = appendToken && token !== '' ? `?token=${encodeURIComponent(token)}` : '';
    const socket = new this.#settings.WebSocket(URLExt.join(wsUrl, 'kfnb/api/events') + query);
    socket.binaryType = 'arraybuffer';
    this.#socket = socket;
    socket.onopen = () => {
      this.#opened = Date.now();
      this.#tell('open');
    };
    socket.onmessage = event => {
      if (event.data instanceof ArrayBuffer) {
        this.#take(event.data);
      }
    };
    socket.onclose = () => {
      this.#socket = null;
      this.#tell('lost');
      if (Date.now() - this.#opened > MOST) {
        this.#attempts = 0; // it held: a server that takes each page and drops it is left in peace
      }
      this.#opened = Infinity;
      this.#again = setTimeout(() => {
        this.#connect();
      }, pause(this.#attempts++));
    };
  }

  #closeLater(): void {
    if (this.#channels.size > 0) {
      return;
    }
    clearTimeout(this.#linger);
    this.#linger = setTimeout(() => {
      clearTimeout(this.#again);
      this.#socket?.close();
    }, LINGER);
  }

  #tell(status: Status): void {
    for (const channel of [...this.#channels.values()]) {
      channel.status(status);
    }
  }

  #take(frame: ArrayBuffer): void {
    const read = unpack(frame);
    if (read) {
      this.#channels.get(read.channel)?.receive(read.message, read.buffers);
    }
  }
}

/** Milliseconds to wait after so many failures: not all pages of a server at once. */
function pause(failures: number): number {
  return Math.min(FIRST * 2 ** failures, MOST) * (1 + Math.random() / 2);
}

interface Frame {
  channel: string;
  message: Parameters<Receive>[0];
  buffers: ArrayBuffer[];
}

/** A frame of the server: the length of its JSON, the JSON, and the buffers whose lengths that says. */
export function unpack(frame: ArrayBuffer): Frame | null {
  try {
    const length = new DataView(frame).getUint32(0, true);
    const text = new TextDecoder().decode(new Uint8Array(frame, 4, length));
    const header = JSON.parse(text) as { channel: string; message: Frame['message']; buffers: number[] };
    let start = 4 + length;
    const buffers = header.buffers.map(size => frame.slice(start, (start += size)));
    return start === frame.byteLength ? { ...header, buffers } : null;
  } catch {
    return null;
  }
}
