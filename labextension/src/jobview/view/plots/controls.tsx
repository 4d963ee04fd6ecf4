import type { VNode } from 'preact';

import { Icon } from '../icons';
import type { Look } from './data';
import type { Axis } from './tags';

interface ToolsProps {
  look: Look;
  setLook: (look: Look) => void;
  filter: string;
  setFilter: (text: string) => void;
  counts: { found: number; all: number };
}

const AXES: [Axis, string][] = [
  ['step', 'Step'],
  ['relative', 'Relative time'],
  ['wall', 'Wall time']
];

/** How all plots are drawn, above them. */
export function PlotTools({ look, setLook, filter, setFilter, counts }: ToolsProps): VNode {
  return (
    <div class="kf-part-bar kf-plot-tools">
      <h3>Scalars</h3>
      <label class="kf-search">
        <Icon name="search" />
        <input
          type="search"
          aria-label="Filter scalars"
          placeholder="Filter scalars"
          title="Letters of a tag, or a regular expression"
          value={filter}
          spellcheck={false}
          autocomplete="off"
          onInput={event => {
            setFilter(event.currentTarget.value);
          }}
          onKeyDown={event => {
            if (event.key === 'Escape') {
              setFilter('');
            }
          }}
        />
      </label>
      <span class="kf-quiet kf-number">
        {counts.found === counts.all ? counts.all : `${counts.found} of ${counts.all}`}
      </span>
      <span class="kf-grow" />
      <label class="kf-control">
        Smoothing
        <input
          type="range"
          aria-label="Smoothing"
          min="0"
          max="0.99"
          step="0.01"
          value={look.smoothing}
          onInput={event => {
            setLook({ ...look, smoothing: Number(event.currentTarget.value) });
          }}
        />
        <output class="kf-number">{look.smoothing.toFixed(2)}</output>
      </label>
      <label class="kf-control">
        <select
          aria-label="Horizontal axis"
          value={look.axis}
          onChange={event => {
            const axis = AXES.find(([value]) => value === event.currentTarget.value)?.[0];
            setLook({ ...look, axis: axis ?? 'step' });
          }}
        >
          {AXES.map(([value, name]) => (
            <option key={value} value={value}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <label class="kf-control">
        <input
          type="checkbox"
          checked={look.log}
          onChange={event => {
            setLook({ ...look, log: event.currentTarget.checked });
          }}
        />
        Log scale
      </label>
    </div>
  );
}
