import uPlot from 'uplot';

import { format } from '../../curves';
import { clock } from '../format';
import { COLOURS, type Scheme, lineLook } from '../palette';
import type { Drawing, Look } from './data';
import { apart, logTicks, ticks } from './scale';
import type { Line } from './tags';

export interface ChartOptions {
  lines: readonly Line[];
  look: Look;
  scheme: Scheme;
  font: string;
  width: number;
  height: number;
  /** Charts of the same key share a cursor. */
  group: string;
  /** The place on the horizontal axis under the cursor; null when it has left. */
  hover: (x: number | null) => void;
  zoom: (range: { from: number; to: number } | null) => void;
}

/** The library has this as a constant of its types alone. */
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const LOGARITHMIC = 3 as uPlot.Scale.Distr;

/** Pixels of a marker for a value that is not finite. */
const MARK = 4;

/** One plot on its canvas. */
export class Chart {
  readonly #plot: uPlot;
  readonly #options: ChartOptions;
  #drawing: Drawing;
  #zoom: { from: number; to: number } | null = null;

  constructor(place: HTMLElement, options: ChartOptions, drawing: Drawing) {
    this.#options = options;
    this.#drawing = drawing;
    this.#plot = new uPlot(this.#settings(), this.#data(), place);
    this.#plot.over.style.cursor = 'crosshair';
  }

  show(drawing: Drawing, zoom: { from: number; to: number } | null): void {
    this.#drawing = drawing;
    this.#zoom = zoom;
    this.#plot.setData(this.#data());
  }

  resize(width: number, height: number): void {
    if (width !== this.#plot.width || height !== this.#plot.height) {
      this.#plot.setSize({ width, height });
    }
  }

  /** Move the cursor by so many points, from the newest where there is none. */
  moveCursor(by: number): void {
    const { cursor, data } = this.#plot;
    const xs = data[0];
    const at = (cursor.left ?? -1) >= 0 ? (cursor.idx ?? xs.length - 1) : xs.length - (by < 0 ? 0 : 1);
    const x = xs[Math.min(Math.max(at + by, 0), xs.length - 1)];
    if (x !== undefined) {
      this.#plot.setCursor({ left: this.#plot.valToPos(x, 'x'), top: 0 }, true);
    }
  }

  hideCursor(): void {
    this.#plot.setCursor({ left: -10, top: -10 }, true);
  }

  destroy(): void {
    this.#plot.destroy();
  }

  #data(): uPlot.AlignedData {
    const { xs, ys } = this.#drawing;
    const wanted = this.#options.lines.length * (this.#options.look.smoothing > 0 ? 2 : 1);
    const columns = Array.from({ length: wanted }, (_, i) => ys[i] ?? new Array<null>(xs.length).fill(null));
    return [xs, ...columns];
  }

  #settings(): uPlot.Options {
    const { lines, look, scheme, font, width, height, group, hover, zoom } = this.#options;
    const { muted, grid } = COLOURS[scheme];
    const smoothing = look.smoothing > 0;
    const axis = { stroke: muted, font, grid: { stroke: grid, width: 1 }, ticks: { show: false }, gap: 4 };
    return {
      width,
      height,
      padding: [10, 8, 0, 0],
      legend: { show: false },
      cursor: {
        drag: { x: true, y: false, setScale: false },
        points: { size: 6, one: false },
        sync: {
          key: group,
          scales: ['x', null],
          filters: { pub: type => type === 'mousemove' || type === 'mouseleave' }
        },
        bind: {
          dblclick: () => () => {
            zoom(null);
            return null;
          }
        }
      },
      scales: {
        x: { time: look.axis === 'wall', range: (_plot, low, high) => this.#horizontal(low, high) },
        y: {
          ...(look.log && { distr: LOGARITHMIC }),
          range: (_plot, low, high) => vertical(low, high, look.log)
        }
      },
      axes: [
        {
          ...axis,
          size: look.axis === 'wall' ? 36 : 22, // the date is a second row
          space: look.axis === 'wall' ? 70 : 56,
          ...(look.axis !== 'wall' && {
            splits: (plot: uPlot, _axis: number, low: number, high: number) =>
              ticks(low, high, plot.bbox.width / uPlot.pxRatio / 56),
            values: (_plot: uPlot, splits: number[]) =>
              splits.map(x => (look.axis === 'relative' ? clock(x) : shortStep(x)))
          })
        },
        {
          ...axis,
          space: 26,
          splits: (plot, _axis, low, high) =>
            (look.log ? logTicks : ticks)(low, high, plot.bbox.height / uPlot.pxRatio / 26),
          size: (_plot, values) => Math.max(34, 9 + 6.4 * Math.max(0, ...widths(values))),
          values: (_plot, splits) => splits.map(format)
        }
      ],
      series: [
        {},
        ...lines.map(line => ({
          ...lineStyle(line, scheme),
          ...(smoothing && { alpha: 0.28, width: 1, points: { show: false } })
        })),
        ...(smoothing ? lines.map(line => lineStyle(line, scheme)) : [])
      ],
      hooks: {
        draw: [
          plot => {
            this.#drawOdd(plot);
          }
        ],
        setCursor: [
          plot => {
            const { left } = plot.cursor;
            hover(left === undefined || left < 0 ? null : plot.posToVal(left, 'x'));
          }
        ],
        setSelect: [
          plot => {
            const { left, width: wide } = plot.select;
            if (wide > 4) {
              zoom({ from: plot.posToVal(left, 'x'), to: plot.posToVal(left + wide, 'x') });
            }
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          }
        ]
      }
    };
  }

  #horizontal(low: number | null, high: number | null): [number, number] {
    if (this.#zoom) {
      return apart(this.#zoom.from, this.#zoom.to);
    }
    const { xs } = this.#drawing;
    const [first = low ?? 0, last = high ?? 1] = [xs[0], xs[xs.length - 1]];
    return apart(first, last, 1);
  }

  /** Points without a place: at the top where they are NaN or +∞, at the bottom where they are -∞. */
  #drawOdd(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const size = MARK * uPlot.pxRatio;
    ctx.save();
    for (const { line, x, value } of this.#drawing.odd) {
      const at = plot.valToPos(x, 'x', true);
      if (at < bbox.left || at > bbox.left + bbox.width) {
        continue;
      }
      const down = value === -Infinity;
      const edge = down ? bbox.top + bbox.height : bbox.top;
      const base = down ? edge - 2 * size : edge + 2 * size;
      ctx.fillStyle = lineLook(this.#options.lines[line]?.look ?? 0, this.#options.scheme).colour;
      ctx.beginPath();
      if (Number.isNaN(value)) {
        ctx.moveTo(at, edge);
        ctx.lineTo(at + size, edge + size);
        ctx.lineTo(at, edge + 2 * size);
        ctx.lineTo(at - size, edge + size);
      } else {
        ctx.moveTo(at, edge);
        ctx.lineTo(at + size, base);
        ctx.lineTo(at - size, base);
      }
      ctx.fill();
    }
    ctx.restore();
  }
}

function lineStyle({ look }: Line, scheme: Scheme): uPlot.Series {
  const { colour, dash } = lineLook(look, scheme);
  return { stroke: colour, width: 1.5, dash, points: { size: 4, fill: colour } };
}

function vertical(low: number | null, high: number | null, log: boolean): [number, number] {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) {
    return log ? [0.1, 1] : [0, 1];
  }
  if (log) {
    const [from, to] = [low * 0.9, high * 1.1];
    return [Math.max(from, Number.MIN_VALUE), to];
  }
  const room = high === low ? Math.abs(high) * 0.1 || 1 : high * 0.06 - low * 0.06;
  return apart(Math.max(low - room, -Number.MAX_VALUE), Math.min(high + room, Number.MAX_VALUE));
}

function widths(values: readonly string[] | null): number[] {
  return (values ?? []).map(value => value.length);
}

/** 12,000 as 12k. */
function shortStep(x: number): string {
  const size = Math.abs(x);
  if (size >= 1e12) {
    return x.toExponential(1).replace('e+', 'e');
  }
  if (size >= 1e6) {
    return `${String(Number((x / 1e6).toPrecision(4)))}M`;
  }
  return size >= 1e4 ? `${String(Number((x / 1e3).toPrecision(4)))}k` : String(Number(x.toPrecision(6)));
}
