import type { VNode } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';

import { isTerminal } from '../protocol';
import { plain } from '../text';
import { copyText, errorSaid } from './actions';
import { useShared, useTicks, useTopics } from './context';
import { ago, clock, counted } from './format';
import { Icon, type IconName } from './icons';
import { PHASES, waiting } from './phases';

interface HeaderProps {
  show: ((id: string) => void) | undefined;
  before: { id: string; back: () => void } | null;
  askStacks: () => void;
}

/** What the job is, how it goes, and what can be done with it. */
export function Header({ show, before, askStacks }: HeaderProps): VNode {
  const { store } = useShared();
  useTopics('head');
  const { head } = store;
  const { icon, tone } = head ? PHASES[head.phase] : { icon: 'waiting' as const, tone: 'quiet' };
  const ranks = head ? head.nodes * head.procs : 0;
  return (
    <header class="kf-header">
      <div class="kf-title">
        <span class="kf-phase" data-tone={tone}>
          <Icon name={icon} />
          {head?.phase ?? (store.gone ? 'Gone' : 'Opening')}
        </span>
        <bdi class="kf-name" title={plain(head?.name ?? store.id)}>
          {plain(head?.name ?? '') || store.id}
        </bdi>
        {head && head.name !== store.id && <bdi class="kf-id">{store.id}</bdi>}
        {ranks > 0 && (
          <span class="kf-size">
            {counted(head?.nodes ?? 0, 'node')} × {counted(head?.procs ?? 0, 'rank')}
          </span>
        )}
        <Elapsed />
      </div>
      {(head ?? !store.gone) && <Buttons show={show} askStacks={askStacks} />}
      <div class="kf-second">
        <Reason />
        {before && (
          <button type="button" class="kf-link" onClick={before.back}>
            <Icon name="back" />
            previous: <bdi>{before.id}</bdi>
          </button>
        )}
      </div>
    </header>
  );
}

function Elapsed(): VNode {
  const { store } = useShared();
  const { head } = store;
  useTicks(head?.started !== null && head?.ended === null);
  const elapsed = store.elapsed();
  return (
    <span class="kf-elapsed" role="timer" aria-live="off" aria-label="Elapsed">
      {elapsed === null ? '–:––' : clock(elapsed)}
    </span>
  );
}

function Reason(): VNode | null {
  const { store } = useShared();
  const { head } = store;
  if (!head) {
    return store.gone ? null : <p class="kf-reason">Looking for the job…</p>;
  }
  if (head.failure) {
    return null;
  }
  return (
    <p class="kf-reason">
      <bdi>{plain(head.reason) || waiting(head)}</bdi>
    </p>
  );
}

function Buttons({ show, askStacks }: Pick<HeaderProps, 'show' | 'askStacks'>): VNode {
  const { store, say } = useShared();
  const bar = useRef<HTMLDivElement>(null);
  const [busy, setBusy] = useState(false);
  const { head } = store;
  const over = head !== null && isTerminal(head.phase);
  const runs = head?.phase === 'Running' || head?.phase === 'Restarting';

  const again = (): void => {
    setBusy(true);
    store.again().then(
      id => {
        setBusy(false);
        if (show) {
          show(id);
        } else {
          say({ text: `Started again as ${id}.` });
        }
      },
      (error: unknown) => {
        setBusy(false);
        say(errorSaid(error));
      }
    );
  };

  const script = (): void => {
    store
      .script()
      .then(async ({ text, filename }) => {
        await copyText(text, bar.current?.getRootNode() ?? document);
        say({ text: `Copied. Save it as ${filename}.` });
      })
      .catch((error: unknown) => {
        say(errorSaid(error));
      });
  };

  return (
    <div class="kf-buttons" ref={bar}>
      {runs && <Button icon="stacks" name="Stacks" hint="Where every rank is in its code" act={askStacks} />}
      <Button icon="script" name="Copy as script" hint="A script that runs the same job" act={script} />
      {over || !head ? (
        <Button icon="restarting" name="Run again" busy={busy} disabled={!over} act={again} />
      ) : (
        <StopButton />
      )}
    </div>
  );
}

/** Shows at once that it was pressed; a second press says what the job is waiting for. */
function StopButton(): VNode {
  const { store, say } = useShared();
  const [pressed, setPressed] = useState<number | null>(null);
  const stopping = store.head?.phase === 'Stopping';
  useEffect(() => {
    if (stopping) {
      setPressed(time => time ?? performance.now());
    }
  }, [stopping]);

  const stop = (): void => {
    if (pressed !== null) {
      const when = ago((performance.now() - pressed) / 1_000);
      say({
        text: `Stop was asked for ${when}. The ranks have a moment to save and end; then they are ended.`
      });
      return;
    }
    setPressed(performance.now());
    store.stop().catch((error: unknown) => {
      setPressed(null);
      say(errorSaid(error));
    });
  };

  return (
    <button type="button" class="kf-button" data-tone="bad" aria-busy={pressed !== null} onClick={stop}>
      <Icon name="stopping" />
      <span class="kf-hidden">Stop</span>
      <span class="kf-word" aria-hidden="true">
        {pressed === null ? 'Stop' : 'Stopping…'}
      </span>
    </button>
  );
}

interface ButtonProps {
  icon: IconName;
  name: string;
  hint?: string;
  busy?: boolean;
  disabled?: boolean;
  act: () => void;
}

function Button({ icon, name, hint, busy = false, disabled = false, act }: ButtonProps): VNode {
  return (
    <button
      type="button"
      class="kf-button"
      aria-label={name}
      title={hint ?? name}
      aria-busy={busy}
      disabled={disabled || busy}
      onClick={act}
    >
      <Icon name={icon} />
      <span class="kf-word">{name}</span>
    </button>
  );
}
