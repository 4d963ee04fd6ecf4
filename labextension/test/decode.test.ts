import { describe, expect, test } from 'vitest';

import { copyBuffer } from '../src/jobview/carrier';
import { decodeLines, decodeSeries, readMessage } from '../src/jobview/decode';
import { headPart, lineBuffers, logPart, pack, seriesPart } from './feed';
import { Random } from './random';

describe('lines', () => {
  test('are decoded with all that belongs to them', () => {
    const lines = [
      { text: '\ufeffzwölf ✓', rank: 3, time: 1.5, flags: 1 },
      { text: '', rank: -1, time: 2.5, flags: 6 }
    ];
    expect(decodeLines(lineBuffers(lines), 2, 40)).toEqual([
      { index: 40, ...lines[0] },
      { index: 41, ...lines[1] }
    ]);
    expect(decodeLines(lineBuffers(lines), 2, [7, 3])?.map(line => line.index)).toEqual([7, 3]);
    expect(decodeLines(lineBuffers([]), 0, 0)).toEqual([]);
  });

  test('that do not fit their count are none', () => {
    const buffers = lineBuffers([{ text: 'a\nb', rank: 0 }]);
    expect(decodeLines(buffers, 1, 0)).toBeUndefined();
    expect(decodeLines(buffers, 2, 0)).toBeUndefined();
    expect(decodeLines(buffers.slice(0, 3), 1, 0)).toBeUndefined();
    expect(decodeLines([], 0, 0)).toBeUndefined();
  });
});

describe('series', () => {
  test('share three buffers', () => {
    const { message, buffers } = seriesPart([
      {
        sid: 'a',
        tag: 'loss',
        mode: 'set',
        total: 2,
        points: [
          [0, 10, 1],
          [1, 11, NaN]
        ]
      },
      { sid: 'b', tag: 'acc', mode: 'add', total: 9, points: [[8, 18, Infinity]] }
    ]);
    const parts = decodeSeries(message.series, buffers);
    expect(parts?.map(part => [part.sid, part.mode, part.total, [...part.steps], [...part.values]])).toEqual([
      ['a', 'set', 2, [0, 1], [1, NaN]],
      ['b', 'add', 9, [8], [Infinity]]
    ]);
    expect(decodeSeries(message.series, [...buffers.slice(1), new ArrayBuffer(5)])).toBeUndefined();
    expect(decodeSeries([{ sid: 'a', tag: 'x', mode: 'other', count: 0 }], buffers)).toBeUndefined();
    expect(decodeSeries('x', buffers)).toBeUndefined();
  });
});

describe('messages', () => {
  const whole = pack([headPart(), logPart([{ text: 'x', rank: 0 }], 4, 5), seriesPart([])], {
    type: 'snapshot',
    to: null,
    n: 3,
    ranks: [{ rank: 1, node: 0, state: 'running' }, { rank: 'x' }, null],
    going: [{ rank: 0, text: '5%' }, 7]
  });

  test('a snapshot has a head; what it lacks has a default, what makes no sense is left out', () => {
    const event = readMessage(whole.message, whole.buffers);
    expect(event).toMatchObject({
      type: 'snapshot',
      n: 3,
      preview: false,
      changes: {
        head: { id: 'job-1', phase: 'Running', progress: null, restarts: [] },
        ranks: [{ rank: 1, state: 'running', pid: null, done: null }],
        going: [{ rank: 0, text: '5%' }],
        log: { total: 5, first: 4, lines: [{ index: 4, text: 'x' }] }
      }
    });
    expect(readMessage({ ...whole.message, head: undefined }, whole.buffers)).toBeUndefined();
    expect(readMessage({ ...whole.message, n: -1 }, whole.buffers)).toBeUndefined();
    expect(
      readMessage({ ...whole.message, log: { total: 1, first: 1, count: 1 } }, whole.buffers)
    ).toBeUndefined();
    expect(
      readMessage({ ...whole.message, head: { id: 'x', phase: 'Odd', now: 1 } }, whole.buffers)
    ).toBeUndefined();
  });

  test('an error is three sentences, whatever it was', () => {
    const reply = { type: 'reply', to: 'me', id: '1', ok: false, error: 7 };
    expect(readMessage(reply, [])).toMatchObject({
      error: { what: 'The job could not be asked.', why: '', fix: '' }
    });
    expect(readMessage({ type: 'gone', what: 'Gone.' }, [])).toMatchObject({ error: { what: 'Gone.' } });
  });

  test('one that is damaged anywhere is read or left, and never throws', () => {
    const random = new Random(5);
    const junk = [null, 0, -1, 1e300, 'x', [], {}, true, [[]], { length: 3 }];
    const damage = (value: unknown): unknown => {
      if (random.next() < 0.1) {
        return random.pick(junk);
      }
      if (Array.isArray(value)) {
        return value.map(damage);
      }
      if (typeof value === 'object' && value !== null) {
        return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, damage(item)]));
      }
      return value;
    };
    for (let i = 0; i < 3_000; i += 1) {
      const buffers = whole.buffers.map(buffer =>
        random.next() < 0.1 ? buffer.slice(random.below(4)) : buffer
      );
      readMessage(damage(whole.message), buffers);
    }
    expect(readMessage(whole.message, whole.buffers)).toBeDefined();
  });
});

test('a buffer is taken out of a larger one, wherever it lies', () => {
  const large = new Uint8Array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  expect([...new Uint8Array(copyBuffer(new DataView(large.buffer, 3, 8)))]).toEqual([
    3, 4, 5, 6, 7, 8, 9, 10
  ]);
  expect(copyBuffer(large.buffer)).toBe(large.buffer);
});
