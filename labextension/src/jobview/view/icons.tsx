import type { VNode } from 'preact';

/** Drawn in a square of 16; lines have the colour of the text. */
const SHAPES = {
  waiting: 'M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 0 0 0-11M8 5v3.2l2 1.6',
  queued: 'M3 4.5h10M3 8h10M3 11.5h6',
  running: 'M5 3.2v9.6l8-4.8z',
  restarting: 'M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3',
  stopping: 'M4 4h8v8H4z',
  succeeded: 'M3 8.5l3.4 3.5L13 4.5',
  failed: 'M4 4l8 8M12 4l-8 8',
  stopped: 'M4 4h8v8H4z',
  lost: 'M6 6a2 2 0 1 1 2.6 1.9c-.5.2-.6.6-.6 1.1v.5M8 12v.2',
  copy: 'M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z',
  script: 'M6 4L2.5 8L6 12M10 4l3.5 4L10 12',
  stacks: 'M8 2.5l5.5 3L8 8.5l-5.5-3zM2.5 8.5l5.5 3l5.5-3M2.5 11l5.5 3l5.5-3',
  close: 'M4.5 4.5l7 7M11.5 4.5l-7 7',
  expand: 'M9.5 2.5h4v4M6.5 13.5h-4v-4M13.5 2.5l-4.5 4.5M2.5 13.5l4.5-4.5',
  shrink: 'M13 7h-4V3M3 9h4v4M9 7l4.5-4.5M7 9l-4.5 4.5',
  warning: 'M8 2.5l6 11H2zM8 6.5v3M8 11.5v.2',
  up: 'M4 10l4-4l4 4',
  down: 'M4 6l4 4l4-4',
  follow: 'M8 2.5v8M4.5 7.5L8 11l3.5-3.5M3.5 13.5h9',
  search: 'M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 0 0 0-9M10.3 10.3l3.2 3.2',
  clock: 'M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 0 0 0-11M8 5v3.2l2 1.6',
  back: 'M9.5 3.5L5 8l4.5 4.5',
  reset: 'M3 8a5 5 0 1 0 1.6-3.7M3 2.5v3h3'
} as const;

export type IconName = keyof typeof SHAPES;

const FILLED: ReadonlySet<string> = new Set<IconName>(['running', 'stopping', 'stopped']);

/** An icon beside a word or in a button that has a name. */
export function Icon({ name }: { name: IconName }): VNode {
  return (
    <svg class="kf-icon" data-icon={name} viewBox="0 0 16 16" aria-hidden="true">
      <path d={SHAPES[name]} fill={FILLED.has(name) ? 'currentColor' : 'none'} />
    </svg>
  );
}
