import type { SeriesPart } from './protocol';

/** Points that a curve holds at most, and to how many it is thinned when there are more. */
export const MOST_POINTS = 4_000;
export const THINNED_POINTS = 2_000;

/** Versions are never used twice, whatever curve they are of: a new curve is never taken for the one before it. */
let versions = 0;

/** One series as it is here: all of it, or a thinned picture of all of it that shows every peak. */
export class Curve {
  readonly sid: string;
  readonly run: string;
  readonly rank: number | null;
  readonly tag: string;
  /** Points that are here, and that there are. */
  count = 0;
  total = 0;
  /** Another number after every change. */
  version = 0;
  #steps = new Float64Array(0);
  #walls = new Float64Array(0);
  #values = new Float64Array(0);
  /** Which of the series' points each one is: what is thinned again and again stays evenly thinned. */
  #places = new Float64Array(0);

  constructor({ sid, run, rank, tag }: { sid: string; run: string; rank: number | null; tag: string }) {
    this.sid = sid;
    this.run = run;
    this.rank = rank;
    this.tag = tag;
  }

  get steps(): Float64Array {
    return this.#steps.subarray(0, this.count);
  }

  /** Unix seconds. */
  get walls(): Float64Array {
    return this.#walls.subarray(0, this.count);
  }

  get values(): Float64Array {
    return this.#values.subarray(0, this.count);
  }

  /** Whether points are left out. */
  get thinned(): boolean {
    return this.count < this.total;
  }

  /** Take what a message has of this series. */
  take(part: SeriesPart): void {
    if (part.mode === 'set') {
      this.count = 0;
      this.total = 0;
    }
    const before = this.total;
    const after = Math.max(part.total, before + part.count);
    const apart = part.count > 1 ? (after - before - 1) / (part.count - 1) : 1;
    let { steps, walls, values } = part;
    let places = new Float64Array(part.count);
    for (let i = 0; i < part.count; i++) {
      places[i] = before + i * apart;
    }
    if (part.count > THINNED_POINTS) {
      const kept = extremes(places, values, THINNED_POINTS);
      [steps, walls, values, places] = [
        pick(steps, kept),
        pick(walls, kept),
        pick(values, kept),
        pick(places, kept)
      ];
    }
    if (this.count + values.length > MOST_POINTS) {
      const kept = extremes(this.#places.subarray(0, this.count), this.values, THINNED_POINTS);
      this.#steps = pick(this.#steps, kept);
      this.#walls = pick(this.#walls, kept);
      this.#values = pick(this.#values, kept);
      this.#places = pick(this.#places, kept);
      this.count = kept.length;
    }
    this.#steps = append(this.#steps, this.count, steps);
    this.#walls = append(this.#walls, this.count, walls);
    this.#places = append(this.#places, this.count, places);
    this.#values = append(this.#values, this.count, values);
    this.count += values.length;
    this.total = after;
    versions += 1;
    this.version = versions;
  }
}

/** The points of a line that can be told apart in a plot of so many pixels; points without a place are left out. */
export function thin(
  xs: ArrayLike<number>,
  ys: ArrayLike<number>,
  pixels: number
): { xs: Float64Array; ys: Float64Array } {
  const placed = new Uint32Array(Math.min(xs.length, ys.length));
  let count = 0;
  for (let i = 0; i < placed.length; i++) {
    if (Number.isFinite(xs[i])) {
      placed[count] = i;
      count += 1;
    }
  }
  const x = pick(xs, placed.subarray(0, count));
  const y = pick(ys, placed.subarray(0, count));
  const budget = Math.max(4 * pixels, 8);
  if (count <= budget) {
    return { xs: x, ys: y };
  }
  const kept = extremes(x, y, budget);
  return { xs: pick(x, kept), ys: pick(y, kept) };
}

/**
 * An exponential moving average as TensorBoard draws it: `weight` (0..1) is what stays of the past, and the first
 * values are not pulled towards zero. Non-finite values stay what they are and do not count; a constant stays one.
 */
export function smooth(values: ArrayLike<number>, weight: number): Float64Array {
  const kept = Math.min(Math.max(weight, 0), 0.9999);
  const smoothed = Float64Array.from(values);
  const first = smoothed[0];
  if (kept === 0 || smoothed.every(value => value === first)) {
    return smoothed;
  }
  let average = 0;
  let share = 1;
  smoothed.forEach((value, i) => {
    if (Number.isFinite(value)) {
      average = kept * average + (1 - kept) * value;
      share *= kept;
      smoothed[i] = average / (1 - share);
    }
  });
  return smoothed;
}

/**
 * Several lines over one ascending axis. Where a line has no point there is undefined, where its value is not finite
 * there is null; of several points of a line at one place the last counts.
 *
 * `columns`: where there would be more places than these, points are moved to the nearest of so many equal ones, a
 * line's close points to neighbouring ones. Four a pixel cannot be told from the truth.
 */
export function join(
  series: readonly { xs: ArrayLike<number>; ys: ArrayLike<number> }[],
  columns = Infinity
): { xs: Float64Array; ys: (number | null | undefined)[][] } {
  const sorted = series.map(({ xs, ys }) => ordered(xs, ys));
  const axis = union(
    sorted.map(({ xs }) => xs),
    columns
  );
  if (!axis) {
    return joinColumns(sorted, columns);
  }
  const ys = sorted.map(line => (same(line.xs, axis) ? Array.from(line.ys, finite) : spread(line, axis)));
  return { xs: axis, ys };
}

/** A value in four digits. */
export function format(value: number): string {
  if (Number.isNaN(value)) {
    return 'NaN';
  }
  const size = Math.abs(value);
  if (size === Infinity) {
    return value > 0 ? '∞' : '-∞';
  }
  if (Number.isInteger(value) && size < 1e6) {
    return String(value + 0);
  }
  if (size >= 1e6 || size < 1e-4) {
    return value.toExponential(3).replace(/\.?0+e/, 'e');
  }
  const text = value.toPrecision(4);
  return String(Number(text));
}

/**
 * Ascending indices of at most about `budget` points: the first, the last, the least and the largest of each of
 * equal ranges of `places`, and those that are not finite (evenly chosen where they are many).
 */
function extremes(places: Float64Array, values: Float64Array, budget: number): Uint32Array {
  const length = values.length;
  const kept = new Uint8Array(length);
  const odd: number[] = [];
  let from = Infinity;
  let to = -Infinity;
  for (let i = 0; i < length; i++) {
    const place = places[i] ?? 0;
    from = place < from ? place : from;
    to = place > to ? place : to;
    if (!Number.isFinite(values[i])) {
      odd.push(i);
    }
  }
  const oddKept = Math.min(odd.length, Math.floor(budget / 4));
  for (let i = 0; i < oddKept; i++) {
    kept[odd[Math.floor((i * odd.length) / oddKept)] ?? 0] = 1;
  }
  const ranges = Math.max(Math.floor((budget - oddKept - 2) / 2), 1);
  const least = new Int32Array(ranges).fill(-1);
  const largest = new Int32Array(ranges).fill(-1);
  const scale = to > from ? ranges / (to - from) : 0;
  for (let i = 0; i < length; i++) {
    const value = values[i] ?? NaN;
    if (Number.isFinite(value)) {
      const range = Math.min(Math.floor(((places[i] ?? 0) - from) * scale), ranges - 1);
      const low = least[range] ?? -1;
      const high = largest[range] ?? -1;
      if (low < 0 || value < (values[low] ?? 0)) {
        least[range] = i;
      }
      if (high < 0 || value > (values[high] ?? 0)) {
        largest[range] = i;
      }
    }
  }
  for (const i of [0, length - 1, ...least, ...largest]) {
    if (i >= 0) {
      kept[i] = 1;
    }
  }
  const indices = new Uint32Array(length);
  let count = 0;
  for (let i = 0; i < length; i++) {
    if (kept[i] === 1) {
      indices[count] = i;
      count += 1;
    }
  }
  return indices.slice(0, count);
}

function pick(column: ArrayLike<number>, indices: ArrayLike<number>): Float64Array<ArrayBuffer> {
  const picked = new Float64Array(indices.length);
  for (let i = 0; i < picked.length; i++) {
    picked[i] = column[indices[i] ?? 0] ?? NaN;
  }
  return picked;
}

/** `column`, of which `count` are used, with `more` behind them; it grows by doubling. */
function append(
  column: Float64Array<ArrayBuffer>,
  count: number,
  more: Float64Array
): Float64Array<ArrayBuffer> {
  let room = column;
  if (count + more.length > column.length) {
    room = new Float64Array(Math.min(Math.max(2 * column.length, count + more.length, 16), MOST_POINTS));
    room.set(column.subarray(0, count));
  }
  room.set(more, count);
  return room;
}

/** The points that have a place, by their places; equal ones in their order. */
function ordered(xs: ArrayLike<number>, ys: ArrayLike<number>): Columnar {
  let isOrdered = true;
  for (let i = 0; i < xs.length && isOrdered; i++) {
    const x = xs[i] ?? NaN;
    isOrdered = Number.isFinite(x) && (i === 0 || x >= (xs[i - 1] ?? NaN));
  }
  if (isOrdered) {
    return { xs: xs instanceof Float64Array ? xs : Float64Array.from(xs), ys };
  }
  const order = Array.from(xs, (_, i) => i)
    .filter(i => Number.isFinite(xs[i]))
    .sort((a, b) => (xs[a] ?? 0) - (xs[b] ?? 0));
  return { xs: pick(xs, order), ys: pick(ys, order) };
}

interface Columnar {
  xs: Float64Array;
  ys: ArrayLike<number>;
}

/** A line's values over an axis that has all of its places. */
function spread({ xs, ys }: Columnar, axis: Float64Array): (number | null | undefined)[] {
  const values = new Array<number | null | undefined>(axis.length).fill(undefined);
  let at = 0;
  for (let i = 0; i < xs.length; i++) {
    const x = xs[i] ?? 0;
    while ((axis[at] ?? x) < x) {
      at += 1;
    }
    values[at] = finite(ys[i]);
  }
  return values;
}

/**
 * All places that occur, ascending; undefined where they are more than `limit`. Lines with the same places, as those
 * of the ranks of a job are, cost little.
 */
function union(axes: readonly Float64Array[], limit: number): Float64Array | undefined {
  let all = new Float64Array(0);
  let last: Float64Array | undefined;
  for (const axis of axes) {
    if (!last || !same(axis, last)) {
      all = merge(all, axis);
      last = axis;
    }
    if (all.length > limit) {
      return undefined;
    }
  }
  return all;
}

/** The places of both, each once. */
function merge(a: Float64Array, b: Float64Array): Float64Array<ArrayBuffer> {
  const merged = new Float64Array(a.length + b.length);
  let [i, k, count] = [0, 0, 0];
  while (i < a.length || k < b.length) {
    const x = a[i] ?? Infinity;
    const y = b[k] ?? Infinity;
    const next = x < y ? x : y;
    i += x <= y ? 1 : 0;
    k += y <= x ? 1 : 0;
    if (count === 0 || next !== merged[count - 1]) {
      merged[count] = next;
      count += 1;
    }
  }
  return merged.subarray(0, count);
}

function same(a: Float64Array, b: Float64Array): boolean {
  let i = 0;
  while (i < a.length && a[i] === b[i]) {
    i += 1;
  }
  return i === a.length && a.length === b.length;
}

function joinColumns(
  lines: readonly Columnar[],
  columns: number
): { xs: Float64Array; ys: (number | null | undefined)[][] } {
  const from = Math.min(...lines.map(({ xs }) => xs[0] ?? Infinity));
  const to = Math.max(...lines.map(({ xs }) => xs[xs.length - 1] ?? -Infinity));
  const last = Math.max(Math.floor(columns), 2) - 1;
  const apart = (to - from) / last;
  const xs = Float64Array.from({ length: last + 1 }, (_, i) => from + i * apart);
  const ys = lines.map(line => {
    const joined = new Array<number | null | undefined>(last + 1).fill(undefined);
    let before = -1;
    for (let i = 0; i < line.xs.length; i++) {
      const x = line.xs[i] ?? 0;
      const again = i > 0 && x === line.xs[i - 1];
      const nearest = Math.round((x - from) / apart);
      const at = again ? before : Math.min(Math.max(nearest, before + 1), last);
      joined[at] = finite(line.ys[i]);
      before = at;
    }
    return joined;
  });
  return { xs, ys };
}

function finite(value: number | undefined): number | null {
  return value !== undefined && Number.isFinite(value) ? value : null;
}
