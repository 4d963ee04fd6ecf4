import {
  type Answer,
  type CallParams,
  type ErrorInfo,
  FeedError,
  type Method,
  type ViewMessage
} from './protocol';

/** A call fails after this many milliseconds without an answer. */
const TIMEOUT = 15_000;

interface Waiting {
  resolve: (answer: Answer) => void;
  reject: (error: FeedError) => void;
  timer: ReturnType<typeof setTimeout>;
}

/** The calls of one view that wait for their answers. */
export class Calls {
  readonly #client: string;
  readonly #send: (message: ViewMessage) => void;
  readonly #waiting = new Map<string, Waiting>();
  #count = 0;

  constructor(client: string, send: (message: ViewMessage) => void) {
    this.#client = client;
    this.#send = send;
  }

  call<M extends Method>(method: M, params: CallParams[M]): Promise<Answer> {
    this.#count += 1;
    const id = `${this.#client}.${this.#count}`;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiting.delete(id);
        reject(
          new FeedError({
            what: 'No answer came.',
            why: `What follows the job did not answer "${method}" within ${TIMEOUT / 1000} s.`,
            fix: 'Try again; if that does not help, look whether the kernel or server is busy.'
          })
        );
      }, TIMEOUT);
      this.#waiting.set(id, { resolve, reject, timer });
      // Method and params belong together by this function's signature; the union cannot express that here.
      this.#send({ type: 'call', id, client: this.#client, method, params } as ViewMessage);
    });
  }

  /** The answer to a call; one that nobody waits for is dropped. */
  answered(id: string, answer: Answer, error: ErrorInfo | null): void {
    const waiting = this.#waiting.get(id);
    if (!waiting) {
      return;
    }
    this.#waiting.delete(id);
    clearTimeout(waiting.timer);
    if (error) {
      waiting.reject(new FeedError(error));
    } else {
      waiting.resolve(answer);
    }
  }

  /** No answer can come any more. */
  fail(error: ErrorInfo): void {
    for (const { reject, timer } of this.#waiting.values()) {
      clearTimeout(timer);
      reject(new FeedError(error));
    }
    this.#waiting.clear();
  }
}
