import type { VNode } from 'preact';

import { useShared } from '../context';
import { count, counted } from '../format';
import { Icon } from '../icons';
import { rankRanges } from '../stacks';

interface ToolsProps {
  search: string;
  setSearch: (text: string) => void;
  chosen: ReadonlySet<number>;
  clearRanks: () => void;
  only: boolean;
  setOnly: (only: boolean) => void;
  step: (by: 1 | -1) => void;
  follow: boolean;
  setFollow: (follow: boolean) => void;
  fresh: number;
  times: boolean;
  setTimes: (times: boolean) => void;
  copy: () => void;
}

/** What can be done with the log, above it. */
export function LogTools(props: ToolsProps): VNode {
  const { search, setSearch, chosen, only, step, follow, fresh, times } = props;
  const filtered = search !== '' || chosen.size > 0;
  return (
    <div class="kf-part-bar kf-log-tools">
      <h3>Log</h3>
      <label class="kf-search">
        <Icon name="search" />
        <input
          type="search"
          aria-label="Search the log"
          placeholder="Search the log"
          value={search}
          spellcheck={false}
          autocomplete="off"
          onInput={event => {
            setSearch(event.currentTarget.value);
          }}
          onKeyDown={event => {
            if (event.key === 'Enter') {
              step(event.shiftKey ? 1 : -1);
            }
          }}
        />
      </label>
      <Count search={search} filtered={filtered} />
      <span class="kf-group">
        <Tool
          name="Previous match"
          disabled={!filtered}
          act={() => {
            step(-1);
          }}
        >
          <Icon name="up" />
        </Tool>
        <Tool
          name="Next match"
          disabled={!filtered}
          act={() => {
            step(1);
          }}
        >
          <Icon name="down" />
        </Tool>
      </span>
      {filtered && (
        <Tool
          name="Only matches"
          hint="Show only the lines that match"
          pressed={only}
          act={() => {
            props.setOnly(!only);
          }}
        >
          Only matches
        </Tool>
      )}
      {chosen.size > 0 && (
        <Tool name="Show all ranks" act={props.clearRanks}>
          {shortened(rankRanges([...chosen].sort((a, b) => a - b)))}
          <Icon name="close" />
        </Tool>
      )}
      <span class="kf-grow" />
      <Tool
        name="Times"
        hint="Show when each line came"
        pressed={times}
        act={() => {
          props.setTimes(!times);
        }}
      >
        <Icon name="clock" />
      </Tool>
      <Tool name="Copy the log" hint="Copy what is selected, or the lines that are shown" act={props.copy}>
        <Icon name="copy" />
      </Tool>
      <Tool
        name="Follow"
        hint="Stay at the newest line"
        pressed={follow}
        act={() => {
          props.setFollow(!follow);
        }}
      >
        <Icon name="follow" />
        <span class="kf-follow-word">{fresh > 0 ? `${count(fresh)} new` : 'Follow'}</span>
      </Tool>
    </div>
  );
}

function Count({ search, filtered }: { search: string; filtered: boolean }): VNode {
  const { log } = useShared().store;
  let text = counted(log.total, 'line');
  if (filtered) {
    const found = log.matches?.length ?? 0;
    const number = `${log.truncated ? 'over ' : ''}${search === '' ? counted(found, 'line') : counted(found, 'match', 'matches')}`;
    text = log.scanning || !log.matches ? 'searching…' : found === 0 ? 'no matches' : number;
  }
  return <span class="kf-matches">{text}</span>;
}

interface ToolProps {
  name: string;
  hint?: string;
  pressed?: boolean;
  disabled?: boolean;
  act: () => void;
  children: VNode | (VNode | string)[] | string;
}

function Tool({ name, hint, pressed, disabled = false, act, children }: ToolProps): VNode {
  return (
    <button
      type="button"
      class="kf-tool"
      aria-pressed={pressed}
      title={hint ?? name}
      disabled={disabled}
      onClick={act}
    >
      <span class="kf-hidden">{name}</span>
      <span class="kf-tool-face" aria-hidden="true">
        {children}
      </span>
    </button>
  );
}

function shortened(text: string): string {
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}
