import { join, smooth, thin } from '../../curves';
import { type Axis, type Line, places } from './tags';

/** Points of all lines of a plot together that are drawn. */
const DRAWN = 6_000;

/** How the user wants the plots. */
export interface Look {
  smoothing: number;
  axis: Axis;
  log: boolean;
}

export interface Columns {
  steps: Float64Array;
  walls: Float64Array;
  values: Float64Array;
}

/** A point that is no finite number, by its line. */
export interface Odd {
  line: number;
  x: number;
  step: number;
  value: number;
}

/** What a plot draws. */
export interface Drawing {
  xs: Float64Array;
  /** As many as there are lines; twice as many with smoothing: the values as they are, then smoothed. */
  ys: (number | null | undefined)[][];
  odd: Odd[];
  /** Finite values that a logarithmic axis has no place for. */
  unplaced: number;
}

export interface Source {
  lines: readonly Line[];
  hidden: ReadonlySet<string>;
  look: Look;
  /** Where relative time begins, Unix seconds. */
  origin: number;
  pixels: number;
  /** What of the horizontal axis is shown, and the curves in full there as far as they are known. */
  zoom: { from: number; to: number } | null;
  details: ReadonlyMap<string, Columns>;
}

/** Thin, smooth and join what is to be drawn. */
export function draw({ lines, hidden, look, origin, pixels, zoom, details }: Source): Drawing {
  const odd: Odd[] = [];
  let unplaced = 0;
  const shown = lines.filter(({ curve }) => !hidden.has(curve.sid)).length;
  const room = Math.max(Math.min(pixels, DRAWN / 4 / Math.max(shown, 1)), 40);
  const raw: { xs: Float64Array; ys: Float64Array }[] = [];
  const smoothed: { xs: Float64Array; ys: Float64Array }[] = [];
  lines.forEach(({ curve }, number) => {
    if (hidden.has(curve.sid)) {
      raw.push(NOTHING);
      smoothed.push(NOTHING);
      return;
    }
    const columns = (zoom && details.get(curve.sid)) ?? curve;
    const xs = places(columns, look.axis, origin);
    const { values } = columns;
    const even = look.smoothing > 0 ? smooth(values, look.smoothing) : values;
    const within = zoom ? range(xs, zoom) : { from: 0, to: xs.length };
    for (let i = within.from; i < within.to; i++) {
      const value = values[i] ?? NaN;
      if (!Number.isFinite(value)) {
        odd.push({ line: number, x: xs[i] ?? 0, step: columns.steps[i] ?? 0, value });
      } else if (look.log && value <= 0) {
        unplaced += 1;
      }
    }
    const part = (ys: Float64Array): { xs: Float64Array; ys: Float64Array } => {
      const y = ys.subarray(within.from, within.to);
      // Without a place on the axis they are as good as not finite.
      const placed = look.log ? y.map(value => (value > 0 ? value : NaN)) : y;
      return thin(xs.subarray(within.from, within.to), placed, room);
    };
    raw.push(part(values));
    smoothed.push(look.smoothing > 0 ? part(even) : NOTHING);
  });
  const { xs, ys } = join(look.smoothing > 0 ? [...raw, ...smoothed] : raw, 4 * Math.max(pixels, room));
  return { xs, ys, odd, unplaced };
}

const NOTHING = { xs: new Float64Array(0), ys: new Float64Array(0) };

/** The points in the range and one at either side, so that lines go on to the edge. */
function range(xs: Float64Array, { from, to }: { from: number; to: number }): { from: number; to: number } {
  let first = 0;
  let end = xs.length;
  while (first < end && (xs[first] ?? 0) < from) {
    first += 1;
  }
  while (end > first && (xs[end - 1] ?? 0) > to) {
    end -= 1;
  }
  return { from: Math.max(first - 1, 0), to: Math.min(end + 1, xs.length) };
}

const NAMES = (value: number): string => (Number.isNaN(value) ? 'NaN' : value > 0 ? '+∞' : '-∞');

/** "3 points are not finite: NaN from step 412 (rank 3)". */
export function oddWords(odd: readonly Odd[], lines: readonly Line[]): string {
  const [first] = [...odd].sort((a, b) => a.step - b.step);
  if (!first) {
    return '';
  }
  const who = lines.length > 1 ? ` (${lines[first.line]?.name ?? ''})` : '';
  const where = `${NAMES(first.value)} ${odd.length === 1 ? 'at' : 'from'} step ${first.step}${who}`;
  return odd.length === 1
    ? `1 point is not finite: ${where}`
    : `${odd.length} points are not finite: ${where}`;
}
