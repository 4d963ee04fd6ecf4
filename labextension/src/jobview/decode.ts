/**
 * What comes from a feed is not trusted: these readers give undefined for what cannot be used, and never throw.
 */

import type {
  Changes,
  Columns,
  ErrorInfo,
  FeedEvent,
  GoingLine,
  Head,
  LogHeader,
  LogLine,
  NonFinite,
  Pace,
  Phase,
  Progress,
  RankInfo,
  SeriesEntry,
  SeriesPart
} from './protocol';

/** A message that can be used, or undefined. */
export function readMessage(message: unknown, buffers: readonly ArrayBuffer[]): FeedEvent | undefined {
  if (!isRecord(message)) {
    return undefined;
  }
  switch (message.type) {
    case 'snapshot': {
      const to = message.to ?? null;
      const n = message.n;
      const changes = readChanges(message, buffers);
      if (!isCount(n) || (to !== null && typeof to !== 'string') || changes?.head === undefined) {
        return undefined;
      }
      return { type: 'snapshot', to, n, preview: message.preview === true, changes };
    }
    case 'batch': {
      const n = message.n;
      const changes = readChanges(message, buffers);
      return isCount(n) && changes ? { type: 'batch', n, changes } : undefined;
    }
    case 'reply': {
      const { to, id, result } = message;
      if (typeof to !== 'string' || typeof id !== 'string') {
        return undefined;
      }
      const error = message.ok === true ? null : readError(message.error);
      return { type: 'reply', to, id, result: isRecord(result) ? result : {}, error };
    }
    case 'gone':
      return { type: 'gone', error: readError(message) };
    default:
      return undefined;
  }
}

/**
 * The lines of a message that begins with the four line buffers; undefined where they do not fit `count`.
 * `place` is the index of the first line, or the indices of all.
 */
export function decodeLines(
  buffers: readonly ArrayBuffer[],
  count: number,
  place: number | readonly number[]
): LogLine[] | undefined {
  const [text, rankBytes, timeBytes, flagBytes] = buffers;
  if (!text || rankBytes?.byteLength !== 4 * count || timeBytes?.byteLength !== 8 * count) {
    return undefined;
  }
  if (flagBytes?.byteLength !== count) {
    return undefined;
  }
  if (count === 0) {
    return [];
  }
  const texts = UTF8.decode(text).split('\n');
  if (texts.length !== count) {
    return undefined;
  }
  const ranks = new Int32Array(rankBytes);
  const times = new Float64Array(timeBytes);
  const flags = new Uint8Array(flagBytes);
  return texts.map((text, i) => ({
    index: typeof place === 'number' ? place + i : (place[i] ?? 0),
    text,
    rank: ranks[i] ?? 0,
    time: times[i] ?? 0,
    flags: flags[i] ?? 0
  }));
}

/** The series of `header` with their points, which are in `buffers`: steps, walls, values, of all one after another. */
export function decodeSeries(header: unknown, buffers: readonly ArrayBuffer[]): SeriesPart[] | undefined {
  if (!Array.isArray(header)) {
    return undefined;
  }
  const entries: SeriesEntry[] = [];
  for (const item of header) {
    const entry = readEntry(item);
    if (!entry) {
      return undefined;
    }
    entries.push(entry);
  }
  const columns = decodeColumns(
    buffers,
    entries.reduce((sum, entry) => sum + entry.count, 0)
  );
  if (!columns) {
    return undefined;
  }
  let from = 0;
  return entries.map(entry => {
    const to = from + entry.count;
    const part: SeriesPart = {
      ...entry,
      steps: columns.steps.subarray(from, to),
      walls: columns.walls.subarray(from, to),
      values: columns.values.subarray(from, to)
    };
    from = to;
    return part;
  });
}

/** Three buffers of `count` numbers each. */
export function decodeColumns(buffers: readonly ArrayBuffer[], count: number): Columns | undefined {
  const [steps, walls, values] = buffers;
  if (
    steps?.byteLength !== 8 * count ||
    walls?.byteLength !== 8 * count ||
    values?.byteLength !== 8 * count
  ) {
    return undefined;
  }
  return { steps: new Float64Array(steps), walls: new Float64Array(walls), values: new Float64Array(values) };
}

/** An index or a number of things. */
export function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** An error of the other side in our three sentences, whatever it sent. */
export function readError(value: unknown): ErrorInfo {
  const error = isRecord(value) ? value : {};
  return {
    what: text(error.what) || 'The job could not be asked.',
    why: text(error.why),
    fix: text(error.fix)
  };
}

const PHASES: ReadonlySet<string> = new Set<Phase>([
  'Submitting',
  'Pending',
  'Queued',
  'Running',
  'Restarting',
  'Stopping',
  'Succeeded',
  'Failed',
  'Stopped',
  'Lost'
]);

const UTF8 = new TextDecoder('utf-8', { ignoreBOM: true });

function readChanges(
  message: Readonly<Record<string, unknown>>,
  buffers: readonly ArrayBuffer[]
): Changes | undefined {
  const { head, ranks, going, log, series } = message;
  const changes: Changes = {};
  let rest = buffers;
  if (present(head)) {
    const read = readHead(head);
    if (!read) {
      return undefined;
    }
    changes.head = read;
  }
  if (present(ranks)) {
    changes.ranks = list(ranks, readRank);
  }
  if (present(going)) {
    changes.going = list(going, readGoing);
  }
  if (present(log)) {
    const read = readLog(log, buffers);
    if (!read) {
      return undefined;
    }
    changes.log = read;
    rest = buffers.slice(4);
  }
  // An empty list of series may come without its buffers.
  if (present(series) && !(Array.isArray(series) && series.length === 0)) {
    const read = decodeSeries(series, rest);
    if (!read) {
      return undefined;
    }
    changes.series = read;
  }
  return changes;
}

function readLog(
  value: unknown,
  buffers: readonly ArrayBuffer[]
): (LogHeader & { lines: LogLine[] }) | undefined {
  if (!isRecord(value)) {
    return undefined;
  }
  const { total, first, count } = value;
  if (!isCount(total) || !isCount(first) || !isCount(count) || first + count > total) {
    return undefined;
  }
  const lines = decodeLines(buffers, count, first);
  return lines && { total, first, count, lines };
}

function readEntry(value: unknown): SeriesEntry | undefined {
  if (!isRecord(value)) {
    return undefined;
  }
  const { sid, run, tag, mode, count, total } = value;
  const key = typeof sid === 'number' ? String(sid) : sid;
  if (
    typeof key !== 'string' ||
    typeof tag !== 'string' ||
    !isCount(count) ||
    (mode !== 'set' && mode !== 'add')
  ) {
    return undefined;
  }
  return {
    sid: key,
    run: text(run),
    rank: integer(value.rank),
    tag,
    mode,
    count,
    total: isCount(total) ? total : count,
    thinned: value.thinned === true
  };
}

function readHead(value: unknown): Head | undefined {
  if (!isRecord(value)) {
    return undefined;
  }
  const phase = value.phase;
  const now = real(value.now);
  if (typeof value.id !== 'string' || !isPhase(phase) || now === null) {
    return undefined;
  }
  return {
    id: value.id,
    name: text(value.name),
    backend: text(value.backend),
    phase,
    reason: text(value.reason),
    phase_time: real(value.phase_time),
    started: real(value.started),
    ended: real(value.ended),
    now,
    attempt: integer(value.attempt) ?? 0,
    nodes: integer(value.nodes) ?? 0,
    procs: integer(value.procs) ?? 0,
    lines: integer(value.lines) ?? 0,
    points: integer(value.points) ?? 0,
    reading: share(value.reading),
    first_line: integer(value.first_line),
    notebook: textOrNull(value.notebook),
    progress: record(value.progress, readProgress),
    pace: record(value.pace, readPace),
    restarts: list(value.restarts, item => ({
      attempt: integer(item.attempt) ?? 0,
      why: text(item.why),
      time: real(item.time)
    })),
    checkpoint: record(value.checkpoint, item => ({
      step: integer(item.step),
      path: text(item.path),
      time: real(item.time)
    })),
    non_finite: record(value.non_finite, readNonFinite),
    failure: record(value.failure, item => ({
      text: text(item.text),
      node: integer(item.node),
      rank: integer(item.rank),
      kind: text(item.kind),
      traceback: text(item.traceback),
      line: integer(item.line),
      cell_line: integer(item.cell_line)
    })),
    gaps: list(value.gaps, item => ({
      node: integer(item.node) ?? 0,
      count: integer(item.count) ?? 0,
      why: text(item.why)
    })),
    notes: list(value.notes, item => ({
      level: text(item.level),
      text: text(item.text),
      time: real(item.time)
    })),
    result: record(value.result, item => ({
      names: texts(item.names),
      bytes: integer(item.bytes) ?? 0,
      errors: texts(item.errors)
    }))
  };
}

function readProgress(item: Readonly<Record<string, unknown>>): Progress | undefined {
  const done = real(item.done);
  return done === null
    ? undefined
    : {
        done,
        total: real(item.total),
        unit: text(item.unit),
        eta: real(item.eta),
        silent: real(item.silent)
      };
}

function readPace(item: Readonly<Record<string, unknown>>): Pace | undefined {
  const step = real(item.step);
  return step === null ? undefined : { step, wait: share(item.wait), rank: integer(item.rank) };
}

function readNonFinite(item: Readonly<Record<string, unknown>>): NonFinite | undefined {
  const { value } = item;
  if (value !== 'nan' && value !== 'inf' && value !== '-inf') {
    return undefined;
  }
  return {
    run: text(item.run),
    tag: text(item.tag),
    rank: integer(item.rank),
    step: integer(item.step) ?? 0,
    value
  };
}

function readRank(item: Readonly<Record<string, unknown>>): RankInfo | undefined {
  const rank = integer(item.rank);
  return rank === null
    ? undefined
    : {
        rank,
        node: integer(item.node) ?? 0,
        state: text(item.state),
        pid: integer(item.pid),
        code: integer(item.code),
        line: textOrNull(item.line),
        done: share(item.done)
      };
}

function readGoing(item: Readonly<Record<string, unknown>>): GoingLine | undefined {
  const rank = integer(item.rank);
  return rank === null ? undefined : { rank, text: text(item.text) };
}

function isPhase(value: unknown): value is Phase {
  return typeof value === 'string' && PHASES.has(value);
}

function present(value: unknown): boolean {
  return value !== undefined && value !== null;
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function textOrNull(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function texts(value: unknown): string[] {
  return Array.isArray(value) ? value.filter(item => typeof item === 'string') : [];
}

function real(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

function integer(value: unknown): number | null {
  return Number.isSafeInteger(value) ? (value as number) : null;
}

function share(value: unknown): number | null {
  const number = real(value);
  return number === null ? null : Math.min(Math.max(number, 0), 1);
}

function record<T>(
  value: unknown,
  read: (item: Readonly<Record<string, unknown>>) => T | undefined
): T | null {
  return isRecord(value) ? (read(value) ?? null) : null;
}

function list<T>(value: unknown, read: (item: Readonly<Record<string, unknown>>) => T | undefined): T[] {
  const items: T[] = [];
  for (const item of Array.isArray(value) ? value : []) {
    const usable = isRecord(item) ? read(item) : undefined;
    if (usable !== undefined) {
      items.push(usable);
    }
  }
  return items;
}
