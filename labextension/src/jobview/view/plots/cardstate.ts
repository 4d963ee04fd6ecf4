import { format } from '../../curves';
import { clock, count, timeOfDay } from '../format';
import type { Scheme } from '../palette';
import type { Chart } from './chart';
import { type Columns, type Drawing, type Look, draw } from './data';
import { type Line, nearest, places } from './tags';

/** The part of the horizontal axis that is shown; null for all of it. */
export type Zoom = { from: number; to: number } | null;

/** What of a card outlives its drawings, and is read by them. */
export class CardState {
  lines: readonly Line[] = [];
  look: Look = { smoothing: 0, axis: 'step', log: false };
  origin = 0;
  hidden: ReadonlySet<string> = new Set();
  zoom: Zoom = null;
  group = '';
  scheme: Scheme = 'light';
  readonly details = new Map<string, Columns>();
  chart: Chart | null = null;
  seen = false;
  hovered: number | null = null;
  put: (values: readonly string[]) => void = () => undefined;
  #drawn = '';

  draw(pixels: number): Drawing {
    this.#drawn = this.#versions();
    const { lines, look, origin, hidden, zoom, details } = this;
    return draw({ lines, look, origin, hidden, zoom, details, pixels });
  }

  /** Whether the curves are other ones than those that were drawn. */
  changed(): boolean {
    return this.#drawn !== this.#versions();
  }

  /** Values beside the names: those under the cursor, else the newest. */
  putValues(figure: HTMLElement | null): void {
    const { lines, look, origin, hovered } = this;
    this.put(
      lines.map(({ curve }) => {
        const at = hovered === null ? curve.count - 1 : nearest(places(curve, look.axis, origin), hovered);
        const value = curve.values[at];
        return value === undefined ? '' : format(value);
      })
    );
    const at = figure?.querySelector('.kf-at');
    if (at) {
      at.textContent = hovered === null ? '' : placeWords(hovered, look.axis);
    }
  }

  #versions(): string {
    return this.lines.map(({ curve }) => curve.version).join();
  }
}

function placeWords(x: number, axis: Look['axis']): string {
  if (axis === 'step') {
    return `step ${count(Math.round(x))}`;
  }
  return axis === 'relative' ? clock(x) : timeOfDay(x);
}
