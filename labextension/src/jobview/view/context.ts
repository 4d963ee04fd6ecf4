import { createContext } from 'preact';
import { useContext, useEffect, useReducer } from 'preact/hooks';

import type { Topic } from '../notifier';
import type { JobStore } from '../store';
import type { Theme } from './theme';
import type { Watch } from './watch';

/** A short message about what the user did. Errors stay until they are dismissed. */
export interface Said {
  text: string;
  error?: boolean;
}

/** What every part of the view needs. */
export interface Shared {
  store: JobStore;
  watch: Watch;
  theme: Theme;
  say: (said: Said) => void;
}

export const SharedContext = createContext<Shared | null>(null);

export function useShared(): Shared {
  const shared = useContext(SharedContext);
  if (!shared) {
    throw new Error('A part of the job view was used outside of it.');
  }
  return shared;
}

/** Draw this part again when the store tells of one of the topics. */
export function useTopics(...topics: Topic[]): void {
  const { watch } = useShared();
  const redraw = useRedraw();
  useEffect(() => {
    const unsubscribe = topics.map(topic => watch.on(topic, redraw));
    return () => {
      unsubscribe.forEach(stop => {
        stop();
      });
    };
  }, [watch, topics.join()]);
}

/** Draw this part again every second while `running`. */
export function useTicks(running: boolean): void {
  const { watch } = useShared();
  const redraw = useRedraw();
  useEffect(() => {
    if (!running) {
      return undefined;
    }
    const timer = setInterval(() => {
      if (watch.visible) {
        redraw();
      }
    }, 1_000);
    return () => {
      clearInterval(timer);
    };
  }, [running, watch]);
}

export function useRedraw(): () => void {
  const [, redraw] = useReducer<number, undefined>(number => number + 1, 0);
  return redraw as () => void;
}
