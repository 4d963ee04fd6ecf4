import { Calls } from './calls';
import type { Carrier, Status } from './carrier';
import { Curve } from './curves';
import { decodeColumns, isCount, isRecord, readMessage } from './decode';
import { Log } from './log';
import { Notifier, type Topic } from './notifier';
import {
  type Answer,
  type CallParams,
  type Changes,
  type Columns,
  type ErrorInfo,
  FeedError,
  type FeedEvent,
  type FeedMessage,
  type GoingLine,
  type Head,
  type Method,
  type RankInfo,
  VERSION,
  isTerminal,
  unusable
} from './protocol';
import { Sequence, type Step } from './sequence';

/** Milliseconds between two acknowledgements. */
const ACK = 100;

/** Milliseconds that a batch that was asked for again may take. */
const RESEND = 2_000;

/** Milliseconds of silence after which a running job's feed is asked for a sign of life, and between such questions. */
const SILENCE = 10_000;
const HELLO = 5_000;

/** Milliseconds that the feed has to answer to a stop before another way is taken. */
const STOP = 2_000;

/** An older `now` is a late message; one that is this many seconds older is a clock that was set. */
const CLOCK_SET = 30;

/** One job as a view sees it: follows the job's feed through a carrier, and tells listeners what changed. */
export class JobStore {
  readonly id: string;
  readonly log: Log;
  /** By series id, in the order in which the series began. */
  readonly curves = new Map<string, Curve>();
  readonly ranks = new Map<number, RankInfo>();
  readonly #carrier: Carrier;
  readonly #client = randomId();
  readonly #calls: Calls;
  readonly #notifier = new Notifier();
  readonly #sequence = new Sequence();
  readonly #close: () => void;
  #head: Head | null = null;
  #gone: ErrorInfo | null = null;
  #preview = false;
  #status: Status = 'connecting';
  #carrierStatus: Status = 'connecting';
  #visible = true;
  #disposed = false;
  /** Seconds that the feed's clock is ahead of this page's. */
  #ahead: number | null = null;
  #heardAt = 0;
  #helloAt = 0;
  /** Whether anything came since the last hello. */
  #answered = false;
  #ackedAt = -Infinity;
  #ackTimer: ReturnType<typeof setTimeout> | undefined;
  #resendTimer: ReturnType<typeof setTimeout> | undefined;
  readonly #watch: ReturnType<typeof setInterval>;

  /** Follows the job `id` from now on, until `dispose`. */
  constructor(carrier: Carrier, id: string) {
    this.id = id;
    this.#carrier = carrier;
    this.#calls = new Calls(this.#client, message => {
      carrier.send(message);
    });
    this.log = new Log(this.call.bind(this), () => {
      this.#notifier.changed('log');
    });
    this.#watch = setInterval(this.#lookForLife.bind(this), 1_000);
    this.#close = carrier.open(this.#receive.bind(this), this.#carrierIs.bind(this));
  }

  /** Null until something is known of the job. */
  get head(): Head | null {
    return this.#head;
  }

  /** Lines that go on, as progress bars do. */
  get going(): readonly GoingLine[] {
    return this.log.going;
  }

  /** `open`: what is here is how the job is; `lost`: it is how the job was when last heard of. */
  get status(): Status {
    return this.#status;
  }

  /** Why the job cannot be read; null where it can. */
  get gone(): ErrorInfo | null {
    return this.#gone;
  }

  /** Whether this is a first picture, of the newest part of a long log. */
  get preview(): boolean {
    return this.#preview;
  }

  /** Have `listener` called after changes, at most once a frame. Returns how to end that. */
  subscribe(topic: Topic, listener: () => void): () => void {
    return this.#notifier.subscribe(topic, listener);
  }

  /** The feed's clock, Unix seconds. */
  now(): number {
    return Date.now() / 1000 + (this.#ahead ?? 0);
  }

  /** Seconds that the job has been running, or ran; null before it runs. */
  elapsed(): number | null {
    const started = this.#head?.started ?? null;
    return started === null ? null : Math.max((this.#head?.ended ?? this.now()) - started, 0);
  }

  /** Whether somebody can see a view; fewer updates come while nobody can. */
  setVisible(visible: boolean): void {
    if (visible !== this.#visible && !this.#disposed) {
      this.#visible = visible;
      this.#carrier.send({ type: 'visible', visible });
    }
  }

  /** Ask the feed. Rejects with a `FeedError`, after 15 s at the latest. */
  call<M extends Method>(method: M, params: CallParams[M]): Promise<Answer> {
    if (this.#carrierStatus !== 'open' || this.#disposed) {
      return Promise.reject(new FeedError(UNREACHABLE));
    }
    return this.#calls.call(method, params);
  }

  /** Stop the job, by the carrier's other way where the feed does not do it within 2 s. */
  async stop(): Promise<void> {
    const asked = this.call('stop', {});
    const otherWay = this.#carrier.stop?.bind(this.#carrier);
    if (!otherWay) {
      await asked;
      return;
    }
    const stopped = asked.then(
      () => true,
      () => false
    );
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<boolean>(resolve => {
      timer = setTimeout(() => {
        resolve(false);
      }, STOP);
    });
    const done = await Promise.race([stopped, late]);
    clearTimeout(timer);
    if (!done) {
      await otherWay();
    }
  }

  /** Start the same job once more; the new job's id. */
  async again(): Promise<string> {
    const { result } = await this.call('again', {});
    if (typeof result.id !== 'string') {
      throw unusable('again');
    }
    return result.id;
  }

  /** The job as a Python script. */
  async script(): Promise<{ text: string; filename: string }> {
    const {
      result: { text, filename }
    } = await this.call('script', {});
    if (typeof text !== 'string') {
      throw unusable('script');
    }
    return { text, filename: typeof filename === 'string' ? filename : `${this.id}.py` };
  }

  /** What each rank is doing now, as Python stacks. */
  async stacks(): Promise<Map<number, string>> {
    const {
      result: { stacks }
    } = await this.call('stacks', {});
    if (!isRecord(stacks)) {
      throw unusable('stacks');
    }
    const texts = new Map<number, string>();
    for (const [rank, text] of Object.entries(stacks)) {
      if (typeof text === 'string' && /^\d{1,9}$/.test(rank)) {
        texts.set(Number(rank), text);
      }
    }
    return texts;
  }

  /** A part of a series in more detail than `curves` has: about `points` of the points between two x values. */
  async fetchCurve(
    sid: string,
    x: 'step' | 'time',
    from: number,
    to: number,
    points: number
  ): Promise<Columns & { count: number; total: number }> {
    const { result, buffers } = await this.call('curve', { sid, x, from, to, points });
    const { count, total } = result;
    const columns = isCount(count) ? decodeColumns(buffers, count) : undefined;
    if (!columns || !isCount(count)) {
      throw unusable('curve');
    }
    return { ...columns, count, total: isCount(total) ? total : count };
  }

  /** Follow no longer. What is here stays readable. */
  dispose(): void {
    if (this.#disposed) {
      return;
    }
    this.#carrier.send({ type: 'bye', client: this.#client });
    this.#disposed = true;
    clearInterval(this.#watch);
    clearTimeout(this.#ackTimer);
    clearTimeout(this.#resendTimer);
    this.#calls.fail(UNREACHABLE);
    this.log.dispose();
    this.#notifier.dispose();
    this.#close();
  }

  #carrierIs(status: Status): void {
    if (this.#disposed) {
      return;
    }
    this.#carrierStatus = status;
    if (status === 'open') {
      this.#heardAt = Date.now();
      this.#hello();
    } else {
      if (status === 'lost') {
        this.#calls.fail(UNREACHABLE);
      }
      this.#setStatus(status);
    }
  }

  #receive(message: FeedMessage, buffers: ArrayBuffer[]): void {
    const event = this.#disposed ? undefined : readMessage(message, buffers);
    if (!event) {
      return;
    }
    this.#heardAt = Date.now();
    this.#answered = true;
    switch (event.type) {
      case 'snapshot':
        this.#takeSnapshot(event);
        break;
      case 'batch':
        this.#take(this.#sequence.add(event.n, event.changes));
        break;
      case 'reply':
        if (event.to === this.#client) {
          this.#calls.answered(event.id, { result: event.result, buffers }, event.error);
        }
        break;
      case 'gone':
        this.#gone = event.error;
        this.#calls.fail(event.error);
        this.#notifier.changed('head');
        this.#setStatus('open');
        break;
    }
    if (!this.#sequence.waiting) {
      this.#setStatus('open');
      this.#ack();
    }
  }

  #takeSnapshot({ to, n, preview, changes }: FeedEvent & { type: 'snapshot' }): void {
    if (to !== null && to !== this.#client) {
      return;
    }
    const newest = this.#sequence.newest;
    if (newest !== undefined && n < newest && !(this.#preview && !preview)) {
      // An old one that came late, or the feed has begun to count anew. A snapshot of our own tells.
      this.#hello();
      return;
    }
    this.#gone = null;
    this.#preview = preview;
    this.#ahead = null;
    this.ranks.clear();
    this.curves.clear();
    this.log.replace(changes.log ?? { total: 0, lines: [] }, preview);
    this.log.setGoing([]);
    this.#apply({ ...changes, log: undefined });
    this.#notifier.changed('head');
    this.#notifier.changed('ranks');
    this.#notifier.changed('curves');
    this.#take(this.#sequence.start(n));
  }

  #take({ apply, resend, lost }: Step): void {
    for (const changes of apply) {
      this.#apply(changes);
    }
    if (lost) {
      this.#hello();
    } else if (resend) {
      this.#carrier.send({ type: 'resend', ...resend });
      this.#expectResent();
    }
  }

  /** Ask for a snapshot where a batch that was asked for again does not come either. */
  #expectResent(): void {
    const before = this.#sequence.newest;
    this.#resendTimer ??= setTimeout(() => {
      this.#resendTimer = undefined;
      if (!this.#sequence.gap) {
        return;
      }
      if (this.#sequence.newest === before) {
        this.#hello();
      } else {
        this.#expectResent();
      }
    }, RESEND);
  }

  #apply({ head, ranks, going, log, series }: Changes): void {
    if (head) {
      const ahead = head.now - Date.now() / 1000;
      // The least delayed message tells the clocks' difference best.
      if (this.#ahead === null || ahead > this.#ahead || ahead < this.#ahead - CLOCK_SET) {
        this.#ahead = ahead;
      }
      this.#head = head;
      this.#notifier.changed('head');
    }
    if (ranks) {
      for (const rank of ranks) {
        this.ranks.set(rank.rank, rank);
      }
      this.#notifier.changed('ranks');
    }
    if (going) {
      this.log.setGoing(going);
    }
    if (log) {
      this.log.add(log);
    }
    if (series) {
      for (const part of series) {
        let curve = this.curves.get(part.sid);
        if (!curve) {
          curve = new Curve(part);
          this.curves.set(part.sid, curve);
        }
        curve.take(part);
      }
      this.#notifier.changed('curves');
    }
  }

  #hello(): void {
    this.#sequence.restart();
    clearTimeout(this.#resendTimer);
    this.#resendTimer = undefined;
    this.#helloAt = Date.now();
    this.#answered = false;
    this.#carrier.send({ type: 'hello', client: this.#client, version: VERSION });
    this.#carrier.send({ type: 'visible', visible: this.#visible });
  }

  #ack(): void {
    if (this.#ackTimer !== undefined) {
      return;
    }
    const wait = this.#ackedAt + ACK - Date.now();
    if (wait <= 0) {
      this.#sendAck();
    } else {
      this.#ackTimer = setTimeout(() => {
        this.#ackTimer = undefined;
        this.#sendAck();
      }, wait);
    }
  }

  #sendAck(): void {
    const n = this.#sequence.newest;
    if (n !== undefined) {
      this.#ackedAt = Date.now();
      this.#carrier.send({ type: 'ack', n });
    }
  }

  /** Say hello to a feed that is silent though its job runs: messages may be lost, or a new kernel may be there. */
  #lookForLife(): void {
    const now = Date.now();
    const waiting = this.#sequence.waiting;
    const over = this.#head !== null && isTerminal(this.#head.phase);
    if (this.#carrierStatus !== 'open' || this.#gone !== null || (over && !waiting)) {
      return;
    }
    const silent = now - this.#heardAt >= SILENCE;
    if ((silent || waiting) && now - this.#helloAt >= HELLO) {
      if (silent && !this.#answered) {
        this.#setStatus('lost');
      }
      this.#hello();
    }
  }

  #setStatus(status: Status): void {
    if (status !== this.#status) {
      this.#status = status;
      this.#notifier.changed('head');
    }
  }
}

const UNREACHABLE: ErrorInfo = {
  what: 'The job cannot be asked now.',
  why: 'The connection to what follows it is lost.',
  fix: 'It comes back by itself when the kernel or server can be reached.'
};

/** Unique among the views of a job. (`randomUUID` is missing on pages that came without TLS.) */
function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), byte =>
    byte.toString(16).padStart(2, '0')
  ).join('');
}
