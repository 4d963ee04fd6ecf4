import { describe, expect, it } from 'vitest';

import type { Head, RankInfo } from '../../src/jobview/protocol';
import { neighbour } from '../../src/jobview/view/log/pane';
import { pieces } from '../../src/jobview/view/log/row';
import { progressWords } from '../../src/jobview/view/progress';
import { summary, target } from '../../src/jobview/view/ranks';
import { groupStacks, rankRanges } from '../../src/jobview/view/stacks';

describe('a search', () => {
  it('marks every find in any case', () => {
    expect(pieces('Loss and loss', 'loss')).toEqual(['', 'Loss', ' and ', 'loss', '']);
    expect(pieces('nothing', 'loss')).toEqual(['nothing']);
  });

  it('marks nothing where places would be wrong', () => {
    expect(pieces('İstanbul loss', 'loss')).toEqual(['İstanbul loss']);
  });

  it('steps to the nearest match, and from the end to the beginning', () => {
    const matches = [3, 8, 20];
    expect(neighbour(matches, 8, 1)).toBe(20);
    expect(neighbour(matches, 9, -1)).toBe(8);
    expect(neighbour(matches, 8, -1)).toBe(3);
    expect(neighbour(matches, 20, 1)).toBe(3);
    expect(neighbour(matches, 3, -1)).toBe(20);
    expect(neighbour(matches, -1, 1)).toBe(3);
  });
});

describe('ranks', () => {
  const rank = (number: number, state: string, code: number | null = null): RankInfo => ({
    ...{ rank: number, node: 0, state, pid: null, code, line: null, done: null }
  });

  it('are summed up', () => {
    expect(summary([])).toBe('None has started yet.');
    expect(summary([rank(0, 'running')])).toBe('1 rank, running');
    expect(summary([rank(0, 'running'), rank(1, 'running')])).toBe('2 ranks, all running');
    expect(summary([rank(0, 'running'), rank(1, 'exited', -9), rank(2, 'running')])).toBe(
      '3 ranks: 2 running; 1 ended by signal 9'
    );
  });

  it('are walked through by keys', () => {
    expect(target('ArrowRight', 3, 10, 4)).toBe(4);
    expect(target('ArrowDown', 3, 10, 4)).toBe(7);
    expect(target('ArrowDown', 7, 10, 4)).toBe(7);
    expect(target('ArrowUp', 2, 10, 4)).toBe(2);
    expect(target('End', 2, 10, 4)).toBe(9);
    expect(target('x', 2, 10, 4)).toBe(2);
  });

  it('are named in ranges', () => {
    expect(rankRanges([3])).toBe('Rank 3');
    expect(rankRanges([0, 1, 2, 5, 7, 8])).toBe('Ranks 0-2, 5, 7-8');
  });

  it('that are at the same place are one stack, those alone first', () => {
    const stacks = new Map([
      [0, 'wait'],
      [2, 'load\u001b[31m'],
      [1, 'wait\n']
    ]);
    expect(groupStacks(stacks)).toEqual([
      { name: 'Rank 2', text: 'load' },
      { name: 'Ranks 0-1', text: 'wait' }
    ]);
  });
});

describe('progress', () => {
  const head = (changes: Partial<Head>): Head =>
    ({ phase: 'Running', now: 100, nodes: 1, procs: 4, pace: null, progress: null, ...changes }) as Head;

  it('is said in words', () => {
    const progress = { done: 640, total: 1_000, unit: 'step', eta: 130, silent: null };
    const pace = { step: 0.12, wait: 0.31, rank: 2 };
    expect(progressWords(head({ progress, pace }), 107)).toEqual([
      '640 of 1,000 steps',
      '2m 3s left',
      '0.12 s a step',
      '31% waiting for data',
      'slowest: rank 2'
    ]);
  });

  it('that is missing is said, and grows', () => {
    const progress = { done: 3, total: null, unit: 'batches', eta: null, silent: 90 };
    expect(progressWords(head({ progress }), 110)).toEqual(['3 batches', 'no progress for 1m 40s']);
    const pace = { step: 0.12, wait: null, rank: null };
    const paces = ['batches', 'epochs', 'units', 'pass'].map(unit =>
      progressWords(head({ progress: { ...progress, silent: null, unit }, pace }), 110).at(-1)
    );
    expect(paces).toEqual(['0.12 s a batch', '0.12 s an epoch', '0.12 s a unit', '0.12 s a pass']);
  });

  it('of a job that is over has nothing left', () => {
    const progress = { done: 3, total: 9, unit: 'epoch', eta: 5, silent: null };
    expect(progressWords(head({ phase: 'Failed', progress }), 200)).toEqual(['3 of 9 epochs']);
  });
});
