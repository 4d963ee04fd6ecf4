import type { VNode } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';

import { counted } from '../format';
import { type Scheme, lineLook } from '../palette';
import type { Line } from './tags';

/** Lines that are named before it is asked for. */
const NAMED = 8;

interface LegendProps {
  lines: readonly Line[];
  scheme: Scheme;
  hidden: ReadonlySet<string>;
  toggle: (sid: string, alone: boolean) => void;
  /** Called with how values are put beside their names: they change too often to draw the names again. */
  bind: (put: (values: readonly string[]) => void) => void;
}

/** The lines of a plot with their values. A click hides one, a click with Shift shows it alone. */
export function Legend({ lines, scheme, hidden, toggle, bind }: LegendProps): VNode {
  const list = useRef<HTMLDivElement>(null);
  const values = useRef<readonly string[]>([]);
  const [all, setAll] = useState(false);
  const folded = lines.length > NAMED && !all;
  const named = folded ? lines.slice(0, NAMED) : lines;

  const put = (next: readonly string[]): void => {
    values.current = next;
    const cells = list.current?.querySelectorAll('.kf-value') ?? [];
    cells.forEach((cell, i) => {
      const text = next[i] ?? '';
      if (cell.textContent !== text) {
        cell.textContent = text;
      }
    });
  };
  useLayoutEffect(() => {
    bind(put);
    put(values.current);
  });

  return (
    <div class="kf-legend" ref={list}>
      {lines.length > NAMED && (
        <button
          type="button"
          class="kf-link"
          aria-expanded={all}
          onClick={() => {
            setAll(!all);
          }}
        >
          {all ? 'Fewer' : counted(lines.length, 'line')}
        </button>
      )}
      {named.map(({ curve, name, look }) => {
        const { colour, dash } = lineLook(look, scheme);
        return (
          <button
            key={curve.sid}
            type="button"
            class="kf-key"
            aria-pressed={!hidden.has(curve.sid)}
            title={`${name}: click to hide or show, Shift+click to show alone`}
            onClick={event => {
              toggle(curve.sid, event.shiftKey);
            }}
          >
            <svg viewBox="0 0 14 4" aria-hidden="true">
              <path
                d="M0 2h14"
                stroke={colour}
                stroke-width="2.5"
                stroke-dasharray={dash.map(d => d / 2).join(' ')}
              />
            </svg>
            <bdi>{name}</bdi>
            <span class="kf-value" />
          </button>
        );
      })}
    </div>
  );
}
