import type { VNode } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { useRedraw, useShared } from '../context';
import { Row } from './row';
import { ROW, height, lastTop, position, reveal, scrolled } from './scroll';

/** Milliseconds after the last movement when the scroll bar is put where the first row belongs. */
const SETTLED = 150;

export interface LinesProps {
  /** Rows, and the index of the line in a row. */
  count: number;
  indexAt: (row: number) => number;
  /** The row that keys act on. */
  current: number | null;
  setCurrent: (row: number) => void;
  follow: boolean;
  setFollow: (follow: boolean) => void;
  times: boolean;
  sought: string;
  /** A row to be brought into view; a new object each time. */
  goal: { row: number } | null;
  activate: (row: number) => void;
  children?: VNode | null;
}

let lists = 0;

/** The rows that can be seen, of as many as there are. */
export function Lines(props: LinesProps): VNode {
  const { count, indexAt, current, setCurrent, follow, setFollow, times, sought, goal, activate } = props;
  const { store, theme } = useShared();
  const redraw = useRedraw();
  const scroller = useRef<HTMLDivElement>(null);
  const [name] = useState(() => `kf-lines-${(lists += 1)}`);
  const [view, setView] = useState(240);
  const place = useRef({ top: 0, at: 0, moved: 0 });
  const extent = { count, view };
  const { current: now } = place;
  const held = isSelecting(scroller.current);
  now.top = follow && !held ? lastTop(extent) : Math.min(now.top, lastTop(extent));

  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) {
      return undefined;
    }
    const measure = (): void => {
      setView(Math.max(element.clientHeight, ROW));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      observer.disconnect();
    };
  }, []);

  const put = (): void => {
    const element = scroller.current;
    if (element) {
      const wanted = position(now.top, extent);
      if (Math.abs(element.scrollTop - wanted) > 1) {
        element.scrollTop = wanted;
      }
      now.at = element.scrollTop;
    }
  };

  useLayoutEffect(() => {
    if (performance.now() - now.moved > SETTLED || follow) {
      put();
    }
  });

  useLayoutEffect(() => {
    if (goal) {
      now.top = reveal(goal.row, now.top, extent);
      now.moved = 0;
      put();
      redraw();
    }
  }, [goal]);

  // After a movement the bar stands where it was dragged to; it is put right when it rests.
  const settle = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(
    () => () => {
      clearTimeout(settle.current);
    },
    []
  );

  const scroll = (): void => {
    const element = scroller.current;
    if (!element || Math.abs(element.scrollTop - now.at) < 1) {
      return;
    }
    const to = element.scrollTop;
    const up = to < now.at;
    now.top = scrolled(now.top, extent, now.at, to);
    now.at = to;
    now.moved = performance.now();
    clearTimeout(settle.current);
    settle.current = setTimeout(redraw, SETTLED + 10);
    const atEnd = now.top >= lastTop(extent) - 0.5;
    if (follow && up && !atEnd) {
      setFollow(false);
    } else if (!follow && !up && atEnd) {
      setFollow(true);
    }
    redraw();
  };

  const press = (event: KeyboardEvent): void => {
    const page = Math.max(Math.floor(view / ROW) - 1, 1);
    const start = current ?? Math.min(Math.floor(now.top + view / ROW), count - 1);
    const moves: Record<string, number> = {
      ArrowUp: -1,
      ArrowDown: 1,
      PageUp: -page,
      PageDown: page,
      Home: -count,
      End: count
    };
    const by = moves[event.key];
    if (event.key === 'Enter' && current !== null) {
      event.preventDefault();
      activate(current);
    } else if (by !== undefined && count > 0 && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      const row = Math.min(Math.max(start + (current === null && Math.abs(by) === 1 ? 0 : by), 0), count - 1);
      setFollow(event.key === 'End');
      setCurrent(row);
    }
  };

  const first = Math.floor(now.top);
  const rows = Math.min(Math.ceil(view / ROW) + 1, count - first);
  const shift = -(now.top - first) * ROW;
  return (
    <div
      ref={scroller}
      class="kf-lines"
      role={count > 0 ? 'listbox' : 'group'}
      aria-label="Lines"
      aria-activedescendant={current !== null ? `${name}-${indexAt(current)}` : undefined}
      tabIndex={0}
      onScroll={scroll}
      onKeyDown={press}
    >
      <div class="kf-space" role="presentation" style={{ height: `${height(extent)}px` }}>
        <div class="kf-window" role="presentation" style={{ height: `${Math.min(view, height(extent))}px` }}>
          <div
            class="kf-rows"
            role="presentation"
            style={{ transform: `translateY(${shift}px)` }}
            onClick={event => {
              const row = rowOf(event.target);
              if (row !== null && !isSelecting(scroller.current)) {
                const at = first + row;
                setCurrent(at);
                activate(at);
              }
            }}
          >
            {Array.from({ length: Math.max(rows, 0) }, (_, i) => {
              const index = indexAt(first + i);
              return (
                <Row
                  key={index}
                  index={index}
                  line={store.log.line(index)}
                  theme={theme}
                  sought={sought}
                  current={current === first + i}
                  times={times}
                  list={name}
                />
              );
            })}
          </div>
        </div>
      </div>
      {props.children}
    </div>
  );
}

/** Which of the drawn rows an event is in. */
function rowOf(at: EventTarget | null): number | null {
  const row = at instanceof Element ? at.closest('.kf-line') : null;
  return row?.parentElement ? [...row.parentElement.children].indexOf(row) : null;
}

/** Whether some text of the log is selected: it is not to be scrolled away from under the pointer. */
export function isSelecting(scroller: HTMLElement | null): boolean {
  return selectedText(scroller) !== '';
}

export function selectedText(scroller: HTMLElement | null): string {
  if (!scroller) {
    return '';
  }
  // Not every browser's shadow roots have selections of their own.
  const root = scroller.getRootNode() as Partial<Pick<Document, 'getSelection'>>;
  const selection = root.getSelection?.() ?? document.getSelection();
  if (
    !selection ||
    selection.isCollapsed ||
    !selection.anchorNode ||
    !scroller.contains(selection.anchorNode)
  ) {
    return '';
  }
  return selection.toString();
}
