/**
 * Where a list of many rows of one height stands. Browsers bound how high an element can be, so a long list's
 * scroll bar stands for it in proportion, while small movements still move by as many rows as they are high.
 */

/** Pixels of a row. */
export const ROW = 20;

/** Pixels that no browser cuts. */
export const HIGHEST = 8_000_000;

export interface Extent {
  /** Rows in all. */
  count: number;
  /** Pixels that can be seen. */
  view: number;
}

/** How high the list pretends to be. */
export function height({ count }: Extent): number {
  return Math.min(count * ROW, HIGHEST);
}

/** The largest first row, which shows the list's end. A first row may be a fraction. */
export function lastTop({ count, view }: Extent): number {
  return Math.max(count - view / ROW, 0);
}

/** The scroll position that belongs to a first row. */
export function position(top: number, extent: Extent): number {
  const last = lastTop(extent);
  if (!isScaled(extent)) {
    return Math.min(top, last) * ROW;
  }
  return (Math.min(top, last) / last) * (height(extent) - extent.view);
}

/** The first row after the user has scrolled from one position to another. */
export function scrolled(top: number, extent: Extent, from: number, to: number): number {
  const last = lastTop(extent);
  const end = height(extent) - extent.view;
  if (to <= 0) {
    return 0;
  }
  if (to >= end - 1) {
    return last;
  }
  if (!isScaled(extent)) {
    return Math.min(to / ROW, last);
  }
  // A wheel or a key moves less than two screens, a dragged thumb more.
  if (Math.abs(to - from) <= 2 * extent.view) {
    return Math.min(Math.max(top + (to - from) / ROW, 0), last);
  }
  return (to / end) * last;
}

/** The first row with which `row` can be seen, moved as little as possible; in the middle where it was far away. */
export function reveal(row: number, top: number, extent: Extent): number {
  const rows = extent.view / ROW;
  const last = lastTop(extent);
  let next = top;
  if (row < top - rows || row > top + 2 * rows) {
    next = row - rows / 2;
  } else if (row < top) {
    next = row;
  } else if (row + 1 > top + rows) {
    next = row + 1 - rows;
  }
  return Math.min(Math.max(next, 0), last);
}

function isScaled({ count }: Extent): boolean {
  return count * ROW > HIGHEST;
}
