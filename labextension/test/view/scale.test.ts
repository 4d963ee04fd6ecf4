import { expect, test } from 'vitest';

import { apart, logTicks, ticks } from '../../src/jobview/view/plots/scale';

test('ticks are round numbers', () => {
  expect(ticks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
  expect(ticks(-0.13, 0.28, 5)).toEqual([-0.1, 0, 0.1, 0.2]);
  expect(ticks(0, 59, 6)).toEqual([0, 10, 20, 30, 40, 50]);
  expect(ticks(3, 997, 4)).toEqual([500]);
  expect(ticks(0, 0.0003, 3)).toEqual([0, 0.0001, 0.0002, 0.0003]);
});

test.each([
  [2 ** 53, 2 ** 53 + 1],
  [2 ** 62, 2 ** 62 + 512],
  [-(2 ** 62), 2 ** 62],
  [1, 1 + 2 ** -52],
  [1e16, 1e16 + 2],
  [1e17, 1e17 + 16],
  [5, 5],
  [0, 0],
  [-Number.MAX_VALUE, Number.MAX_VALUE],
  [Number.MIN_VALUE, 3 * Number.MIN_VALUE]
])('whatever is plotted, an axis has an extent and few ticks: %d to %d', (low, high) => {
  const [from, to] = apart(low, high, 1);
  expect(from).toBeLessThan(to);
  const found = ticks(from, to, 8);
  expect(found.length).toBeLessThanOrEqual(9);
  found.forEach((tick, i) => {
    expect(tick).toBeGreaterThanOrEqual(from);
    expect(tick).toBeLessThanOrEqual(to);
    if (i > 0) {
      expect(tick).toBeGreaterThan(found[i - 1] ?? Infinity);
    }
  });
});

test('ticks of a logarithmic axis are powers of ten, and few', () => {
  expect(logTicks(0.09, 1.1, 6)).toEqual([0.1, 0.2, 0.5, 1]);
  expect(logTicks(0.0009, 110, 6)).toEqual([0.001, 0.01, 0.1, 1, 10, 100]);
  expect(logTicks(1e-10, 1e10, 5)).toEqual([1e-10, 1e-5, 1, 1e5, 1e10]);
  expect(logTicks(3, 4, 5)).toEqual([]);
  for (const [low, high] of [
    [Number.MIN_VALUE, Number.MAX_VALUE],
    [Number.MIN_VALUE, 110],
    [1, 1]
  ] as const) {
    expect(logTicks(low, high, 6).length).toBeLessThanOrEqual(7);
  }
});
