import type { Curve } from '../../curves';
import { plain } from '../../text';

export type Axis = 'step' | 'relative' | 'wall';

/** A line of a plot. `look` numbers its colour, the same in every plot. */
export interface Line {
  curve: Curve;
  name: string;
  look: number;
}

/** The plots in the order of their names, numbers in them by their size; those in no group ("loss") first. */
export function groupTags(curves: Iterable<Curve>): Map<string, Line[]> {
  const all = [...curves];
  const runs = [...new Set(all.map(curve => curve.run))];
  const writers = new Map<string, number>();
  const groups = new Map<string, Line[]>();
  for (const curve of all) {
    const writer = JSON.stringify([curve.run, curve.rank]);
    if (!writers.has(writer)) {
      writers.set(writer, writers.size);
    }
    // With one run a rank's line has the colour of its chip.
    const look = runs.length === 1 && curve.rank !== null ? curve.rank : (writers.get(writer) ?? 0);
    groups.set(curve.tag, [...(groups.get(curve.tag) ?? []), { curve, name: '', look }]);
  }
  for (const lines of groups.values()) {
    nameLines(lines);
  }
  const order = new Intl.Collator('en', { numeric: true });
  const isGrouped = (tag: string): number => Number(tag.includes('/'));
  return new Map([...groups].sort(([a], [b]) => isGrouped(a) - isGrouped(b) || order.compare(a, b)));
}

/** Names say what tells a plot's lines apart: the run, the rank, both, or nothing where there is one line. */
function nameLines(lines: Line[]): void {
  const runs = new Set(lines.map(({ curve }) => curve.run)).size;
  const ranks = new Set(lines.map(({ curve }) => curve.rank)).size;
  lines.sort((a, b) => (a.curve.rank ?? -1) - (b.curve.rank ?? -1));
  for (const line of lines) {
    const { run, rank } = line.curve;
    const parts = [runs > 1 ? plain(run) || '.' : '', ranks > 1 && rank !== null ? `rank ${rank}` : ''];
    line.name = parts.filter(Boolean).join(' · ') || (rank !== null ? `rank ${rank}` : 'value');
  }
}

/** Whether a tag is wanted: by a regular expression, or where it is none, by its letters. */
export function tagFilter(text: string): (tag: string) => boolean {
  const sought = text.trim();
  if (sought === '') {
    return () => true;
  }
  try {
    const expression = new RegExp(sought, 'i');
    return tag => expression.test(tag);
  } catch {
    const small = sought.toLowerCase();
    return tag => tag.toLowerCase().includes(small);
  }
}

/** Where the points of a curve stand on the horizontal axis. */
export function places(curve: Pick<Curve, 'steps' | 'walls'>, axis: Axis, origin: number): Float64Array {
  if (axis === 'step') {
    return curve.steps;
  }
  return axis === 'wall' ? curve.walls : curve.walls.map(wall => wall - origin);
}

/** The index of the point that is nearest to `x`, of ascending places; -1 where there are none. */
export function nearest(xs: ArrayLike<number>, x: number): number {
  let low = 0;
  let high = xs.length - 1;
  if (high < 0) {
    return -1;
  }
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((xs[middle] ?? 0) <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return Math.abs((xs[low] ?? 0) - x) <= Math.abs((xs[high] ?? 0) - x) ? low : high;
}
