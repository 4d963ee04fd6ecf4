import type { ComponentChildren, VNode } from 'preact';
import { useRef } from 'preact/hooks';

import { type Head, type NonFinite, isTerminal } from '../protocol';
import { plain } from '../text';
import { copyText, errorSaid } from './actions';
import { useShared, useTicks, useTopics } from './context';
import { ago, bytes, count, counted, moment, timeOfDay } from './format';
import { Icon, type IconName } from './icons';

/** What an expert looks for while a run goes wrong, in one row that is always there. */
export function Facts({ showTag }: { showTag: (found: { tag: string }) => void }): VNode {
  const { store } = useShared();
  useTopics('head');
  const { head } = store;
  useTicks(Boolean(head?.checkpoint) && head?.ended === null);
  return (
    <div class="kf-facts">
      {head && (
        <>
          {head.non_finite && <NonFiniteFact found={head.non_finite} showTag={showTag} />}
          <Checkpoint head={head} now={store.now()} />
          <Restarts head={head} />
          <Gaps head={head} />
          <Notes head={head} />
          <Result head={head} />
          {head.started !== null && (
            <Fact name="started" hint={moment(head.started)}>
              {timeOfDay(head.started)}
            </Fact>
          )}
          {head.backend !== '' && (
            <Fact name="on">
              <bdi>{plain(head.backend)}</bdi>
            </Fact>
          )}
          {head.points > 0 && <Fact name="points">{count(head.points)}</Fact>}
        </>
      )}
    </div>
  );
}

interface FactProps {
  name: string;
  hint?: string;
  icon?: IconName;
  tone?: string;
  children: ComponentChildren;
}

function Fact({ name, hint, icon, tone, children }: FactProps): VNode {
  return (
    <span class="kf-fact" data-tone={tone} title={hint}>
      {icon && <Icon name={icon} />}
      <span class="kf-fact-name">{name}</span> {children}
    </span>
  );
}

const VALUES = { nan: 'NaN', inf: '∞', '-inf': '-∞' } as const;

function NonFiniteFact({
  found,
  showTag
}: {
  found: NonFinite;
  showTag: (found: { tag: string }) => void;
}): VNode {
  const tag = plain(found.tag);
  return (
    <button
      type="button"
      class="kf-fact kf-fact-button"
      data-tone="warn"
      title="Show its plot"
      onClick={() => {
        showTag({ tag: found.tag });
      }}
    >
      <Icon name="warning" />
      <bdi>{tag}</bdi> is {VALUES[found.value]} from step {count(found.step)}
      {found.rank !== null && ` on rank ${found.rank}`}
    </button>
  );
}

function Checkpoint({ head, now }: { head: Head; now: number }): VNode | null {
  const { say } = useShared();
  const button = useRef<HTMLButtonElement>(null);
  const { checkpoint } = head;
  if (!checkpoint) {
    return null;
  }
  const path = plain(checkpoint.path);
  const until = head.ended ?? now;
  const copy = (): void => {
    copyText(checkpoint.path, button.current?.getRootNode() ?? document).then(
      () => {
        say({ text: "Copied the checkpoint's path." });
      },
      (error: unknown) => {
        say(errorSaid(error));
      }
    );
  };
  return (
    <Fact name="checkpoint" hint={path}>
      {checkpoint.step !== null && `step ${count(checkpoint.step)}`}
      {checkpoint.time !== null && (
        <span class="kf-fact-more">
          {isTerminal(head.phase) ? timeOfDay(checkpoint.time) : ago(until - checkpoint.time)}
        </span>
      )}
      <button
        ref={button}
        type="button"
        class="kf-plain"
        aria-label="Copy the checkpoint's path"
        onClick={copy}
      >
        <Icon name="copy" />
      </button>
    </Fact>
  );
}

interface MoreProps {
  summary: string;
  icon: IconName;
  tone: string;
  items: { key: string; time: number | null; text: string }[];
}

function More({ summary, icon, tone, items }: MoreProps): VNode {
  return (
    <details class="kf-fact kf-more" data-tone={tone}>
      <summary>
        <Icon name={icon} />
        <bdi>{summary}</bdi>
      </summary>
      <ul>
        {items.map(({ key, time, text }) => (
          <li key={key}>
            {time !== null && <time>{timeOfDay(time)}</time>} <bdi>{text}</bdi>
          </li>
        ))}
      </ul>
    </details>
  );
}

function Restarts({ head }: { head: Head }): VNode | null {
  if (head.restarts.length === 0) {
    return null;
  }
  const items = head.restarts.map(({ attempt, time, why }) => ({
    key: String(attempt),
    time,
    text: `attempt ${attempt + 1}: ${plain(why)}`
  }));
  return <More summary={counted(items.length, 'restart')} icon="restarting" tone="warn" items={items} />;
}

function Gaps({ head }: { head: Head }): VNode | null {
  if (head.gaps.length === 0) {
    return null;
  }
  const total = head.gaps.reduce((sum, gap) => sum + gap.count, 0);
  const items = head.gaps.map((gap, i) => ({
    key: String(i),
    time: null,
    text: `${counted(gap.count, 'line')} of node ${gap.node} ${gap.count === 1 ? 'is' : 'are'} gone (${plain(gap.why)})`
  }));
  return <More summary={`${counted(total, 'line')} missing`} icon="warning" tone="warn" items={items} />;
}

function Notes({ head }: { head: Head }): VNode | null {
  if (head.notes.length === 0) {
    return null;
  }
  const warns = head.notes.some(({ level }) => level === 'warning' || level === 'error');
  const items = head.notes.map(({ time, text }, i) => ({ key: String(i), time, text: plain(text) }));
  return (
    <More
      summary={counted(items.length, 'note')}
      icon={warns ? 'warning' : 'queued'}
      tone={warns ? 'warn' : 'quiet'}
      items={items}
    />
  );
}

function Result({ head }: { head: Head }): VNode | null {
  const { result } = head;
  if (!result) {
    return null;
  }
  const names = result.names.map(plain);
  const shown = names.length > 6 ? [...names.slice(0, 6), `and ${names.length - 6} more`] : names;
  return (
    <>
      {names.length > 0 && (
        <Fact name="results" hint={names.join(', ')}>
          <bdi>{shown.join(', ')}</bdi>
          <span class="kf-fact-more">{bytes(result.bytes)}</span>
        </Fact>
      )}
      {result.errors.length > 0 && (
        <More
          summary={`${counted(result.errors.length, 'result')} could not be brought`}
          icon="warning"
          tone="warn"
          items={result.errors.map((text, i) => ({ key: String(i), time: null, text: plain(text) }))}
        />
      )}
    </>
  );
}
