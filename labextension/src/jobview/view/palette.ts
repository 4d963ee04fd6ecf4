/**
 * The colours that scripts need: lines of plots, labels of ranks, terminal colours. Every line colour has a contrast
 * of at least 4.5 to 1 to its theme's backgrounds, since it also colours text.
 */

export type Scheme = 'light' | 'dark';

export interface Rgb {
  r: number;
  g: number;
  b: number;
}

interface Colours {
  ink: string;
  muted: string;
  grid: string;
  warn: string;
  /** Told apart also by those who see colours differently: neighbours differ in lightness or in blue. */
  lines: readonly string[];
  /** The sixteen of a terminal. */
  terminal: readonly string[];
}

export const COLOURS: Readonly<Record<Scheme, Colours>> = {
  light: {
    ink: '#1b2027',
    muted: '#57606a',
    grid: 'rgba(27, 32, 39, 0.09)',
    warn: '#855300',
    lines: [
      '#0b62b0',
      '#b3450a',
      '#00704e',
      '#9c2f86',
      '#7d5600',
      '#006d7c',
      '#6147c7',
      '#b0234a',
      '#4f6b00',
      '#505862'
    ],
    terminal: [
      '#1b2027',
      '#b3261e',
      '#17703a',
      '#7d5600',
      '#0b62b0',
      '#9c2f86',
      '#006d7c',
      '#57606a',
      '#57606a',
      '#c01f2f',
      '#00704e',
      '#855300',
      '#1a5fd0',
      '#a02c9a',
      '#00697a',
      '#3d444d'
    ]
  },
  dark: {
    ink: '#e7e9ec',
    muted: '#a3abb5',
    grid: 'rgba(231, 233, 236, 0.1)',
    warn: '#f0b95a',
    lines: [
      '#6fb3ff',
      '#ff9d5c',
      '#3ecf9f',
      '#f08fd0',
      '#e0c04c',
      '#4dd0e1',
      '#b9a3ff',
      '#ff8896',
      '#a9cf5a',
      '#b6bec9'
    ],
    terminal: [
      '#a3abb5',
      '#ff8a8a',
      '#4cc38a',
      '#e0c04c',
      '#6fb3ff',
      '#f08fd0',
      '#4dd0e1',
      '#d5d9de',
      '#a3abb5',
      '#ff9c9c',
      '#6fdba5',
      '#f0d671',
      '#93c6ff',
      '#f7aee0',
      '#7fe3ef',
      '#f4f5f7'
    ]
  }
};

/** Dashes for lines beyond the number of colours. */
const DASHES: readonly number[][] = [[], [6, 4], [2, 3], [10, 4, 2, 4]];

/** The look of the line with this number: colours first, then dashes. */
export function lineLook(number: number, scheme: Scheme): { colour: string; dash: number[] } {
  const { lines } = COLOURS[scheme];
  const round = Math.floor(number / lines.length) % DASHES.length;
  return { colour: lines[number % lines.length] ?? '', dash: DASHES[round] ?? [] };
}

/** The colour of a rank; a node's own lines (-1-node) have none. */
export function rankColour(rank: number, scheme: Scheme): string {
  return rank < 0 ? COLOURS[scheme].muted : lineLook(rank, scheme).colour;
}

/** `#rrggbb`, `r,g,b`, `rgb(...)` or `rgba(...)`; null for anything else. `alpha` is left out. */
export function parseColour(text: string): (Rgb & { a: number }) | null {
  const hex = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(text);
  if (hex) {
    const [r, g, b] = hex.slice(1).map(part => parseInt(part, 16));
    return { r: r ?? 0, g: g ?? 0, b: b ?? 0, a: 1 };
  }
  const numbers = /^(?:rgba?\()?\s*([\d.]+)[ ,]+([\d.]+)[ ,]+([\d.]+)(?:[ ,/]+([\d.]+)(%?))?\s*\)?$/.exec(
    text
  );
  if (!numbers) {
    return null;
  }
  const [r, g, b] = numbers.slice(1, 4).map(Number);
  const alpha = numbers[4] === undefined ? 1 : Number(numbers[4]) / (numbers[5] === '%' ? 100 : 1);
  return { r: r ?? 0, g: g ?? 0, b: b ?? 0, a: alpha };
}

/** Relative luminance, 0..1, as WCAG defines it. */
export function luminance({ r, g, b }: Rgb): number {
  const linear = (part: number): number => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}

export function contrast(one: Rgb, other: Rgb): number {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return ((high ?? 0) + 0.05) / ((low ?? 0) + 0.05);
}

/** `colour`, moved towards `ink` as far as is needed to be read on `background`. */
export function readable(colour: Rgb, background: Rgb, ink: Rgb): Rgb {
  for (let share = 0; share < 1; share += 0.1) {
    const mixed = {
      r: Math.round(colour.r + (ink.r - colour.r) * share),
      g: Math.round(colour.g + (ink.g - colour.g) * share),
      b: Math.round(colour.b + (ink.b - colour.b) * share)
    };
    if (contrast(mixed, background) >= 4.5) {
      return mixed;
    }
  }
  return ink;
}

export function css({ r, g, b }: Rgb): string {
  return `rgb(${r}, ${g}, ${b})`;
}
