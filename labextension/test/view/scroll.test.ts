import { describe, expect, it } from 'vitest';

import { HIGHEST, ROW, height, lastTop, position, reveal, scrolled } from '../../src/jobview/view/log/scroll';
import { Random } from '../random';

const small = { count: 1_000, view: 260 };
const large = { count: 10_000_000, view: 260 };

describe('a list that fits', () => {
  it('is as high as its rows', () => {
    expect(height(small)).toBe(1_000 * ROW);
    expect(lastTop(small)).toBe(987);
  });

  it('moves as it is scrolled', () => {
    expect(scrolled(0, small, 0, 200)).toBe(10);
    expect(scrolled(10, small, 200, 210)).toBe(10.5);
    expect(position(10.5, small)).toBe(210);
  });

  it('with fewer rows than can be seen does not move', () => {
    const few = { count: 5, view: 260 };
    expect(lastTop(few)).toBe(0);
    expect(position(0, few)).toBe(0);
    expect(scrolled(0, few, 0, 0)).toBe(0);
  });
});

describe('a list that is higher than a browser allows', () => {
  it('has the highest height, and its ends are reached', () => {
    expect(height(large)).toBe(HIGHEST);
    expect(scrolled(500, large, 400, 0)).toBe(0);
    expect(scrolled(500, large, 400, HIGHEST - 260)).toBe(lastTop(large));
    expect(position(lastTop(large), large)).toBe(HIGHEST - 260);
  });

  it('moves by rows with the wheel and in proportion with the thumb', () => {
    const at = position(5_000_000, large);
    expect(scrolled(5_000_000, large, at, at + 100)).toBe(5_000_005);
    expect(scrolled(5_000_000, large, at, at - 100)).toBe(4_999_995);
    expect(scrolled(0, large, 0, HIGHEST / 2)).toBeCloseTo(5_000_000, -3);
  });

  it('stands where it was put, whatever the row', () => {
    const numbers = new Random(3);
    for (let i = 0; i < 200; i++) {
      const top = numbers.next() * lastTop(large);
      const back = scrolled(0, large, 0, position(top, large));
      expect(Math.abs(back - top)).toBeLessThan(30);
    }
  });
});

describe('a row that is to be seen', () => {
  it('moves the list as little as possible', () => {
    expect(reveal(105, 100, small)).toBe(100);
    expect(reveal(99, 100, small)).toBe(99);
    expect(reveal(113, 100, small)).toBe(101);
  });

  it('is in the middle where it was far away', () => {
    expect(reveal(500, 100, small)).toBe(493.5);
    expect(reveal(999, 100, small)).toBe(lastTop(small));
    expect(reveal(0, 900, small)).toBe(0);
  });
});
