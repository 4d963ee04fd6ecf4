import { expect, test } from 'vitest';

import type { Changes } from '../src/jobview/protocol';
import { Sequence } from '../src/jobview/sequence';
import { Random } from './random';

const change = (n: number): Changes => ({ going: [{ rank: n, text: '' }] });
const numbers = (changes: Changes[]): number[] => changes.map(({ going }) => going?.[0]?.rank ?? -1);

test('nothing is applied before a snapshot', () => {
  const sequence = new Sequence();
  expect(sequence.waiting).toBe(true);
  expect(sequence.add(1, change(1)).apply).toEqual([]);
  sequence.start(7);
  expect(numbers(sequence.add(8, change(8)).apply)).toEqual([8]);
  expect(sequence.newest).toBe(8);
});

test('a missing batch is asked for once, then all that waited is applied in order', () => {
  const sequence = new Sequence();
  sequence.start(0);
  expect(sequence.add(3, change(3))).toEqual({ apply: [], resend: { from: 1, to: 2 }, lost: false });
  expect(sequence.add(4, change(4)).resend).toBeNull();
  expect(sequence.add(6, change(6)).resend).toEqual({ from: 5, to: 5 });
  expect(sequence.gap).toBe(true);
  expect(sequence.add(2, change(2)).apply).toEqual([]);
  expect(numbers(sequence.add(1, change(1)).apply)).toEqual([1, 2, 3, 4]);
  expect(numbers(sequence.add(5, change(5)).apply)).toEqual([5, 6]);
  expect(sequence.gap).toBe(false);
});

test('a batch that came before is not applied again', () => {
  const sequence = new Sequence();
  sequence.start(0);
  sequence.add(1, change(1));
  expect(sequence.add(1, change(1)).apply).toEqual([]);
  expect(sequence.gap).toBe(false);
  sequence.add(3, change(3));
  expect(sequence.add(3, change(3))).toEqual({ apply: [], resend: null, lost: false });
});

test('too many batches ahead of a missing one: all is lost', () => {
  const sequence = new Sequence();
  sequence.start(0);
  const steps = Array.from({ length: 65 }, (_, i) => sequence.add(i + 2, change(i + 2)));
  expect(steps.filter(step => step.lost)).toHaveLength(1);
  expect(steps[64]?.lost).toBe(true);
});

test('in whatever order batches come, each is applied once and in order', () => {
  for (let seed = 0; seed < 200; seed += 1) {
    const random = new Random(seed);
    const sequence = new Sequence();
    sequence.start(0);
    const order = Array.from({ length: 60 }, (_, i) => i + 1)
      .map(n => ({ n, at: n + random.below(20) }))
      .sort((a, b) => a.at - b.at)
      .flatMap(({ n }) => (random.next() < 0.3 ? [n, n] : [n]));
    const applied = order.flatMap(n => numbers(sequence.add(n, change(n)).apply));
    expect(applied).toEqual(Array.from({ length: 60 }, (_, i) => i + 1));
  }
});
