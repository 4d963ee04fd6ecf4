import type { VNode } from 'preact';
import { useRef, useState } from 'preact/hooks';

import type { FailureInfo, Head } from '../protocol';
import { plain, plainLines } from '../text';
import { copyText, errorSaid } from './actions';
import { useShared, useTopics } from './context';
import { counted, sentence } from './format';
import { Icon } from './icons';

/** Lines of a traceback that are shown before it is asked for. */
const LINES = 12;

/** Why the job failed: the sentence first, then where, then the traceback. */
export function Failure(): VNode | null {
  const { store } = useShared();
  useTopics('head');
  const { head } = store;
  return head?.failure ? <Callout head={head} failure={head.failure} /> : null;
}

function Callout({ head, failure }: { head: Head; failure: FailureInfo }): VNode {
  const text = plain(failure.text);
  const reason = plain(head.reason);
  // The two often say the same; the longer one says more.
  const [longer, shorter] = reason.length > text.length ? [reason, text] : [text, reason];
  const same = longer.toLowerCase().includes(shorter.replace(/\.$/, '').toLowerCase());
  const where = place(failure);
  const traceback = plainLines(failure.traceback).trimEnd();
  return (
    <div class="kf-failure">
      <Icon name="failed" />
      <div class="kf-failure-body">
        <p class="kf-failure-text">
          <bdi class={same || reason === '' ? 'kf-reason' : ''}>{sentence(same ? longer : text)}</bdi>
        </p>
        {!same && reason !== '' && (
          <p class="kf-reason">
            <bdi>{reason}</bdi>
          </p>
        )}
        {where !== '' && <p class="kf-where">{where}</p>}
        {traceback !== '' && <Traceback text={traceback} />}
      </div>
    </div>
  );
}

export function place({ rank, node, line, cell_line: cellLine }: FailureInfo): string {
  const parts = [rank !== null ? `rank ${rank}` : '', node !== null ? `node ${node}` : ''];
  if (cellLine !== null) {
    parts.push(`line ${cellLine} of the cell`);
  } else if (line !== null) {
    parts.push(`line ${line} of the script`);
  }
  return parts.filter(Boolean).join(' · ');
}

/** A traceback's end says most: that is what is shown of a long one. */
function Traceback({ text }: { text: string }): VNode {
  const { say } = useShared();
  const [whole, setWhole] = useState(false);
  const block = useRef<HTMLPreElement>(null);
  const lines = text.split('\n');
  const long = lines.length > LINES;
  const shown = whole || !long ? text : lines.slice(-LINES).join('\n');
  const copy = (): void => {
    copyText(text, block.current?.getRootNode() ?? document).then(
      () => {
        say({ text: 'Copied the traceback.' });
      },
      (error: unknown) => {
        say(errorSaid(error));
      }
    );
  };
  return (
    <div class="kf-traceback">
      <div class="kf-traceback-bar">
        {long && (
          <button
            type="button"
            class="kf-link"
            aria-expanded={whole}
            onClick={() => {
              setWhole(!whole);
            }}
          >
            {whole ? `Only the last ${LINES} lines` : `Show all ${counted(lines.length, 'line')}`}
          </button>
        )}
        <button type="button" class="kf-link" aria-label="Copy the traceback" onClick={copy}>
          <Icon name="copy" />
          Copy
        </button>
      </div>
      <pre ref={block} tabIndex={0} role="region" aria-label="Traceback">
        {shown}
      </pre>
    </div>
  );
}
