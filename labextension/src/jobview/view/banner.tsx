import type { VNode } from 'preact';
import { useEffect, useState } from 'preact/hooks';

import { plain } from '../text';
import { useShared, useTopics } from './context';
import { percent, sentence } from './format';
import { Icon } from './icons';

/** Milliseconds without a connection before that is said: most are back sooner. */
const PATIENCE = 1_500;

/** What is wrong between the view and the job. It lies over the view, so that nothing moves. */
export function Banner(): VNode | null {
  const { store } = useShared();
  useTopics('head');
  const apart = store.status !== 'open';
  const [long, setLong] = useState(false);
  useEffect(() => {
    setLong(false);
    if (!apart) {
      return undefined;
    }
    const timer = setTimeout(() => {
      setLong(true);
    }, PATIENCE);
    return () => {
      clearTimeout(timer);
    };
  }, [apart]);

  if (store.gone) {
    const { what, why, fix } = store.gone;
    return (
      <div class={store.head ? 'kf-banner' : 'kf-gone'} data-tone="bad" role="alert">
        <Icon name="warning" />
        <bdi>
          {[what, why, fix]
            .map(part => sentence(plain(part)))
            .filter(Boolean)
            .join(' ')}
        </bdi>
      </div>
    );
  }
  if (apart && (long || store.status === 'lost')) {
    return (
      <div class="kf-banner" data-tone="warn" role="status">
        <Icon name="restarting" />
        {store.status === 'lost'
          ? 'Connection lost; trying again. The job runs on.'
          : 'Connecting. It is not known yet how the job is.'}
      </div>
    );
  }
  const reading = store.head?.reading ?? null;
  if (reading !== null && reading < 1) {
    return (
      <div class="kf-banner" data-tone="quiet">
        <Icon name="waiting" />
        Reading the log: {percent(reading)}
        {store.preview && '. What is shown is its newest part.'}
      </div>
    );
  }
  return null;
}
