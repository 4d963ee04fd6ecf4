import type { VNode } from 'preact';
import { useRef } from 'preact/hooks';

import { plainLines } from '../text';
import { copyText, errorSaid } from './actions';
import { useShared } from './context';
import { counted } from './format';
import { Icon } from './icons';

interface StacksProps {
  stacks: ReadonlyMap<number, string> | 'asked';
  close: () => void;
}

/** Where every rank is in its code; ranks that are at the same place are shown once. */
export function Stacks({ stacks, close }: StacksProps): VNode {
  const { say } = useShared();
  const panel = useRef<HTMLDivElement>(null);
  const groups = stacks === 'asked' ? [] : groupStacks(stacks);
  const copy = (): void => {
    const text = groups.map(group => `${group.name}\n${group.text}`).join('\n\n');
    copyText(text, panel.current?.getRootNode() ?? document).then(
      () => {
        say({ text: 'Copied the stacks.' });
      },
      (error: unknown) => {
        say(errorSaid(error));
      }
    );
  };
  return (
    <div
      ref={panel}
      class="kf-panel kf-stacks"
      role="region"
      aria-label="Stacks of the ranks"
      onKeyDown={event => {
        if (event.key === 'Escape') {
          close();
        }
      }}
    >
      <div class="kf-panel-bar">
        <strong>Stacks</strong>
        <span class="kf-quiet">
          {stacks === 'asked' ? 'Asking every rank…' : counted(groups.length, 'place', 'different places')}
        </span>
        <button
          type="button"
          class="kf-link"
          aria-label="Copy the stacks"
          onClick={copy}
          disabled={groups.length === 0}
        >
          <Icon name="copy" />
          Copy
        </button>
        <button type="button" class="kf-plain" aria-label="Close the stacks" onClick={close}>
          <Icon name="close" />
        </button>
      </div>
      {stacks !== 'asked' && groups.length === 0 && <p class="kf-quiet">No rank answered.</p>}
      {groups.map((group, i) => (
        <details key={group.name} open={i < 3}>
          <summary>{group.name}</summary>
          <pre tabIndex={0} role="region" aria-label={`Stack of ${group.name}`}>
            {group.text}
          </pre>
        </details>
      ))}
    </div>
  );
}

/** The different stacks, the rarest first: a rank that is alone somewhere is often why the others wait. */
export function groupStacks(stacks: ReadonlyMap<number, string>): { name: string; text: string }[] {
  const groups = new Map<string, number[]>();
  for (const [rank, text] of [...stacks].sort(([a], [b]) => a - b)) {
    const shown = plainLines(text).trimEnd();
    groups.set(shown, [...(groups.get(shown) ?? []), rank]);
  }
  return [...groups]
    .sort(([, a], [, b]) => a.length - b.length)
    .map(([text, ranks]) => ({ name: rankRanges(ranks), text }));
}

/** "Rank 3", "Ranks 0-3, 7". */
export function rankRanges(ranks: readonly number[]): string {
  const parts: string[] = [];
  for (let i = 0; i < ranks.length;) {
    let end = i;
    while (ranks[end + 1] === (ranks[end] ?? 0) + 1) {
      end += 1;
    }
    parts.push(end > i ? `${ranks[i] ?? ''}-${ranks[end] ?? ''}` : String(ranks[i]));
    i = end + 1;
  }
  return `${ranks.length === 1 ? 'Rank' : 'Ranks'} ${parts.join(', ')}`;
}
