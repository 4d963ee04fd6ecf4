import type { VNode } from 'preact';
import { useMemo } from 'preact/hooks';

import { CUT, GAP, type LogLine, NOTE, STDERR } from '../../protocol';
import { type Span, spans } from '../../text';
import { moment, timeOfDay } from '../format';
import { rankColour } from '../palette';
import type { Theme } from '../theme';
import { spanStyle } from './ansi';

interface RowProps {
  index: number;
  line: LogLine | undefined;
  theme: Theme;
  /** What was searched for, in small letters. */
  sought: string;
  current: boolean;
  times: boolean;
  /** The list that the row is an option of. */
  list: string;
}

const parsed = new WeakMap<LogLine, Span[]>();

function spansOf(line: LogLine): Span[] {
  let found = parsed.get(line);
  if (!found) {
    found = spans(line.text);
    parsed.set(line, found);
  }
  return found;
}

/** One line of the log in one row, however long it is. */
export function Row({ index, line, theme, sought, current, times, list }: RowProps): VNode {
  return useMemo(() => {
    const shared = {
      id: `${list}-${index}`,
      'data-index': index,
      role: 'option' as const,
      'aria-selected': current,
      'data-current': current
    };
    if (!line) {
      return (
        <div class="kf-line" data-kind="missing" {...shared}>
          <span class="kf-rank" />
          <span class="kf-text">…</span>
        </div>
      );
    }
    const kind =
      line.flags & GAP ? 'gap' : line.flags & NOTE ? 'note' : line.flags & STDERR ? 'stderr' : 'stdout';
    return (
      <div class="kf-line" data-kind={kind} title={hint(line)} {...shared}>
        {times && <span class="kf-time">{timeOfDay(line.time, true)}</span>}
        <RankLabel rank={line.rank} kind={kind} theme={theme} />
        <bdi class="kf-text">
          <Spans pieces={spansOf(line)} theme={theme} sought={sought} />
        </bdi>
        {(line.flags & CUT) !== 0 && <span class="kf-cut">… more (Enter)</span>}
      </div>
    );
  }, [index, line, theme, sought, current, times, list]);
}

function hint(line: LogLine): string {
  const who = line.rank < 0 ? `node ${-1 - line.rank}` : `rank ${line.rank}`;
  return `line ${line.index + 1} · ${who}${line.flags & STDERR ? ' · stderr' : ''} · ${moment(line.time)}`;
}

export function RankLabel({ rank, kind, theme }: { rank: number; kind: string; theme: Theme }): VNode {
  return (
    <span class="kf-rank" style={{ color: rankColour(rank, theme.scheme) }}>
      {rank < 0 ? `n${-1 - rank}` : rank}
      {kind === 'stderr' && <span class="kf-stderr">err</span>}
    </span>
  );
}

export function Spans({ pieces, theme, sought }: { pieces: Span[]; theme: Theme; sought: string }): VNode {
  return (
    <>
      {pieces.map((span, i) => {
        const style = spanStyle(span, theme);
        const text = sought === '' ? span.text : <Marked text={span.text} sought={sought} />;
        return style ? (
          <span key={i} style={style}>
            {text}
          </span>
        ) : (
          text
        );
      })}
    </>
  );
}

function Marked({ text, sought }: { text: string; sought: string }): VNode {
  return <>{pieces(text, sought).map((piece, i) => (i % 2 === 1 ? <mark key={i}>{piece}</mark> : piece))}</>;
}

/** The text cut at what was sought: every second piece is a find. */
export function pieces(text: string, sought: string): string[] {
  const small = text.toLowerCase();
  // Some letters have another length in small: places would not be those of the text.
  if (sought === '' || small.length !== text.length) {
    return [text];
  }
  const found: string[] = [];
  let from = 0;
  for (let at = small.indexOf(sought); at >= 0; at = small.indexOf(sought, from)) {
    found.push(text.slice(from, at), text.slice(at, at + sought.length));
    from = at + sought.length;
  }
  return [...found, text.slice(from)];
}
