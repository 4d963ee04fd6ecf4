import type { VNode } from 'preact';

import { type Head, isTerminal } from '../protocol';
import { plain } from '../text';
import { useShared, useTicks, useTopics } from './context';
import { count, duration, pace, percent } from './format';

/** How far the job is. The row keeps its place while the job may still tell. */
export function ProgressRow(): VNode | null {
  const { store } = useShared();
  useTopics('head');
  const { head } = store;
  const alive = !head || !isTerminal(head.phase);
  useTicks(alive && head?.progress !== null);
  if (!head?.progress && !alive) {
    return null;
  }
  const share = head?.progress?.total ? Math.min(head.progress.done / head.progress.total, 1) : null;
  const words = head ? progressWords(head, store.now()) : [];
  const known = share !== null;
  return (
    <div class="kf-progress" data-known={known} data-silent={typeof head?.progress?.silent === 'number'}>
      {head?.progress ? (
        <>
          <div
            class="kf-bar"
            role="progressbar"
            aria-label="Progress"
            aria-valuetext={words.join(', ')}
            {...(known && {
              'aria-valuemin': 0,
              'aria-valuemax': 100,
              'aria-valuenow': Math.round(share * 100)
            })}
          >
            <div class="kf-bar-done" style={{ transform: `scaleX(${share ?? 0})` }} />
          </div>
          <p class="kf-progress-words">
            {known && <strong>{percent(share)}</strong>}
            {words.map(word => (
              <bdi key={word}>{word}</bdi>
            ))}
          </p>
        </>
      ) : (
        <>
          <div class="kf-bar" />
          <p class="kf-progress-words">
            {head?.phase === 'Running' && (
              <span>
                How far it is: <code>for batch in kf.track(loader)</code> in the cell tells.
              </span>
            )}
          </p>
        </>
      )}
    </div>
  );
}

/** "640 of 1,000 steps", "2m 3s left", "0.12 s a step", "31% waiting for data". */
export function progressWords(head: Head, now: number): string[] {
  const { progress, pace: speed } = head;
  if (!progress) {
    return [];
  }
  const unit = plain(progress.unit) || 'step';
  const units = progress.total === 1 || unit.endsWith('s') ? unit : `${unit}s`;
  const done = count(Math.floor(progress.done));
  const words = [
    progress.total === null ? `${done} ${units}` : `${done} of ${count(progress.total)} ${units}`
  ];
  const age = Math.max(now - head.now, 0);
  if (progress.silent !== null) {
    words.push(`no progress for ${duration(progress.silent + age)}`);
  } else if (progress.eta !== null && !isTerminal(head.phase)) {
    words.push(`${duration(Math.max(progress.eta - age, 0))} left`);
  }
  if (speed) {
    const one = singular(unit);
    words.push(`${pace(speed.step)} ${/^(?!uni)[aeiou]/i.test(one) ? 'an' : 'a'} ${one}`);
    if (speed.wait !== null && speed.wait >= 0.005) {
      words.push(`${percent(speed.wait)} waiting for data`);
    }
    if (speed.rank !== null && head.nodes * head.procs > 1) {
      words.push(`slowest: rank ${speed.rank}`);
    }
  }
  return words;
}

/** "batches": "batch", "epochs": "epoch"; as the text form has it. */
function singular(unit: string): string {
  return unit.replace(/(?<=ch|sh)es$|(?<=[^s])s$/, '');
}
