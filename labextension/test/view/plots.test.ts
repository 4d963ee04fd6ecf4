import { describe, expect, it } from 'vitest';

import { Curve } from '../../src/jobview/curves';
import { type Source, draw, oddWords } from '../../src/jobview/view/plots/data';
import { groupTags, nearest, places, tagFilter } from '../../src/jobview/view/plots/tags';

let made = 0;

function curve(tag: string, rank: number | null, values: number[], run = '.'): Curve {
  const sid = String((made += 1));
  const result = new Curve({ sid, run, rank, tag });
  const steps = Float64Array.from(values, (_, i) => 10 * i);
  const walls = Float64Array.from(values, (_, i) => 1_000 + i);
  const count = values.length;
  result.take({
    ...{ sid, run, rank, tag, mode: 'set', count, total: count, thinned: false },
    ...{ steps, walls, values: Float64Array.from(values) }
  });
  return result;
}

describe('tags', () => {
  it('are in the order of their names and numbers, those in no group first', () => {
    const tags = ['layer10/norm', 'layer2/norm', 'loss', 'acc'];
    expect([...groupTags(tags.map(tag => curve(tag, 0, [1]))).keys()]).toEqual([
      'acc',
      'loss',
      'layer2/norm',
      'layer10/norm'
    ]);
  });

  it('name their lines by what tells them apart', () => {
    const groups = groupTags([
      curve('loss', 1, [1], 'a'),
      curve('loss', 0, [1], 'a'),
      curve('loss', 0, [1], 'b'),
      curve('lr', 0, [1], 'a'),
      curve('epoch', null, [1], 'a')
    ]);
    const names = (tag: string): string[] | undefined => groups.get(tag)?.map(line => line.name);
    expect(names('loss')).toEqual(['a · rank 0', 'b · rank 0', 'a · rank 1']);
    expect(names('lr')).toEqual(['rank 0']);
    expect(names('epoch')).toEqual(['value']);
  });

  it('give a rank the same colour in every plot', () => {
    const groups = groupTags([curve('a', 3, [1]), curve('b', 0, [1]), curve('b', 3, [1])]);
    expect(groups.get('a')?.map(line => line.look)).toEqual([3]);
    expect(groups.get('b')?.map(line => line.look)).toEqual([0, 3]);
  });

  it('are found by letters and by regular expressions', () => {
    expect(tagFilter('LOSS')('val/loss')).toBe(true);
    expect(tagFilter('^loss$')('val/loss')).toBe(false);
    expect(tagFilter('loss(')('my loss(x)')).toBe(true);
    expect(tagFilter('  ')('anything')).toBe(true);
  });

  it('with the names of an object are tags as others are', () => {
    const tags = ['__proto__', 'constructor'];
    expect([...groupTags(tags.map(tag => curve(tag, 0, [1]))).keys()]).toEqual(tags);
  });
});

it('finds the point that is nearest', () => {
  const xs = [0, 10, 20, 30];
  expect([-5, 4, 6, 24, 26, 99].map(x => nearest(xs, x))).toEqual([0, 0, 1, 2, 3, 3]);
  expect(nearest([], 1)).toBe(-1);
  expect(nearest([7], 1)).toBe(0);
});

it('places points by step, by time since the start and by the time of day', () => {
  const line = curve('loss', 0, [1, 2]);
  expect([...places(line, 'step', 1_000)]).toEqual([0, 10]);
  expect([...places(line, 'relative', 1_000)]).toEqual([0, 1]);
  expect([...places(line, 'wall', 1_000)]).toEqual([1_000, 1_001]);
});

describe('a drawing', () => {
  const source = (curves: Curve[], changes: Partial<Source> = {}): Source => ({
    lines: curves.map((each, look) => ({ curve: each, name: `rank ${look}`, look })),
    hidden: new Set(),
    look: { smoothing: 0, axis: 'step', log: false },
    origin: 0,
    pixels: 300,
    zoom: null,
    details: new Map(),
    ...changes
  });

  it('has the lines over one axis, and says what is not finite', () => {
    const curves = [curve('loss', 0, [3, 2, 1]), curve('loss', 1, [3, NaN, Infinity])];
    const drawing = draw(source(curves));
    expect([...drawing.xs]).toEqual([0, 10, 20]);
    expect(drawing.ys).toEqual([
      [3, 2, 1],
      [3, null, null]
    ]);
    expect(drawing.odd.map(odd => odd.value)).toEqual([NaN, Infinity]);
    expect(oddWords(drawing.odd, source(curves).lines)).toBe(
      '2 points are not finite: NaN from step 10 (rank 1)'
    );
  });

  it('leaves out what a logarithmic axis has no place for, and counts it', () => {
    const drawing = draw(
      source([curve('loss', 0, [1, 0, -1, 4])], { look: { smoothing: 0, axis: 'step', log: true } })
    );
    expect(drawing.ys).toEqual([[1, null, null, 4]]);
    expect(drawing.unplaced).toBe(2);
    expect(drawing.odd).toEqual([]);
  });

  it('has the smoothed lines besides', () => {
    const drawing = draw(
      source([curve('loss', 0, [0, 4, 0, 4])], { look: { smoothing: 0.5, axis: 'step', log: false } })
    );
    expect(drawing.ys).toHaveLength(2);
    expect(drawing.ys[0]).toEqual([0, 4, 0, 4]);
    expect(drawing.ys[1]?.[3]).toBeGreaterThan(1);
    expect(drawing.ys[1]?.[3]).toBeLessThan(4);
  });

  it('has nothing of a line that is hidden', () => {
    const curves = [curve('loss', 0, [1, 2]), curve('loss', 1, [NaN, 2])];
    const drawing = draw(source(curves, { hidden: new Set([curves[1]?.sid ?? '']) }));
    expect(drawing.ys[1]).toEqual([undefined, undefined]);
    expect(drawing.odd).toEqual([]);
  });

  it('shows the range that is looked at by the whole truth of it', () => {
    const line = curve('loss', 0, [1, 2, 3, 4, 5, 6]);
    const zoom = { from: 18, to: 32 };
    expect([...draw(source([line], { zoom })).xs]).toEqual([10, 20, 30, 40]);
    const steps = Float64Array.from([20, 25, 30]);
    const details = new Map([[line.sid, { steps, walls: steps, values: Float64Array.from([3, 9, 4]) }]]);
    expect(draw(source([line], { zoom, details })).ys).toEqual([[3, 9, 4]]);
  });

  it('of very many points keeps the peaks and stays small', () => {
    const values = Array.from({ length: 4_000 }, (_, i) => (i === 1_234 ? 99 : Math.sin(i)));
    const curves = Array.from({ length: 64 }, (_, rank) => curve('loss', rank, values));
    const drawing = draw(source(curves));
    expect(drawing.xs.length).toBeLessThan(2_000);
    expect(drawing.ys.every(ys => ys.includes(99))).toBe(true);
  });
});
