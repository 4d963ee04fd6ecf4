import { render } from 'preact';
import uplotStyle from 'uplot/dist/uPlot.min.css';

import type { JobStore } from '../store';
import style from '../style.css';
import { JobView } from './jobview';

export interface ViewOptions {
  /** A store of another job, for "Run again" to show it in place. The view disposes what it opened. */
  open?: (id: string) => JobStore;
}

/** Show the job in `element`. Returns how to take it away; the store is the caller's and stays. */
export function mountJobView(element: HTMLElement, store: JobStore, options: ViewOptions = {}): () => void {
  const host = document.createElement('div');
  const root = host.attachShadow({ mode: 'open' });
  adopt(root, uplotStyle + style);
  const place = document.createElement('div');
  root.append(place);
  element.append(host);
  const release = keepKeys(host);
  render(<JobView first={store} host={host} {...options} />, place);
  return () => {
    release();
    render(null, place);
    host.remove();
  };
}

/** A style sheet of the root's own; pages whose policy forbids style elements allow these. */
function adopt(root: ShadowRoot, text: string): void {
  try {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(text);
    root.adoptedStyleSheets = [sheet];
  } catch {
    const element = document.createElement('style');
    element.textContent = text;
    root.append(element);
  }
}

/**
 * Keys that are pressed in the view are the view's: a notebook would take "b" in a search box for a command, since it
 * cannot see into a shadow root. With Ctrl or Cmd they stay the notebook's.
 */
function keepKeys(host: HTMLElement): () => void {
  const decide = (event: KeyboardEvent): void => {
    const ours = event.composedPath().includes(host) && !event.ctrlKey && !event.metaKey;
    host.toggleAttribute('data-lm-suppress-shortcuts', ours);
  };
  window.addEventListener('keydown', decide, true);
  return () => {
    window.removeEventListener('keydown', decide, true);
  };
}
