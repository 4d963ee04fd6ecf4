import { describe, expect, test } from 'vitest';

import { Curve, format, join, MOST_POINTS, smooth, thin } from '../src/jobview/curves';
import type { SeriesPart } from '../src/jobview/protocol';
import { Random } from './random';

function part(
  mode: 'set' | 'add',
  first: number,
  values: readonly number[],
  total = first + values.length
): SeriesPart {
  return {
    sid: 'a',
    run: '.',
    rank: null,
    tag: 'loss',
    mode,
    count: values.length,
    total,
    thinned: total > values.length,
    steps: Float64Array.from(values, (_, i) => first + i),
    walls: Float64Array.from(values, (_, i) => 1_000 + first + i),
    values: Float64Array.from(values)
  };
}

const curve = (): Curve => new Curve({ sid: 'a', run: '.', rank: null, tag: 'loss' });

describe('a curve', () => {
  test('is set, and added to; every change has a new version', () => {
    const a = curve();
    a.take(part('set', 0, [1, 2]));
    const first = a.version;
    a.take(part('add', 2, [NaN, Infinity, 5]));
    expect([...a.steps]).toEqual([0, 1, 2, 3, 4]);
    expect([...a.walls]).toEqual([1_000, 1_001, 1_002, 1_003, 1_004]);
    expect([...a.values]).toEqual([1, 2, NaN, Infinity, 5]);
    expect(a.thinned).toBe(false);
    expect(a.version).not.toBe(first);
    a.take(part('set', 0, [7]));
    expect([...a.values]).toEqual([7]);
    expect(a.total).toBe(1);
  });

  test('stays bounded, and keeps its ends, its peaks and what is not finite', () => {
    for (let seed = 0; seed < 10; seed += 1) {
      const random = new Random(seed);
      const a = curve();
      const all: number[] = [];
      const odd: number[] = [];
      while (all.length < 30_000) {
        const values = Array.from({ length: random.below(3_000) }, () => random.next() - 0.5);
        if (random.next() < 0.3 && values.length > 0) {
          const at = random.below(values.length);
          values[at] = random.pick([NaN, Infinity, -Infinity, 9, -9]);
          if (!Number.isFinite(values[at])) {
            odd.push(all.length + at);
          }
        }
        a.take(part('add', all.length, values));
        all.push(...values);
        expect(a.count).toBeLessThanOrEqual(MOST_POINTS);
        expect(a.total).toBe(all.length);
      }
      const finite = (values: Iterable<number>): number[] =>
        [...values].filter(value => Number.isFinite(value));
      const steps = [...a.steps];
      expect(Math.max(...finite(a.values))).toBe(Math.max(...finite(all)));
      expect(Math.min(...finite(a.values))).toBe(Math.min(...finite(all)));
      expect(steps[0]).toBe(0);
      expect(steps.at(-1)).toBe(all.length - 1);
      expect(steps.filter(step => odd.includes(step))).toEqual(odd);
      // Each point is one of the series', in order, and no stretch is without points.
      const gaps = steps.map((step, i) => step - (steps[i - 1] ?? -1));
      expect([...a.values]).toEqual(steps.map(step => all[step]));
      expect(Math.min(...gaps)).toBeGreaterThan(0);
      expect(Math.max(...gaps)).toBeLessThan(300);
    }
  });

  test('of nothing but NaN is bounded too', () => {
    const a = curve();
    a.take(part('set', 0, new Array<number>(100_000).fill(NaN)));
    for (let i = 0; i < 10; i += 1) {
      a.take(part('add', a.total, new Array<number>(1_000).fill(NaN)));
    }
    expect(a.count).toBeLessThanOrEqual(MOST_POINTS);
    expect(a.steps[0]).toBe(0);
    expect(a.steps.at(-1)).toBe(a.total - 1);
  });

  test('with one step for all of its points keeps its course', () => {
    const a = curve();
    const all = part(
      'set',
      0,
      Array.from({ length: 10_000 }, (_, i) => i)
    );
    a.take({ ...all, steps: new Float64Array(10_000) });
    expect(a.count).toBeGreaterThan(1_000);
    expect([...a.values]).toEqual([...a.values].sort((x, y) => x - y));
  });
});

describe('thin', () => {
  test('keeps what fits, and the extremes of what does not', () => {
    const xs = Float64Array.from({ length: 50_000 }, (_, i) => i);
    const ys = xs.map(x => Math.sin(x / 3_000));
    ys[12_345] = 40;
    ys[23_456] = NaN;
    ys[34_567] = -40;
    const thinned = thin(xs, ys, 300);
    expect(thinned.xs.length).toBeLessThanOrEqual(1_200);
    expect(thinned.xs[0]).toBe(0);
    expect(thinned.xs.at(-1)).toBe(49_999);
    for (const at of [12_345, 23_456, 34_567]) {
      expect(thinned.ys[thinned.xs.indexOf(at)]).toBe(ys[at]);
    }
    expect(thin([1, NaN, 3], [4, 5, 6], 300)).toEqual({
      xs: Float64Array.of(1, 3),
      ys: Float64Array.of(4, 6)
    });
    expect(thin([], [], 300).xs).toHaveLength(0);
  });
});

describe('smooth', () => {
  test('is an average without a pull to zero; a constant stays what it is', () => {
    expect([...smooth([3, 3, 3], 0.9)]).toEqual([3, 3, 3]);
    expect([...smooth([1, 2, 3], 0)]).toEqual([1, 2, 3]);
    const [first, second] = smooth([1, 2], 0.5);
    expect(first).toBeCloseTo(1);
    expect(second).toBeCloseTo((0.5 * 0.5 * 1 + 0.5 * 2) / 0.75);
  });

  test('what is not finite stays and does not count', () => {
    const smoothed = smooth([1, NaN, Infinity, 2], 0.5);
    const without = smooth([1, 2], 0.5);
    expect([...smoothed]).toEqual([without[0], NaN, Infinity, without[1]]);
  });
});

describe('join', () => {
  test('equal and different axes, in order; null is not finite, undefined is no point', () => {
    const { xs, ys } = join([
      { xs: [0, 1, 2], ys: [5, NaN, 7] },
      { xs: [1, 3], ys: [8, 9] },
      { xs: [2, 0, NaN], ys: [1, 2, 3] }
    ]);
    expect([...xs]).toEqual([0, 1, 2, 3]);
    expect(ys).toEqual([
      [5, null, 7, undefined],
      [undefined, 8, undefined, 9],
      [2, undefined, 1, undefined]
    ]);
    expect(join([])).toEqual({ xs: new Float64Array(), ys: [] });
  });

  test('of several points at one place the last counts', () => {
    expect(join([{ xs: [0, 1, 1, 1], ys: [1, 2, 3, 4] }])).toEqual({
      xs: Float64Array.of(0, 1),
      ys: [[1, 4]]
    });
  });

  test('every point of every line is found again', () => {
    for (let seed = 0; seed < 50; seed += 1) {
      const random = new Random(seed);
      const lines = Array.from({ length: 1 + random.below(6) }, () => {
        const points = new Map(
          Array.from({ length: random.below(40) }, () => [random.below(60), random.next()])
        );
        return { xs: [...points.keys()], ys: [...points.values()] };
      });
      const { xs, ys } = join(lines);
      expect([...xs]).toEqual([...new Set(lines.flatMap(line => line.xs))].sort((a, b) => a - b));
      lines.forEach((line, i) => {
        expect(ys[i]?.filter(y => y !== undefined)).toHaveLength(line.xs.length);
        line.xs.forEach((x, k) => {
          expect(ys[i]?.[xs.indexOf(x)]).toBe(line.ys[k]);
        });
      });
    }
  });

  test('many places are moved to columns, and peaks are still there', () => {
    const random = new Random(1);
    const lines = Array.from({ length: 64 }, () => {
      const xs = Array.from({ length: 1_000 }, () => random.next() * 100).sort((a, b) => a - b);
      return { xs, ys: xs.map((_, i) => (i === 500 ? 99 : random.next())) };
    });
    const { xs, ys } = join(lines, 2_400);
    expect(xs).toHaveLength(2_400);
    ys.forEach((line, i) => {
      expect(line).toHaveLength(2_400);
      const peak = line.indexOf(99);
      expect(Math.abs((xs[peak] ?? 0) - (lines[i]?.xs[500] ?? 0))).toBeLessThan(0.5);
    });
  });
});

test('format says values in four digits', () => {
  const said = [
    0,
    -0,
    3,
    0.123456,
    123.456,
    1e6,
    -2.5e-7,
    12345.678,
    NaN,
    Infinity,
    -Infinity,
    1e-300,
    0.1
  ].map(format);
  expect(said).toEqual([
    '0',
    '0',
    '3',
    '0.1235',
    '123.5',
    '1e+6',
    '-2.5e-7',
    '12350',
    'NaN',
    '∞',
    '-∞',
    '1e-300',
    '0.1'
  ]);
});
