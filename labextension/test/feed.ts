import type { Carrier, Status } from '../src/jobview/carrier';
import type { FeedMessage, ViewMessage } from '../src/jobview/protocol';

export interface TestLine {
  text: string;
  rank: number;
  time?: number;
  flags?: number;
}

export interface TestSeries {
  sid: string;
  tag: string;
  mode: 'set' | 'add';
  total: number;
  points: [step: number, wall: number, value: number][];
}

export interface Packed {
  message: FeedMessage;
  buffers: ArrayBuffer[];
}

export function lineBuffers(lines: readonly TestLine[]): ArrayBuffer[] {
  return [
    new TextEncoder().encode(lines.map(line => line.text).join('\n')).buffer,
    Int32Array.from(lines, line => line.rank).buffer,
    Float64Array.from(lines, line => line.time ?? 0).buffer,
    Uint8Array.from(lines, line => line.flags ?? 0).buffer
  ];
}

export function logPart(lines: readonly TestLine[], first: number, total: number): Packed {
  return { message: { log: { total, first, count: lines.length } }, buffers: lineBuffers(lines) };
}

export function seriesPart(series: readonly TestSeries[]): Packed {
  const points = series.flatMap(entry => entry.points);
  return {
    message: {
      series: series.map(({ sid, tag, mode, total, points }) => {
        return { sid, run: '.', rank: 0, tag, mode, count: points.length, total, thinned: false };
      })
    },
    buffers: [0, 1, 2].map(column => Float64Array.from(points, point => point[column] ?? NaN).buffer)
  };
}

export function headPart(changes: FeedMessage = {}): Packed {
  const head = {
    id: 'job-1',
    name: 'job',
    backend: 'local',
    phase: 'Running',
    now: Date.now() / 1000,
    ...changes
  };
  return { message: { head }, buffers: [] };
}

export function pack(parts: readonly Packed[], rest: FeedMessage): Packed {
  return {
    message: Object.assign({}, ...parts.map(part => part.message), rest) as FeedMessage,
    buffers: parts.flatMap(part => part.buffers)
  };
}

/** One job's feed as the protocol wants it, in memory: it is also the carrier to itself. */
export class TestFeed implements Carrier {
  readonly lines: TestLine[] = [];
  readonly points = new Map<string, TestSeries['points']>();
  readonly sent: ViewMessage[] = [];
  head: FeedMessage = {};
  /** Lines that a snapshot holds. */
  newest = 5_000;
  n = 0;
  /** Where messages go; a test may lose, repeat or delay them. */
  deliver: (packed: Packed) => void = packed => {
    this.arrive(packed);
  };
  /** What is done with a call, instead of an answer. */
  onCall: ((call: ViewMessage & { type: 'call' }) => void) | undefined;
  snapshots = 0;
  closed = false;
  #lines = 0;
  #points = new Map<string, number>();
  #kept = new Map<number, Packed>();
  #receive: ((message: FeedMessage, buffers: ArrayBuffer[]) => void) | undefined;
  status: (status: Status) => void = () => undefined;

  open(
    receive: (message: FeedMessage, buffers: ArrayBuffer[]) => void,
    status: (status: Status) => void
  ): () => void {
    this.#receive = receive;
    this.status = status;
    status('open');
    return () => {
      this.closed = true;
    };
  }

  arrive(packed: Packed | undefined): void {
    if (packed) {
      this.#receive?.(packed.message, packed.buffers);
    }
  }

  send(message: ViewMessage): void {
    this.sent.push(message);
    switch (message.type) {
      case 'hello':
        this.snapshot(message.client);
        break;
      case 'resend':
        for (let n = message.from; n <= message.to; n += 1) {
          const kept = this.#kept.get(n);
          if (kept) {
            this.deliver(kept);
          }
        }
        break;
      case 'call':
        if (this.onCall) {
          this.onCall(message);
        } else {
          this.answer(message);
        }
        break;
      default:
    }
  }

  of<T extends ViewMessage['type']>(type: T): (ViewMessage & { type: T })[] {
    return this.sent.filter((message): message is ViewMessage & { type: T } => message.type === type);
  }

  calls<M extends string>(method: M): (ViewMessage & { type: 'call'; method: M })[] {
    return this.of('call').filter(
      (call): call is ViewMessage & { type: 'call'; method: M } => call.method === method
    );
  }

  print(...texts: string[]): void {
    texts.forEach((text, i) => this.lines.push({ text, rank: i % 4 }));
  }

  log(tag: string, ...points: TestSeries['points']): void {
    this.points.set(tag, [...(this.points.get(tag) ?? []), ...points]);
  }

  snapshot(to: string | null = null, rest: FeedMessage = {}): void {
    this.snapshots += 1;
    const first = Math.max(this.lines.length - this.newest, 0);
    this.#lines = this.lines.length;
    const series = [...this.points].map(([tag, points]): TestSeries => {
      this.#points.set(tag, points.length);
      return { sid: tag, tag, mode: 'set', total: points.length, points };
    });
    this.deliver(
      pack(
        [headPart(this.head), logPart(this.lines.slice(first), first, this.lines.length), seriesPart(series)],
        {
          type: 'snapshot',
          to,
          n: this.n,
          preview: false,
          ranks: [],
          going: [],
          ...rest
        }
      )
    );
  }

  /** Send what is new since the last time. */
  batch(rest: FeedMessage = {}): void {
    this.n += 1;
    const first = this.#lines;
    this.#lines = this.lines.length;
    const series = [...this.points].map(([tag, points]): TestSeries => {
      const from = this.#points.get(tag) ?? 0;
      this.#points.set(tag, points.length);
      return {
        sid: tag,
        tag,
        mode: from === 0 ? 'set' : 'add',
        total: points.length,
        points: points.slice(from)
      };
    });
    const packed = pack(
      [headPart(this.head), logPart(this.lines.slice(first), first, this.lines.length), seriesPart(series)],
      { type: 'batch', n: this.n, ...rest }
    );
    this.#kept.set(this.n, packed);
    this.#kept.delete(this.n - 64);
    this.deliver(packed);
  }

  reply(call: ViewMessage & { type: 'call' }, result: FeedMessage, buffers: ArrayBuffer[] = []): void {
    this.arrive({ message: { type: 'reply', to: call.client, id: call.id, ok: true, result }, buffers });
  }

  refuse(call: ViewMessage & { type: 'call' }): void {
    const error = { what: 'No.', why: 'A test says so.', fix: 'Ask another.' };
    this.arrive({ message: { type: 'reply', to: call.client, id: call.id, ok: false, error }, buffers: [] });
  }

  answer(call: ViewMessage & { type: 'call' }): void {
    switch (call.method) {
      case 'lines': {
        const params = call.params;
        const indices =
          'indices' in params
            ? params.indices
            : Array.from({ length: params.count }, (_, i) => params.first + i);
        const lines = indices.flatMap(index => this.lines[index] ?? []);
        const place = 'indices' in params ? { indices } : { first: params.first };
        this.reply(call, { ...place, count: lines.length }, lineBuffers(lines));
        break;
      }
      case 'scan': {
        const { text, ranks, since } = call.params;
        const found = this.matching(text, ranks).filter(index => index >= since);
        const upto = this.lines.length;
        this.reply(call, { count: found.length, truncated: false, upto }, [Uint32Array.from(found).buffer]);
        break;
      }
      default:
        this.refuse(call);
    }
  }

  matching(text: string, ranks: readonly number[] | null): number[] {
    const wanted = text.toLowerCase();
    return this.lines.flatMap((line, index) =>
      line.text.toLowerCase().includes(wanted) && (ranks === null || ranks.includes(line.rank)) ? [index] : []
    );
  }
}
