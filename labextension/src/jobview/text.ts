import Anser from 'anser';

/** A piece of a line in one look. A colour is a number (0..15) of the theme's palette or an `r,g,b` triple. */
export interface Span {
  text: string;
  fg: number | string | null;
  bg: number | string | null;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  strike: boolean;
}

/** Colour codes of a line that are looked at, and characters: a line may be a mebibyte of them. */
const CODES = 300;
const COLOURED = 20_000;

/**
 * What a terminal would act on: escape sequences (to their end, or to the line's where they have none), and control
 * characters but for the tab; also the two that begin a new line in a page. Of a link (OSC 8) the text stays.
 */
const ESCAPES = new RegExp(
  [
    '\\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^]*?(?:\\x07|\\x1b\\\\|$)|[ -/]*[0-~])',
    '[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f\\u2028\\u2029]'
  ].join('|'),
  'g'
);

const ESCAPE = '\x1b';

/** The codes that set a colour or a weight and nothing else. */
const COLOUR = new RegExp(`^${ESCAPE}\\[[0-9;]{0,64}m$`);

/** Text without what a terminal would act on. */
export function plain(text: string): string {
  return text.replace(ESCAPES, '');
}

/** The same for a text of many lines. */
export function plainLines(text: string): string {
  return text.split('\n').map(plain).join('\n');
}

/** Text without what a terminal would act on but for colours. */
export function clean(text: string): string {
  return text.replace(ESCAPES, code => (COLOUR.test(code) ? code : ''));
}

/** A line in its colours. Joined, the spans' texts are `plain(text)`. */
export function spans(text: string): Span[] {
  const coloured = clean(text);
  if (!coloured.includes(ESCAPE)) {
    return coloured === '' ? [] : [uncoloured(coloured)];
  }
  const end = colouredEnd(coloured);
  const pieces: Span[] = Anser.ansiToJson(coloured.slice(0, end), {
    use_classes: true,
    remove_empty: true
  }).map(({ content, fg, bg, fg_truecolor, bg_truecolor, decorations }) => ({
    text: content,
    fg: colour(fg, fg_truecolor),
    bg: colour(bg, bg_truecolor),
    bold: decorations.includes('bold'),
    dim: decorations.includes('dim'),
    italic: decorations.includes('italic'),
    underline: decorations.includes('underline'),
    strike: decorations.includes('strikethrough')
  }));
  const rest = plain(coloured.slice(end));
  return rest === '' ? pieces : [...pieces, uncoloured(rest)];
}

function uncoloured(text: string): Span {
  return {
    text,
    fg: null,
    bg: null,
    bold: false,
    dim: false,
    italic: false,
    underline: false,
    strike: false
  };
}

/** Where colours are looked at no more; never within a code. */
function colouredEnd(text: string): number {
  let at = text.indexOf(ESCAPE);
  for (let codes = 0; at >= 0; codes += 1) {
    if (codes === CODES || at > COLOURED) {
      return at;
    }
    at = text.indexOf(ESCAPE, at + 1);
  }
  return text.length;
}

const NAMES = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

/** Levels of the 6 x 6 x 6 cube in the palette of 256. */
const LEVELS = [0, 95, 135, 175, 215, 255];

/** A colour by the parser's name for it; null for whatever else. */
function colour(name: string | null, truecolour: string | null): number | string | null {
  const [, bright, word, number] = /^ansi-(?:(bright-)?([a-z]+)|palette-(\d{1,3}))$/.exec(name ?? '') ?? [];
  if (number !== undefined) {
    return paletteColour(Number(number));
  }
  if (word === 'truecolor') {
    const parts = /^(\d{1,3}), (\d{1,3}), (\d{1,3})$/.exec(truecolour ?? '')?.slice(1) ?? [];
    return parts.length === 3 && parts.every(part => Number(part) < 256) ? parts.join(',') : null;
  }
  const index = NAMES.indexOf(word ?? '');
  return index < 0 ? null : index + (bright === undefined ? 0 : 8);
}

function paletteColour(number: number): string | null {
  if (number < 16 || number > 255) {
    return null;
  }
  if (number >= 232) {
    const grey = 8 + 10 * (number - 232);
    return [grey, grey, grey].join(',');
  }
  const cube = number - 16;
  return [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6]
    .map(level => LEVELS[level] ?? 0)
    .join(',');
}
