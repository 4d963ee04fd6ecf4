/**
 * The messages between a job's feed (kernel or server) and its views, version 1. Times are Unix seconds. Texts are as
 * the job wrote them.
 */

export const VERSION = 1;

/** Flags of a log line. */
export const STDERR = 1;
export const CUT = 2;
export const GAP = 4;
export const NOTE = 8;

export type Phase =
  | 'Submitting'
  | 'Pending'
  | 'Queued'
  | 'Running'
  | 'Restarting'
  | 'Stopping'
  | 'Succeeded'
  | 'Failed'
  | 'Stopped'
  | 'Lost';

const TERMINAL: ReadonlySet<string> = new Set<Phase>(['Succeeded', 'Failed', 'Stopped', 'Lost']);

/** Whether a job in this phase is over. */
export function isTerminal(phase: Phase): boolean {
  return TERMINAL.has(phase);
}

export interface ErrorInfo {
  what: string;
  why: string;
  fix: string;
}

export interface Progress {
  done: number;
  total: number | null;
  unit: string;
  /** Seconds that are left. */
  eta: number | null;
  /** Seconds without progress, where that is remarkable. */
  silent: number | null;
}

export interface Pace {
  /** Seconds a unit takes. */
  step: number;
  /** Share (0..1) of it that is spent waiting for data. */
  wait: number | null;
  /** The slowest rank. */
  rank: number | null;
}

export interface Restart {
  attempt: number;
  why: string;
  time: number | null;
}

export interface Checkpoint {
  step: number | null;
  path: string;
  time: number | null;
}

export interface NonFinite {
  run: string;
  tag: string;
  rank: number | null;
  step: number;
  value: 'nan' | 'inf' | '-inf';
}

export interface FailureInfo {
  /** The sentence. */
  text: string;
  node: number | null;
  rank: number | null;
  kind: string;
  traceback: string;
  line: number | null;
  /** The line of the cell's source. */
  cell_line: number | null;
}

export interface Gap {
  node: number;
  count: number;
  why: string;
}

export interface Note {
  level: string;
  text: string;
  time: number | null;
}

export interface Result {
  names: string[];
  bytes: number;
  errors: string[];
}

/** Everything about a job but its ranks, log and curves. */
export interface Head {
  id: string;
  name: string;
  backend: string;
  phase: Phase;
  reason: string;
  phase_time: number | null;
  started: number | null;
  ended: number | null;
  /** The feed's clock when it wrote this. */
  now: number;
  attempt: number;
  nodes: number;
  procs: number;
  lines: number;
  points: number;
  /** Share (0..1) of a long log that has been read; null once it is read. */
  reading: number | null;
  /** The line of the notebook's cell that main.py begins with. */
  first_line: number | null;
  notebook: string | null;
  progress: Progress | null;
  pace: Pace | null;
  restarts: Restart[];
  checkpoint: Checkpoint | null;
  non_finite: NonFinite | null;
  failure: FailureInfo | null;
  gaps: Gap[];
  notes: Note[];
  result: Result | null;
}

export interface RankInfo {
  rank: number;
  node: number;
  state: string;
  pid: number | null;
  code: number | null;
  /** Its last line, cut. */
  line: string | null;
  /** Share (0..1) of its work that is done. */
  done: number | null;
}

/** A line that goes on: a progress bar. `rank` is -1-node for one of the node itself. */
export interface GoingLine {
  rank: number;
  text: string;
}

/** One whole line of the log. `rank` is -1-node for a line of the node itself; `flags` of STDERR, CUT, GAP, NOTE. */
export interface LogLine {
  index: number;
  text: string;
  rank: number;
  time: number;
  flags: number;
}

export interface LogHeader {
  total: number;
  first: number;
  count: number;
}

export interface SeriesEntry {
  sid: string;
  run: string;
  rank: number | null;
  tag: string;
  mode: 'set' | 'add';
  /** Points in this message. */
  count: number;
  /** Points that there are in all. */
  total: number;
  thinned: boolean;
}

export interface Columns {
  steps: Float64Array;
  walls: Float64Array;
  values: Float64Array;
}

/** One series' part of a message. */
export interface SeriesPart extends SeriesEntry, Columns {}

/** What a snapshot and a batch can carry. */
export interface Changes {
  head?: Head;
  ranks?: RankInfo[];
  going?: GoingLine[];
  log?: (LogHeader & { lines: LogLine[] }) | undefined;
  series?: SeriesPart[];
}

/** A message of the feed as a carrier hands it on; `readMessage` makes a `FeedEvent` of it. */
export type FeedMessage = Readonly<Record<string, unknown>>;

export type FeedEvent =
  | { type: 'snapshot'; to: string | null; n: number; preview: boolean; changes: Changes }
  | { type: 'batch'; n: number; changes: Changes }
  | {
      type: 'reply';
      to: string;
      id: string;
      result: Readonly<Record<string, unknown>>;
      error: ErrorInfo | null;
    }
  | { type: 'gone'; error: ErrorInfo };

export interface CallParams {
  lines: { first: number; count: number } | { indices: number[]; whole?: boolean };
  scan: { text: string; ranks: number[] | null; since: number };
  curve: { sid: string; x: 'step' | 'time'; from: number; to: number; points: number };
  stacks: Record<string, never>;
  stop: Record<string, never>;
  again: Record<string, never>;
  script: Record<string, never>;
}

export type Method = keyof CallParams;

export type ViewMessage =
  | { type: 'hello'; client: string; version: number }
  | { type: 'ack'; n: number }
  | { type: 'visible'; visible: boolean }
  | { type: 'resend'; from: number; to: number }
  | { type: 'bye'; client: string }
  | { [M in Method]: { type: 'call'; id: string; client: string; method: M; params: CallParams[M] } }[Method];

/** What was answered to a call. */
export interface Answer {
  result: Readonly<Record<string, unknown>>;
  buffers: readonly ArrayBuffer[];
}

/** How a part of the store asks the feed; rejects with a `FeedError`. */
export type Call = <M extends Method>(method: M, params: CallParams[M]) => Promise<Answer>;

/** What a feed, or the way to it, said instead of an answer. */
export class FeedError extends Error implements ErrorInfo {
  readonly what: string;
  readonly why: string;
  readonly fix: string;

  constructor({ what, why, fix }: ErrorInfo) {
    super([what, why, fix].filter(Boolean).join(' '));
    this.name = 'FeedError';
    this.what = what;
    this.why = why;
    this.fix = fix;
  }
}

/** The error for an answer that does not hold what was asked for. */
export function unusable(method: Method): FeedError {
  return new FeedError({
    what: `The answer to "${method}" cannot be used.`,
    why: 'It is not of the form that this page expects.',
    fix: 'Reload the page; kfnb and the page may be of different versions.'
  });
}
