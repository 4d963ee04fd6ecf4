import type { FeedMessage } from '../src/jobview/protocol';

/** A frame as the server sends it. */
export function frame(
  channel: string,
  message: FeedMessage,
  buffers: readonly ArrayBuffer[] = []
): ArrayBuffer {
  const lengths = buffers.map(buffer => buffer.byteLength);
  const header = new TextEncoder().encode(JSON.stringify({ channel, message, buffers: lengths }));
  const packed = new Uint8Array(4 + header.length + lengths.reduce((sum, length) => sum + length, 0));
  new DataView(packed.buffer).setUint32(0, header.length, true);
  packed.set(header, 4);
  let start = 4 + header.length;
  for (const buffer of buffers) {
    packed.set(new Uint8Array(buffer), start);
    start += buffer.byteLength;
  }
  return packed.buffer;
}

export interface SentFrame {
  channel: string;
  job: string;
  message: Record<string, unknown>;
}

/** What a page opens in place of a socket: the test is the server. */
export class TestSocket {
  static opened: TestSocket[] = [];
  readyState: number = WebSocket.CONNECTING;
  binaryType = '';
  onopen: (() => void) | null = null;
  onclose: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  readonly sent: SentFrame[] = [];
  readonly url: string;

  constructor(url: string) {
    this.url = url;
    TestSocket.opened.push(this);
  }

  static newest(): TestSocket {
    const newest = TestSocket.opened.at(-1);
    if (!newest) {
      throw new Error('no socket was opened');
    }
    return newest;
  }

  send(text: string): void {
    this.sent.push(JSON.parse(text) as SentFrame);
  }

  accept(): this {
    this.readyState = WebSocket.OPEN;
    this.onopen?.();
    return this;
  }

  say(data: unknown): void {
    this.onmessage?.({ data });
  }

  close(): void {
    this.readyState = WebSocket.CLOSED;
    this.onclose?.();
  }
}
