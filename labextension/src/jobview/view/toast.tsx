import type { VNode } from 'preact';
import { useEffect, useState } from 'preact/hooks';

import { plain } from '../text';
import type { Said } from './context';
import { Icon } from './icons';

/** Milliseconds for which a message that is no error stays. */
const STAYS = 5_000;

/** What became of what the user did. It lies over the view, so that nothing moves. */
export function Toast({ said }: { said: Said | null }): VNode {
  const [hidden, setHidden] = useState<Said | null>(null);
  useEffect(() => {
    if (!said || said.error) {
      return undefined;
    }
    const timer = setTimeout(() => {
      setHidden(said);
    }, STAYS);
    return () => {
      clearTimeout(timer);
    };
  }, [said]);
  const shown = said !== hidden ? said : null;
  return (
    <div class="kf-said" role="status" data-error={shown?.error ?? false} hidden={!shown}>
      {shown && (
        <>
          <bdi>{plain(shown.text)}</bdi>
          <button
            type="button"
            class="kf-plain"
            aria-label="Dismiss"
            onClick={() => {
              setHidden(shown);
            }}
          >
            <Icon name="close" />
          </button>
        </>
      )}
    </div>
  );
}
