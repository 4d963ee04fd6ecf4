import type { VNode } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';

import type { JobStore } from '../store';
import { errorSaid } from './actions';
import { Banner } from './banner';
import { type Said, type Shared, SharedContext, useShared, useTopics } from './context';
import { Facts } from './facts';
import { Failure } from './failure';
import { Header } from './header';
import { LogPane } from './log/pane';
import { Scalars } from './plots/scalars';
import { ProgressRow } from './progress';
import { Ranks } from './ranks';
import { Stacks } from './stacks';
import { type Theme, themeOf, watchTheme } from './theme';
import { Toast } from './toast';
import { Watch } from './watch';

interface Shown {
  store: JobStore;
  /** The job that this one repeats; its store lives while one can go back to it. */
  before: Shown | null;
}

export interface JobViewProps {
  first: JobStore;
  host: HTMLElement;
  open?: (id: string) => JobStore;
}

/** A job, and after "Run again" the job that repeats it, in the same place. */
export function JobView({ first, host, open }: JobViewProps): VNode {
  const [theme, setTheme] = useState<Theme>(() => themeOf(host));
  const [shown, setShown] = useState<Shown>({ store: first, before: null });
  const opened = useRef<JobStore[]>([]);
  useEffect(() => watchTheme(host, setTheme), [host]);
  useEffect(
    () => () => {
      opened.current.forEach(store => {
        store.dispose();
      });
    },
    []
  );
  const show = open
    ? (id: string): void => {
        const store = open(id);
        opened.current.push(store);
        setShown({ store, before: shown });
      }
    : undefined;
  const back = (): void => {
    if (shown.before) {
      opened.current = opened.current.filter(store => store !== shown.store);
      shown.store.dispose();
      setShown(shown.before);
    }
  };
  return (
    <Job
      key={shown.store.id}
      store={shown.store}
      theme={theme}
      show={show}
      before={shown.before && { id: shown.before.store.id, back }}
    />
  );
}

interface JobProps {
  store: JobStore;
  theme: Theme;
  show: ((id: string) => void) | undefined;
  before: { id: string; back: () => void } | null;
}

function Job({ store, theme, show, before }: JobProps): VNode {
  const watch = useMemo(() => new Watch(store), [store]);
  useEffect(
    () => () => {
      watch.dispose();
    },
    [watch]
  );
  const [said, say] = useState<Said | null>(null);
  const shared: Shared = useMemo(() => ({ store, watch, theme, say }), [store, watch, theme]);
  return (
    <SharedContext.Provider value={shared}>
      <Body said={said} show={show} before={before} />
    </SharedContext.Provider>
  );
}

function Body({ said, show, before }: Pick<JobProps, 'show' | 'before'> & { said: Said | null }): VNode {
  const { store, theme, say } = useShared();
  const root = useRef<HTMLElement>(null);
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const [focusTag, setFocusTag] = useState<{ tag: string } | null>(null);
  const [stacks, setStacks] = useState<ReadonlyMap<number, string> | 'asked' | null>(null);
  useTopics('head');
  useVisibility(root);
  const { head } = store;

  const askStacks = (): void => {
    setStacks('asked');
    store.stacks().then(setStacks, (error: unknown) => {
      setStacks(null);
      say(errorSaid(error));
    });
  };

  return (
    <section
      ref={root}
      class="kf-job"
      aria-label={`Job ${store.id}`}
      data-phase={head?.phase ?? ''}
      data-theme={theme.scheme}
      data-status={store.status}
      style={{ '--kf-bg': theme.background }}
    >
      <Header show={show} before={before} askStacks={askStacks} />
      {head || !store.gone ? (
        <>
          <Failure />
          <ProgressRow />
          <Facts showTag={setFocusTag} />
          {stacks && (
            <Stacks
              stacks={stacks}
              close={() => {
                setStacks(null);
              }}
            />
          )}
          <div class="kf-body">
            <div class="kf-figures">
              <Ranks chosen={chosen} choose={setChosen} />
              <Scalars focusTag={focusTag} />
            </div>
            <LogPane chosen={chosen} choose={setChosen} />
          </div>
        </>
      ) : null}
      <Banner />
      <Toast said={said} />
      <p class="kf-live kf-hidden" aria-live="polite">
        {head ? `Job ${head.phase}` : ''}
      </p>
    </section>
  );
}

/** Tell the store and the watch whether anybody can see the view. */
function useVisibility(root: { current: HTMLElement | null }): void {
  const { store, watch } = useShared();
  useLayoutEffect(() => {
    let onScreen = true;
    const decide = (): void => {
      const visible = onScreen && document.visibilityState === 'visible';
      if (visible !== watch.visible) {
        watch.visible = visible;
        store.setVisible(visible);
      }
    };
    const observer =
      typeof IntersectionObserver === 'function'
        ? new IntersectionObserver(
            entries => {
              onScreen = entries.at(-1)?.isIntersecting ?? true;
              decide();
            },
            { rootMargin: '100px' }
          )
        : null;
    if (root.current) {
      observer?.observe(root.current);
    }
    document.addEventListener('visibilitychange', decide);
    decide();
    return () => {
      observer?.disconnect();
      document.removeEventListener('visibilitychange', decide);
    };
  }, [store, watch, root]);
}
