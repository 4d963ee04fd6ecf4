import { describe, expect, it } from 'vitest';

import {
  ago,
  bytes,
  clock,
  counted,
  duration,
  pace,
  percent,
  sentence,
  timeOfDay
} from '../../src/jobview/view/format';

describe('durations', () => {
  it.each([
    [0, '0s'],
    [0.4, '0s'],
    [8, '8s'],
    [60, '1m'],
    [123, '2m 3s'],
    [3_600, '1h'],
    [3_840, '1h 4m'],
    [3_605, '1h'],
    [266_400, '3d 2h'],
    [-5, '0s']
  ])('%d seconds are %s', (seconds, words) => {
    expect(duration(seconds)).toBe(words);
  });

  it.each([
    [0, '0:00'],
    [42.9, '0:42'],
    [725, '12:05'],
    [3_753, '1:02:33'],
    [183_845, '2d 03:04:05'],
    [-1, '0:00']
  ])('a clock shows %d seconds as %s', (seconds, words) => {
    expect(clock(seconds)).toBe(words);
  });

  it.each([
    [0.00123, '1.2 ms'],
    [0.012, '12 ms'],
    [0.12, '0.12 s'],
    [3.44, '3.4 s'],
    [123, '2m 3s']
  ])('a step of %d seconds takes %s', (seconds, words) => {
    expect(pace(seconds)).toBe(words);
  });

  it('says how long ago something was', () => {
    expect(ago(1)).toBe('just now');
    expect(ago(34)).toBe('34s ago');
  });
});

describe('numbers', () => {
  it('are counted', () => {
    expect(counted(1, 'line')).toBe('1 line');
    expect(counted(12_480, 'line')).toBe('12,480 lines');
    expect(counted(0, 'match', 'matches')).toBe('0 matches');
  });

  it('are sizes', () => {
    expect(bytes(999)).toBe('999 bytes');
    expect(bytes(1_234_567)).toBe('1.2 MB');
    expect(bytes(250_000)).toBe('250 KB');
  });

  it('are shares within their bounds', () => {
    expect(percent(0.314)).toBe('31%');
    expect(percent(1.7)).toBe('100%');
    expect(percent(-1)).toBe('0%');
  });

  it('are times of the day, or nothing where there is no such time', () => {
    expect(timeOfDay(1_700_000_000.25, true)).toMatch(/^\d\d:\d\d:\d\d\.250$/);
    expect(timeOfDay(NaN)).toBe('');
    expect(timeOfDay(1e300)).toBe('');
  });
});

it('ends a sentence once', () => {
  expect(sentence(' It ended ')).toBe('It ended.');
  expect(sentence('Did it?')).toBe('Did it?');
  expect(sentence('')).toBe('');
});
