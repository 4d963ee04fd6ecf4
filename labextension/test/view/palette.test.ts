import { describe, expect, it } from 'vitest';

import {
  COLOURS,
  type Rgb,
  type Scheme,
  contrast,
  lineLook,
  parseColour,
  readable
} from '../../src/jobview/view/palette';

const rgb = (text: string): Rgb => parseColour(text) ?? { r: NaN, g: NaN, b: NaN };

/** What the views stand on in JupyterLab, VS Code and a plain page, and the washes of these. */
const BACKGROUNDS: Record<Scheme, string[]> = {
  light: ['#ffffff', '#f7f7f7'],
  dark: ['#111111', '#1e1e1e', '#212121', '#2b2b2b']
};

describe.each(['light', 'dark'] as const)('on %s backgrounds', scheme => {
  it.each(BACKGROUNDS[scheme])('everything can be read on %s', background => {
    const { ink, muted, warn, lines, terminal } = COLOURS[scheme];
    for (const colour of [ink, muted, warn, ...lines, ...terminal]) {
      expect(contrast(rgb(colour), rgb(background)), colour).toBeGreaterThanOrEqual(4.5);
    }
  });

  it('no two of forty lines look the same', () => {
    const looks = Array.from({ length: 40 }, (_, i) => JSON.stringify(lineLook(i, scheme)));
    expect(new Set(looks).size).toBe(40);
  });
});

it('makes any colour readable', () => {
  const black = rgb('#000000');
  const white = rgb('#ffffff');
  const yellow = rgb('255,255,0');
  expect(contrast(readable(yellow, white, black), white)).toBeGreaterThanOrEqual(4.5);
  expect(readable(yellow, black, white)).toMatchObject({ r: 255, g: 255, b: 0 });
});

it('reads colours in the forms that there are, and nothing else', () => {
  expect(parseColour('#0b62b0')).toEqual({ r: 11, g: 98, b: 176, a: 1 });
  expect(parseColour('1,2,3')).toEqual({ r: 1, g: 2, b: 3, a: 1 });
  expect(parseColour('rgb(1, 2, 3)')).toEqual({ r: 1, g: 2, b: 3, a: 1 });
  expect(parseColour('rgba(1, 2, 3, 0.5)')).toEqual({ r: 1, g: 2, b: 3, a: 0.5 });
  expect(parseColour('rgb(1 2 3 / 50%)')).toEqual({ r: 1, g: 2, b: 3, a: 0.5 });
  expect(parseColour('url(x)')).toBeNull();
  expect(parseColour('')).toBeNull();
});
