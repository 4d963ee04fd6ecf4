import type { VNode } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';

import { CUT, type LogLine, STDERR } from '../../protocol';
import { plain, spans } from '../../text';
import { copyText, errorSaid } from '../actions';
import { useShared } from '../context';
import { count, counted, timeOfDay } from '../format';
import { Icon } from '../icons';
import { Spans } from './row';

/** Characters of a line that are shown; all of them are copied. */
const SHOWN = 100_000;

/** All of one line, in as many rows as it needs. */
export function Detail({ line, close }: { line: LogLine; close: () => void }): VNode {
  const { store, theme, say } = useShared();
  const panel = useRef<HTMLDivElement>(null);
  const [text, setText] = useState<string | null>(null);
  const { index, flags, rank, time } = line;
  useEffect(() => {
    setText(null);
    if ((flags & CUT) === 0) {
      return undefined;
    }
    let current = true;
    store.log.whole(index).then(
      whole => {
        if (current) {
          setText(whole);
        }
      },
      (error: unknown) => {
        say(errorSaid(error));
      }
    );
    return () => {
      current = false;
    };
  }, [store, index, flags]);
  const whole = text ?? line.text;
  const copy = (): void => {
    copyText(plain(whole), panel.current?.getRootNode() ?? document).then(
      () => {
        say({ text: `Copied line ${count(index + 1)}.` });
      },
      (error: unknown) => {
        say(errorSaid(error));
      }
    );
  };
  const pending = (flags & CUT) !== 0 && text === null;
  return (
    <div
      ref={panel}
      class="kf-detail"
      role="region"
      aria-label={`Line ${index + 1}`}
      onKeyDown={event => {
        if (event.key === 'Escape') {
          event.stopPropagation();
          close();
        }
      }}
    >
      <div class="kf-panel-bar">
        <strong>Line {count(index + 1)}</strong>
        <span class="kf-quiet">
          {rank < 0 ? `node ${-1 - rank}` : `rank ${rank}`}
          {(flags & STDERR) !== 0 && ' · stderr'} · {timeOfDay(time, true)} ·{' '}
          {pending ? 'fetching the rest…' : counted(whole.length, 'character')}
          {whole.length > SHOWN && `, of which ${count(SHOWN)} are shown`}
        </span>
        <button type="button" class="kf-link" aria-label="Copy the line" disabled={pending} onClick={copy}>
          <Icon name="copy" />
          Copy
        </button>
        <button type="button" class="kf-plain" aria-label="Close the line" onClick={close}>
          <Icon name="close" />
        </button>
      </div>
      <div class="kf-detail-text" tabIndex={0} role="group" aria-label="Text of the line">
        <bdi>
          <Spans pieces={spans(whole.slice(0, SHOWN))} theme={theme} sought="" />
        </bdi>
      </div>
    </div>
  );
}
