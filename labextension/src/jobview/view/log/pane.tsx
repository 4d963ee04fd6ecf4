import type { VNode } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { CUT, isTerminal } from '../../protocol';
import { plain, spans } from '../../text';
import { copyText, errorSaid } from '../actions';
import { useShared, useTopics } from '../context';
import { count, counted } from '../format';
import { Detail } from './detail';
import { Lines, selectedText } from './lines';
import { RankLabel, Spans } from './row';
import { LogTools } from './tools';

/** Lines that "Copy the log" takes, the newest. */
const COPIED = 100_000;

/** Characters from which a line is shown below the log when it is clicked. */
const LONG = 160;

interface PaneProps {
  chosen: ReadonlySet<number>;
  choose: (ranks: ReadonlySet<number>) => void;
}

/** The log: followed, searched, filtered by rank. */
export function LogPane({ chosen, choose }: PaneProps): VNode {
  const { store, say } = useShared();
  useTopics('log', 'head');
  const { log } = store;
  const region = useRef<HTMLElement>(null);
  const [search, setSearch] = useState('');
  const [only, setOnly] = useState(true);
  const [follow, setFollow] = useState(true);
  const [times, setTimes] = useState(false);
  const [current, setCurrent] = useState<number | null>(null);
  const [goal, setGoal] = useState<{ row: number } | null>(null);
  const [opened, setOpened] = useState<number | null>(null);
  const left = useRef(0);

  const filtered = search !== '' || chosen.size > 0;
  useEffect(() => {
    log.setFilter(filtered ? { text: search, ranks: chosen.size > 0 ? chosen : null } : null);
    setOnly(true);
    setCurrent(null);
    setFollow(true);
  }, [log, search, chosen]);

  const matches = filtered ? log.matches : null;
  // Until the first search is answered the lines stay as they are.
  const narrowed = only && matches !== null;
  const rows = narrowed ? matches.length : log.total;
  const indexAt = (row: number): number => (narrowed ? (matches[row] ?? -1) : row);

  // What came since the user left the end.
  useLayoutEffect(() => {
    if (follow) {
      left.current = log.total;
    }
  });
  const fresh = follow || filtered ? 0 : Math.max(log.total - left.current, 0);

  const go = (row: number): void => {
    setCurrent(row);
    setGoal({ row });
  };

  const toggleFollow = (on: boolean): void => {
    if (on) {
      setCurrent(null);
      setOnly(true);
    }
    setFollow(on);
  };

  /** From match to match: among the matches alone, or in the whole log from where one is. */
  const step = (by: 1 | -1): void => {
    if (!matches || matches.length === 0) {
      return;
    }
    setFollow(false);
    if (narrowed) {
      const from = current ?? (by > 0 ? -1 : matches.length);
      go((from + by + matches.length) % matches.length);
      return;
    }
    go(neighbour(matches, current ?? (by > 0 ? -1 : log.total), by));
  };

  /** A match is shown among its neighbours; a long line is shown whole. */
  const activate = (row: number): void => {
    const index = indexAt(row);
    const line = log.line(index);
    if (narrowed && search !== '') {
      setOnly(false);
      setFollow(false);
      go(index);
      return;
    }
    setFollow(false);
    if (line && ((line.flags & CUT) !== 0 || line.text.length > LONG)) {
      setOpened(index);
    } else {
      setOpened(null);
    }
  };

  const copy = (): void => {
    const root = region.current?.getRootNode() ?? document;
    const selected = selectedText(region.current?.querySelector('.kf-lines') ?? null);
    if (selected !== '') {
      copyText(selected, root).then(
        () => {
          say({ text: 'Copied what is selected.' });
        },
        (error: unknown) => {
          say(errorSaid(error));
        }
      );
      return;
    }
    say({ text: 'Collecting the lines…' });
    log
      .collect(COPIED)
      .then(async ({ lines, cut }) => {
        const many = store.ranks.size > 1;
        const text = lines.map(line => (many ? `[${name(line.rank)}] ` : '') + plain(line.text)).join('\n');
        await copyText(text, root);
        say({ text: `Copied ${counted(lines.length, 'line')}${cut ? ', the newest of more' : ''}.` });
      })
      .catch((error: unknown) => {
        say(errorSaid(error));
      });
  };

  const keys = (event: KeyboardEvent): void => {
    const target = event.composedPath()[0];
    const typing = target instanceof HTMLInputElement;
    if (event.key === '/' && !typing) {
      event.preventDefault();
      region.current?.querySelector<HTMLInputElement>('input[type="search"]')?.focus();
    } else if (event.key === 'Escape') {
      if (opened !== null) {
        setOpened(null);
      } else if (filtered && !only) {
        setOnly(true);
        setCurrent(null);
      } else {
        setSearch('');
      }
    }
  };

  const line = opened === null ? undefined : log.line(opened);
  return (
    <section ref={region} class="kf-log" role="region" aria-label="Log" onKeyDown={keys}>
      <LogTools
        search={search}
        setSearch={setSearch}
        chosen={chosen}
        clearRanks={() => {
          choose(new Set());
        }}
        only={only}
        setOnly={on => {
          setOnly(on);
          setCurrent(null);
        }}
        step={step}
        follow={follow}
        setFollow={toggleFollow}
        fresh={fresh}
        times={times}
        setTimes={setTimes}
        copy={copy}
      />
      <div class="kf-log-box">
        <Lines
          count={rows}
          indexAt={indexAt}
          current={current}
          setCurrent={go}
          follow={follow}
          setFollow={setFollow}
          times={times}
          sought={search.toLowerCase()}
          goal={goal}
          activate={activate}
        />
        {rows === 0 && <Empty filtered={filtered} />}
        <Going chosen={chosen} />
        {line && (
          <Detail
            line={line}
            close={() => {
              setOpened(null);
            }}
          />
        )}
      </div>
    </section>
  );
}

function Empty({ filtered }: { filtered: boolean }): VNode {
  const { store } = useShared();
  const over = store.head && isTerminal(store.head.phase);
  let text = over ? 'The job printed nothing.' : 'What the job prints appears here.';
  if (filtered) {
    text = store.log.scanning || !store.log.matches ? 'Searching…' : 'No line matches.';
  }
  return <p class="kf-log-empty">{text}</p>;
}

/** Lines that go on, as progress bars do: they stay at the bottom until they end. */
function Going({ chosen }: { chosen: ReadonlySet<number> }): VNode | null {
  const { store, theme } = useShared();
  const most = useRef(0);
  const going = store.going.filter(({ rank }) => chosen.size === 0 || chosen.has(rank)).slice(0, 64);
  const over = store.head && isTerminal(store.head.phase);
  // The place stays while the job runs: between two bars the lines above would jump.
  most.current = over ? 0 : Math.max(most.current, Math.min(going.length, 4));
  if (most.current === 0) {
    return null;
  }
  return (
    <div
      class="kf-going"
      style={{ '--kf-rows': most.current }}
      tabIndex={0}
      role="group"
      aria-label="Lines that go on"
    >
      {going.map(({ rank, text }) => (
        <div key={rank} class="kf-line" data-kind="going">
          <RankLabel rank={rank} kind="going" theme={theme} />
          <bdi class="kf-text">
            <Spans pieces={spans(text)} theme={theme} sought="" />
          </bdi>
        </div>
      ))}
    </div>
  );
}

/** The nearest match before or after a line, from the other end where there is none. */
export function neighbour(matches: ArrayLike<number>, index: number, by: 1 | -1): number {
  let low = 0;
  let high = matches.length;
  const passed = (value: number): boolean => (by > 0 ? value <= index : value < index);
  while (low < high) {
    const middle = (low + high) >> 1;
    if (passed(matches[middle] ?? 0)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const at = by > 0 ? low : low - 1;
  return matches[(at + matches.length) % matches.length] ?? 0;
}

function name(rank: number): string {
  return rank < 0 ? `node ${-1 - rank}` : count(rank);
}
