import type { VNode } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { isTerminal } from '../../protocol';
import { useShared, useTopics } from '../context';
import { Card } from './card';
import { PlotTools } from './controls';
import type { Look } from './data';
import { Scheduler } from './scheduler';
import { type Line, groupTags, tagFilter } from './tags';

/** Plots that are shown before it is asked for. */
const SHOWN = 12;

let groups = 0;

/** A plot for each tag. */
export function Scalars({ focusTag }: { focusTag: { tag: string } | null }): VNode | null {
  const { store } = useShared();
  useTopics('head');
  const tags = useTags();
  const [look, setLook] = useState<Look>({ smoothing: 0, axis: 'step', log: false });
  const [filter, setFilter] = useState('');
  const [all, setAll] = useState(false);
  const [wide, setWide] = useState<ReadonlySet<string>>(new Set());
  const [group] = useState(() => `kf-${(groups += 1)}`);
  const scheduler = useMemo(() => new Scheduler(), []);
  useEffect(
    () => () => {
      scheduler.dispose();
    },
    [scheduler]
  );
  useEffect(() => {
    if (focusTag) {
      setFilter('');
      setAll(true);
    }
  }, [focusTag]);

  const { head } = store;
  const over = head !== null && isTerminal(head.phase);
  // A place that was kept free stays: what is below must not jump when the job ends without a scalar.
  const reserved = useRef(false);
  reserved.current ||= head !== null && !over;
  if (tags.size === 0) {
    return reserved.current || !head ? <Empty over={over} /> : null;
  }
  const wanted = tagFilter(filter);
  const found = [...tags].filter(([tag]) => wanted(tag));
  const shown = all ? found : found.slice(0, SHOWN);
  const origin = head?.started ?? firstWall(tags);
  return (
    <div class="kf-scalars-part">
      <PlotTools
        look={look}
        setLook={setLook}
        filter={filter}
        setFilter={setFilter}
        counts={{ found: found.length, all: tags.size }}
      />
      <div class="kf-scalars" role="group" aria-label="Scalars">
        {shown.map(([tag, lines]) => (
          <Card
            key={tag}
            tag={tag}
            lines={lines}
            look={look}
            origin={origin}
            group={group}
            scheduler={scheduler}
            wide={wide.has(tag)}
            setWide={on => {
              const next = new Set(wide);
              if (on) {
                next.add(tag);
              } else {
                next.delete(tag);
              }
              setWide(next);
            }}
            focus={focusTag?.tag === tag ? focusTag : null}
          />
        ))}
        {found.length === 0 && <p class="kf-quiet">No scalar is called like that.</p>}
      </div>
      {found.length > SHOWN && (
        <button
          type="button"
          class="kf-button kf-show-all"
          aria-expanded={all}
          onClick={() => {
            setAll(!all);
          }}
        >
          {all ? `Show only ${SHOWN}` : `Show all ${found.length}`}
        </button>
      )}
    </div>
  );
}

/** Where plots will be, or why there are none. */
function Empty({ over }: { over: boolean }): VNode {
  return (
    <div class="kf-scalars-part">
      <div class="kf-part-bar">
        <h3>Scalars</h3>
      </div>
      <div class="kf-scalars-empty" role="group" aria-label="Scalars">
        <svg viewBox="0 0 120 40" aria-hidden="true">
          <path d="M2 6c14 22 26 26 44 27s40 3 72 4" />
        </svg>
        <p>{over ? 'This job logged no scalars.' : 'No scalars yet.'}</p>
        <p class="kf-quiet">
          <code>kf.log(step, loss=loss)</code> or <code>SummaryWriter(kf.logdir())</code> in the cell plots
          them here.
        </p>
      </div>
    </div>
  );
}

/** The plots, made anew only where a line was added: points are the cards' own matter. */
function useTags(): ReadonlyMap<string, Line[]> {
  const { store, watch } = useShared();
  const [tags, setTags] = useState<ReadonlyMap<string, Line[]>>(() => groupTags(store.curves.values()));
  const known = useRef('');
  useEffect(() => {
    const look = (): void => {
      const curves = [...store.curves.values()];
      const key = curves.map(({ sid }) => sid).join('\n');
      const same = key === known.current && curves.every(curve => lookUp.get(curve.sid) === curve);
      if (!same) {
        known.current = key;
        lookUp.clear();
        curves.forEach(curve => lookUp.set(curve.sid, curve));
        setTags(groupTags(curves));
      }
    };
    const lookUp = new Map<string, unknown>();
    look();
    return watch.on('curves', look);
  }, [store, watch]);
  return tags;
}

function firstWall(tags: ReadonlyMap<string, Line[]>): number {
  const firsts = [...tags.values()].flatMap(lines => lines.map(({ curve }) => curve.walls[0] ?? Infinity));
  const first = Math.min(...firsts);
  return Number.isFinite(first) ? first : 0;
}
