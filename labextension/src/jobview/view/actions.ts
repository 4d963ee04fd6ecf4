import type { Said } from './context';
import { sentence } from './format';

/** Copy, also where the page is not allowed to use the clipboard: over plain HTTP, in a webview. */
export async function copyText(text: string, root: Node): Promise<void> {
  const { clipboard } = navigator as Partial<Navigator>;
  if (clipboard) {
    try {
      await clipboard.writeText(text);
      return;
    } catch {
      // Refused; the older way may still be open.
    }
  }
  const area = document.createElement('textarea');
  area.value = text;
  area.readOnly = true;
  area.setAttribute('aria-hidden', 'true');
  area.style.cssText = 'position: fixed; top: 0; left: 0; width: 1px; height: 1px; opacity: 0';
  const holder = root instanceof ShadowRoot ? root : document.body;
  const focused = root instanceof ShadowRoot ? root.activeElement : document.activeElement;
  holder.append(area);
  try {
    area.select();
    // The only way without the clipboard's permission.
    // eslint-disable-next-line @typescript-eslint/no-deprecated
    if (!document.execCommand('copy')) {
      throw new Error('The browser did not let the page copy. Select the text and press Ctrl+C or Cmd+C.');
    }
  } finally {
    area.remove();
    if (focused instanceof HTMLElement) {
      focused.focus({ preventScroll: true });
    }
  }
}

/** An error as sentences: what happened, why, what to do. */
export function errorSaid(error: unknown): Said {
  const { what, why, fix } = error as { what?: unknown; why?: unknown; fix?: unknown };
  const parts = [what, why, fix].filter((part): part is string => typeof part === 'string' && part !== '');
  if (parts.length > 0) {
    return { text: parts.map(sentence).join(' '), error: true };
  }
  return { text: error instanceof Error ? error.message : String(error), error: true };
}
