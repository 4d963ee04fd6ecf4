import { COLOURS, type Rgb, type Scheme, contrast, css, luminance, parseColour } from './palette';

export interface Theme {
  scheme: Scheme;
  /** What the view stands on, or its own background where text could not be read on that. */
  background: string;
}

const OWN: Readonly<Record<Scheme, Rgb>> = {
  light: { r: 255, g: 255, b: 255 },
  dark: { r: 24, g: 26, b: 30 }
};

/** Themes load their style sheets after they have said so; the background is looked at again after these many ms. */
const AGAIN = [100, 500, 2_000];

/** Light or dark, by what is behind the element: names of themes differ from host to host, backgrounds do not lie. */
export function themeOf(element: Element): Theme {
  const behind = backdrop(element) ?? hostColour(element);
  if (!behind) {
    const scheme = hostScheme(element);
    return { scheme, background: css(OWN[scheme]) };
  }
  const scheme: Scheme = luminance(behind) > 0.35 ? 'light' : 'dark';
  const muted = parseColour(COLOURS[scheme].muted) ?? behind;
  const legible = contrast(muted, behind) >= 5;
  return { scheme, background: css(legible ? behind : OWN[scheme]) };
}

/** Tell of the theme now and whenever it changes. Returns how to stop. */
export function watchTheme(element: Element, tell: (theme: Theme) => void): () => void {
  let last = '';
  let timers: ReturnType<typeof setTimeout>[] = [];
  const look = (): void => {
    const theme = themeOf(element);
    const key = theme.scheme + theme.background;
    if (key !== last) {
      last = key;
      tell(theme);
    }
  };
  const changed = (): void => {
    timers.forEach(clearTimeout);
    look();
    timers = AGAIN.map(delay => setTimeout(look, delay));
  };
  const observer = new MutationObserver(changed);
  for (const target of [document.documentElement, document.body]) {
    observer.observe(target, { attributes: true });
  }
  const dark = matchMedia('(prefers-color-scheme: dark)');
  dark.addEventListener('change', changed);
  changed();
  return () => {
    timers.forEach(clearTimeout);
    observer.disconnect();
    dark.removeEventListener('change', changed);
  };
}

/** The nearest background that can be seen behind the element, through shadow roots. */
function backdrop(element: Element): Rgb | null {
  let node: Element | null = element;
  while (node) {
    const colour = parseColour(getComputedStyle(node).backgroundColor);
    if (colour && colour.a >= 0.5) {
      return colour;
    }
    const root: Node = node.getRootNode();
    node = node.parentElement ?? (root instanceof ShadowRoot ? root.host : null);
  }
  return null;
}

/** VS Code shows outputs on nothing, over a colour that it names. */
function hostColour(element: Element): Rgb | null {
  return parseColour(getComputedStyle(element).getPropertyValue('--vscode-editor-background').trim());
}

function hostScheme(element: Element): Scheme {
  const { classList, dataset } = document.body;
  if (classList.contains('vscode-dark') || dataset.jpThemeLight === 'false') {
    return 'dark';
  }
  const scheme = getComputedStyle(element).colorScheme;
  const prefersDark = matchMedia('(prefers-color-scheme: dark)').matches;
  return scheme.includes('dark') && (prefersDark || !scheme.includes('light')) ? 'dark' : 'light';
}
