import type { Span } from '../../text';
import { COLOURS, type Rgb, css, parseColour, readable } from '../palette';
import type { Theme } from '../theme';

const looks = new Map<string, Record<string, string>>();

/** The styles of a piece of a line; whatever a job asks for, it can be read. */
export function spanStyle(span: Span, theme: Theme): Record<string, string> | undefined {
  if (span.fg === null && span.bg === null && !span.dim && !span.bold && !span.italic && !hasLine(span)) {
    return undefined;
  }
  const { fg, bg, bold, dim, italic, underline, strike } = span;
  const key = [theme.scheme, theme.background, fg, bg, bold, dim, italic, underline, strike].join('|');
  let look = looks.get(key);
  if (!look) {
    if (looks.size > 500) {
      looks.clear();
    }
    look = make(span, theme);
    looks.set(key, look);
  }
  return look;
}

function make(span: Span, theme: Theme): Record<string, string> {
  const style: Record<string, string> = {};
  const { ink, muted } = COLOURS[theme.scheme];
  const background = colour(span.bg, theme);
  const behind = background ?? parseColour(theme.background);
  const front =
    colour(span.fg, theme) ?? (span.dim ? parseColour(muted) : background ? parseColour(ink) : null);
  if (background) {
    style['background-color'] = css(background);
  }
  if (front && behind) {
    const black = { r: 0, g: 0, b: 0 };
    const white = { r: 255, g: 255, b: 255 };
    const bright = 0.3 * behind.r + 0.59 * behind.g + 0.11 * behind.b > 128;
    style.color = css(readable(front, behind, bright ? black : white));
  }
  if (span.bold) {
    style['font-weight'] = '600';
  }
  if (span.italic) {
    style['font-style'] = 'italic';
  }
  if (hasLine(span)) {
    style['text-decoration'] = [span.underline && 'underline', span.strike && 'line-through']
      .filter(Boolean)
      .join(' ');
  }
  return style;
}

function colour(value: number | string | null, { scheme }: Theme): Rgb | null {
  return value === null
    ? null
    : parseColour(typeof value === 'number' ? (COLOURS[scheme].terminal[value] ?? '') : value);
}

function hasLine({ underline, strike }: Span): boolean {
  return underline || strike;
}
