import type { VNode } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';

import { plain } from '../../text';
import { useShared } from '../context';
import { counted } from '../format';
import { Icon } from '../icons';
import { CardState, type Zoom } from './cardstate';
import { Chart } from './chart';
import { type Drawing, type Look, oddWords } from './data';
import { Legend } from './legend';
import type { Scheduler } from './scheduler';
import type { Line } from './tags';

export interface CardProps {
  tag: string;
  lines: readonly Line[];
  look: Look;
  origin: number;
  group: string;
  scheduler: Scheduler;
  wide: boolean;
  setWide: (wide: boolean) => void;
  /** Asked to show itself: a new object each time. */
  focus: object | null;
}

/** One tag's plot: all runs and ranks that logged it. */
export function Card(props: CardProps): VNode {
  const { tag, lines, look, origin, group, scheduler, wide, setWide, focus } = props;
  const { store, theme, watch } = useShared();
  const figure = useRef<HTMLElement>(null);
  const place = useRef<HTMLDivElement>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [zoom, setZoom] = useState<Zoom>(null);
  const [caption, setCaption] = useState('');
  const [lit, setLit] = useState(false);
  const state = useMemo(() => new CardState(), []);
  Object.assign(state, { lines, look, origin, hidden, zoom, group, scheme: theme.scheme });

  /** Draw when the card can be seen; what it shows is read then. */
  const request = (soon: boolean): void => {
    if (state.seen) {
      scheduler.request(
        state,
        () => {
          paint();
        },
        soon
      );
    }
  };

  const paint = (): void => {
    const drawing = state.draw(place.current?.clientWidth ?? 300);
    if (!state.chart && place.current) {
      state.chart = new Chart(
        place.current,
        {
          lines: state.lines,
          // as they are now: an older drawing may have asked for this one
          look: state.look,
          scheme: state.scheme,
          font: fontOf(place.current),
          width: place.current.clientWidth,
          height: place.current.clientHeight,
          group: state.group,
          hover: x => {
            state.hovered = x;
            state.putValues(figure.current);
          },
          zoom: setZoom
        },
        drawing
      );
    }
    state.chart?.show(drawing, state.zoom);
    state.putValues(figure.current);
    setCaption(captionOf(drawing, state.lines));
    figure.current?.setAttribute('data-nonfinite', String(drawing.odd.length));
  };

  useEffect(() => {
    const element = figure.current;
    if (!element) {
      return undefined;
    }
    const observer = new IntersectionObserver(
      entries => {
        state.seen = entries.at(-1)?.isIntersecting ?? false;
        if (state.seen) {
          request(true);
        } else {
          scheduler.cancel(state);
        }
      },
      { rootMargin: '60px' }
    );
    observer.observe(element);
    const unsubscribe = watch.on('curves', () => {
      if (state.changed()) {
        // Also where the card is not seen: whoever reads the page is told the truth.
        element.setAttribute('data-points', String(total(state.lines)));
        request(false);
      }
    });
    return () => {
      observer.disconnect();
      unsubscribe();
      scheduler.cancel(state);
    };
  }, [watch, scheduler]);

  // Another set of lines, look or theme is another chart.
  const kind = [
    lines.map(({ curve }) => curve.sid).join(),
    look.axis,
    look.log,
    look.smoothing > 0,
    theme.scheme
  ].join('|');
  useLayoutEffect(() => {
    request(true);
    return () => {
      state.chart?.destroy();
      state.chart = null;
    };
  }, [kind]);
  useEffect(() => {
    request(true);
  }, [look.smoothing, hidden, zoom, origin]);
  useEffect(() => {
    setZoom(null);
  }, [look.axis]);

  useEffect(() => {
    const element = place.current;
    if (!element) {
      return undefined;
    }
    const observer = new ResizeObserver(() => {
      state.chart?.resize(element.clientWidth, element.clientHeight);
      request(true);
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
    };
  }, []);

  // The whole truth of the range that is looked at, where the curve here is only a picture of it.
  useEffect(() => {
    state.details.clear();
    if (!zoom) {
      return undefined;
    }
    let current = true;
    const shift = look.axis === 'relative' ? origin : 0;
    const points = 2 * (place.current?.clientWidth ?? 300);
    for (const { curve } of lines) {
      if (curve.thinned && !hidden.has(curve.sid)) {
        const x = look.axis === 'step' ? 'step' : 'time';
        store.fetchCurve(curve.sid, x, zoom.from + shift, zoom.to + shift, points).then(
          columns => {
            if (current) {
              state.details.set(curve.sid, columns);
              request(true);
            }
          },
          () => undefined // the picture of it stays
        );
      }
    }
    return () => {
      current = false;
    };
  }, [zoom, store]);

  useEffect(() => {
    if (focus) {
      figure.current?.scrollIntoView({ block: 'nearest' });
      setLit(true);
      const timer = setTimeout(() => {
        setLit(false);
      }, 2_000);
      return () => {
        clearTimeout(timer);
      };
    }
    return undefined;
  }, [focus]);

  const toggle = (sid: string, alone: boolean): void => {
    const others = lines.map(({ curve }) => curve.sid).filter(other => other !== sid);
    const next = new Set(hidden);
    if (alone) {
      const isAlone = !hidden.has(sid) && others.every(other => hidden.has(other));
      setHidden(new Set(isAlone ? [] : others));
      return;
    }
    if (!next.delete(sid)) {
      next.add(sid);
    }
    setHidden(next);
  };

  const name = plain(tag);
  return (
    <figure
      ref={figure}
      class="kf-card"
      data-tag={tag}
      data-points={total(lines)}
      data-wide={wide}
      data-lit={lit}
    >
      <figcaption class="kf-card-bar">
        <bdi class="kf-tag" title={name}>
          {name}
        </bdi>
        <span class="kf-at" />
        {zoom && (
          <button
            type="button"
            class="kf-plain"
            aria-label={`Show all of ${name}`}
            title="Show all (double click)"
            onClick={() => {
              setZoom(null);
            }}
          >
            <Icon name="reset" />
          </button>
        )}
        <button
          type="button"
          class="kf-plain"
          aria-label={`${wide ? 'Narrow' : 'Widen'} ${name}`}
          aria-pressed={wide}
          onClick={() => {
            setWide(!wide);
          }}
        >
          <Icon name={wide ? 'shrink' : 'expand'} />
        </button>
      </figcaption>
      <div
        ref={place}
        class="kf-plot"
        tabIndex={0}
        role="img"
        aria-label={`Plot of ${name}. ${caption}`}
        onKeyDown={event => {
          if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') {
            event.preventDefault();
            state.chart?.moveCursor(event.key === 'ArrowLeft' ? -1 : 1);
          } else if (event.key === 'Escape') {
            state.chart?.hideCursor();
          }
        }}
        onBlur={() => {
          state.chart?.hideCursor();
        }}
      />
      <div class="kf-foot">
        {caption !== '' && (
          <p class="kf-caption" title={caption}>
            <Icon name="warning" />
            <bdi>{caption}</bdi>
          </p>
        )}
        <Legend
          lines={lines}
          scheme={theme.scheme}
          hidden={hidden}
          toggle={toggle}
          bind={put => {
            state.put = put;
          }}
        />
      </div>
    </figure>
  );
}

function captionOf({ odd, unplaced }: Drawing, lines: readonly Line[]): string {
  const below =
    unplaced > 0 ? `${counted(unplaced, 'value')} ≤ 0 ${unplaced === 1 ? 'is' : 'are'} not shown` : '';
  return [oddWords(odd, lines), below].filter(Boolean).join(' · ');
}

function total(lines: readonly Line[]): number {
  return lines.reduce((sum, { curve }) => sum + curve.total, 0);
}

function fontOf(element: HTMLElement): string {
  return `11px ${getComputedStyle(element).fontFamily}`;
}
