import { describe, expect, test } from 'vitest';

import { clean, plain, plainLines, spans } from '../src/jobview/text';
import { Random } from './random';

const ESC = '\x1b';

describe('what a terminal would act on', () => {
  test.each([
    ['moves of the cursor', `a${ESC}[2Kb${ESC}[1;1Hc`, 'abc'],
    ['a title', `a${ESC}]0;evil\x07b`, 'ab'],
    ['a title without an end', `a${ESC}]0;evil`, 'a'],
    ['a link keeps its text', `${ESC}]8;;https://evil.example${ESC}\\docs${ESC}]8;;${ESC}\\`, 'docs'],
    ['a device string', `a${ESC}Pq#0;2;0;0;0${ESC}\\b`, 'ab'],
    ['control characters', 'a\x00\x07\x08b\x7f\x85\x9bc\td', 'abc\td'],
    ['an escape alone', `a${ESC}`, 'a'],
    ['a reset of the terminal', `a${ESC}cb`, 'ab'],
    ['what begins a new line in a page', 'a\u2028b\u2029c\rd', 'abcd'],
    ['a character set', `a${ESC}(Bb`, 'ab']
  ])('%s', (_, text, expected) => {
    expect(plain(text)).toBe(expected);
    expect(clean(text)).toBe(expected);
    expect(
      spans(text)
        .map(span => span.text)
        .join('')
    ).toBe(expected);
  });

  test('colours stay in clean, go in plain', () => {
    const text = `${ESC}[1;31mred${ESC}[0m ${ESC}[?25lx${ESC}[38:5:1my`;
    expect(clean(text)).toBe(`${ESC}[1;31mred${ESC}[0m xy`);
    expect(plain(text)).toBe('red xy');
  });

  test('lines stay lines', () => {
    expect(plainLines(`a${ESC}]0;b\nc`)).toBe('a\nc');
  });
});

describe('spans', () => {
  const look = (text: string): unknown[] => spans(text).map(({ text, fg, bg }) => [text, fg, bg]);

  test('the colours of the palette are numbers, others triples', () => {
    expect(look(`a${ESC}[31mb${ESC}[97;44mc${ESC}[0md`)).toEqual([
      ['a', null, null],
      ['b', 1, null],
      ['c', 15, 4],
      ['d', null, null]
    ]);
    expect(look(`${ESC}[38;5;208ma${ESC}[38;5;250mb${ESC}[38;5;9mc${ESC}[48;2;1;20;255md`)).toEqual([
      ['a', '255,135,0', null],
      ['b', '188,188,188', null],
      ['c', 9, null],
      ['d', 9, '1,20,255']
    ]);
  });

  test('weights', () => {
    expect(spans(`${ESC}[1;2;3;4;9mx`)[0]).toEqual({
      text: 'x',
      fg: null,
      bg: null,
      bold: true,
      dim: true,
      italic: true,
      underline: true,
      strike: true
    });
  });

  test('markup is text', () => {
    expect(spans('<img src=x onerror=alert(1)>&amp;')).toMatchObject([
      { text: '<img src=x onerror=alert(1)>&amp;' }
    ]);
  });

  test('a line of very many codes, or a very long one, is bounded in its pieces', () => {
    const many = spans(`${ESC}[1mx`.repeat(50_000));
    expect(many.length).toBeLessThan(400);
    expect(many.map(span => span.text).join('')).toBe('x'.repeat(50_000));
    const long = spans(`${'y'.repeat(1_000_000)}${ESC}[31mz`);
    expect(long.map(span => span.text).join('')).toBe(`${'y'.repeat(1_000_000)}z`);
  });

  test('of whatever text: the joined pieces are the plain text, and colours are only what is allowed', () => {
    const alphabet = [
      ESC,
      '[',
      ']',
      '3',
      '8',
      ';',
      '5',
      '2',
      '1',
      '4',
      '0',
      'm',
      'x',
      '<',
      '\x07',
      '\\',
      '\u202e',
      'é'
    ];
    for (let seed = 0; seed < 3_000; seed += 1) {
      const text = new Random(seed).text(alphabet, 60);
      const pieces = spans(text);
      expect(pieces.map(span => span.text).join('')).toBe(plain(text));
      for (const colour of pieces.flatMap(({ fg, bg }) => [fg, bg])) {
        const allowed =
          colour === null ||
          (typeof colour === 'number' && colour >= 0 && colour < 16) ||
          (typeof colour === 'string' && /^\d{1,3},\d{1,3},\d{1,3}$/.test(colour));
        expect(allowed, String(colour)).toBe(true);
      }
    }
  });
});
