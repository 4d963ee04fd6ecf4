import type { VNode } from 'preact';
import { useRef, useState } from 'preact/hooks';

import type { RankInfo } from '../protocol';
import { plain } from '../text';
import { useShared, useTopics } from './context';
import { counted, percent } from './format';
import { rankColour } from './palette';
import { rankLook } from './phases';

/** Up to so many ranks each have a row with its last line; more are a grid of small squares. */
const ROWS = 16;

/** Ranks that have not started are shown for so many at most. */
const MOST = 1_024;

interface RanksProps {
  chosen: ReadonlySet<number>;
  choose: (ranks: ReadonlySet<number>) => void;
}

/** A chip for each rank. The pressed ones are those whose lines the log shows. */
export function Ranks({ chosen, choose }: RanksProps): VNode | null {
  const { store } = useShared();
  useTopics('ranks', 'head');
  const group = useRef<HTMLDivElement>(null);
  const [current, setCurrent] = useState<number | null>(null);
  const [hinted, setHinted] = useState<number | null>(null);
  const ranks = [...store.ranks.values()].sort((a, b) => a.rank - b.rank);
  const expected = (store.head?.nodes ?? 0) * (store.head?.procs ?? 0);
  if (ranks.length === 0 && expected === 0) {
    return null;
  }
  // Their places are kept free while the job is starting.
  const missing = Array.from({ length: Math.min(expected, MOST) }, (_, rank) => rank).filter(
    rank => !store.ranks.has(rank)
  );
  const dense = Math.max(ranks.length, expected) > ROWS;
  const tabStop = current !== null && store.ranks.has(current) ? current : (ranks[0]?.rank ?? 0);

  const press = (rank: number, event: MouseEvent | KeyboardEvent): void => {
    const from = ranks.findIndex(info => info.rank === tabStop);
    const to = ranks.findIndex(info => info.rank === rank);
    setCurrent(rank);
    if (event.shiftKey && from >= 0) {
      const [first, last] = from < to ? [from, to] : [to, from];
      choose(new Set([...chosen, ...ranks.slice(first, last + 1).map(info => info.rank)]));
      return;
    }
    const next = new Set(event.ctrlKey || event.metaKey ? chosen : []);
    if (chosen.has(rank)) {
      next.delete(rank);
    } else {
      next.add(rank);
    }
    choose(next);
  };

  const move = (event: KeyboardEvent): void => {
    const at = ranks.findIndex(info => info.rank === tabStop);
    const to = target(event.key, at, ranks.length, columns(group.current));
    const rank = ranks[to]?.rank;
    if (to === at || rank === undefined) {
      return;
    }
    event.preventDefault();
    setCurrent(rank);
    group.current?.querySelector<HTMLElement>(`[data-rank="${rank}"]`)?.focus();
  };

  const shown = hinted === null ? undefined : store.ranks.get(hinted);
  return (
    <div class="kf-ranks-part">
      <div class="kf-part-bar">
        <h3>Ranks</h3>
        <p class="kf-rank-hint">
          <bdi>{shown ? describe(shown, dense) : summary(ranks)}</bdi>
        </p>
        <button
          type="button"
          class="kf-link"
          disabled={chosen.size === 0}
          onClick={() => {
            choose(new Set());
          }}
        >
          All ranks
        </button>
      </div>
      <div
        ref={group}
        class="kf-ranks"
        data-dense={dense}
        role="group"
        aria-label="Ranks"
        onKeyDown={move}
        onPointerLeave={() => {
          setHinted(null);
        }}
      >
        {ranks.map(info => (
          <RankChip
            key={info.rank}
            info={info}
            dense={dense}
            pressed={chosen.has(info.rank)}
            tabStop={info.rank === tabStop}
            press={press}
            hint={setHinted}
          />
        ))}
        {missing.map(rank => (
          <span key={rank} class="kf-rank-chip" data-state="none">
            <span class="kf-rank-mark" />
            <span class="kf-rank-number">{rank}</span>
            {!dense && <span class="kf-rank-last">not started</span>}
          </span>
        ))}
      </div>
    </div>
  );
}

interface ChipProps {
  info: RankInfo;
  dense: boolean;
  pressed: boolean;
  tabStop: boolean;
  press: (rank: number, event: MouseEvent) => void;
  hint: (rank: number | null) => void;
}

function RankChip({ info, dense, pressed, tabStop, press, hint }: ChipProps): VNode {
  const { theme } = useShared();
  const { rank, state, line, done } = info;
  const { words, mark, tone } = rankLook(info);
  const last = line === null ? '' : plain(line);
  return (
    <button
      type="button"
      class="kf-rank-chip"
      data-rank={rank}
      data-state={state}
      data-tone={tone}
      aria-description={last}
      aria-pressed={pressed}
      tabIndex={tabStop ? 0 : -1}
      title={describe(info, true)}
      onClick={event => {
        press(rank, event);
      }}
      onPointerEnter={() => {
        hint(rank);
      }}
      onFocus={() => {
        hint(rank);
      }}
      onBlur={() => {
        hint(null);
      }}
    >
      <span class="kf-hidden">{`Rank ${rank}, ${words}`}</span>
      <span class="kf-rank-mark" aria-hidden="true">
        {mark}
      </span>
      <span
        class="kf-rank-number"
        aria-hidden="true"
        style={dense ? undefined : { color: rankColour(rank, theme.scheme) }}
      >
        {rank}
      </span>
      {!dense && (
        <bdi class="kf-rank-last" aria-hidden="true">
          {last || words}
        </bdi>
      )}
      {!dense && done !== null && (
        <span class="kf-rank-done" aria-hidden="true">
          {percent(done)}
        </span>
      )}
    </button>
  );
}

function describe(info: RankInfo, withLine: boolean): string {
  const parts = [`Rank ${info.rank}: ${rankLook(info).words}`, `node ${info.node}`];
  if (info.pid !== null) {
    parts.push(`pid ${info.pid}`);
  }
  if (info.done !== null) {
    parts.push(`${percent(info.done)} done`);
  }
  if (withLine && info.line) {
    parts.push(plain(info.line));
  }
  return parts.join(' · ');
}

/** "64 ranks: 62 running, 2 exited with code 1". */
export function summary(ranks: readonly RankInfo[]): string {
  const states = new Map<string, number>();
  for (const info of ranks) {
    const { words } = rankLook(info);
    states.set(words, (states.get(words) ?? 0) + 1);
  }
  if (states.size === 0) {
    return 'None has started yet.';
  }
  const [[only = ''] = []] = states;
  if (states.size === 1) {
    return `${counted(ranks.length, 'rank')}${ranks.length > 1 ? ', all' : ','} ${only}`;
  }
  const parts = [...states].sort((a, b) => b[1] - a[1]).map(([words, number]) => `${number} ${words}`);
  return `${counted(ranks.length, 'rank')}: ${parts.join('; ')}`;
}

/** Where an arrow key leads from `at` in a grid of `length` cells. */
export function target(key: string, at: number, length: number, wide: number): number {
  const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide };
  if (key === 'Home') {
    return 0;
  }
  if (key === 'End') {
    return length - 1;
  }
  const to = at + (steps[key] ?? 0);
  return to >= 0 && to < length ? to : at;
}

/** Cells in a row of the grid as it is laid out. */
function columns(group: HTMLElement | null): number {
  const cells = [...(group?.children ?? [])] as HTMLElement[];
  const top = cells[0]?.offsetTop;
  const wide = cells.findIndex(cell => cell.offsetTop !== top);
  return wide < 0 ? cells.length : wide;
}
