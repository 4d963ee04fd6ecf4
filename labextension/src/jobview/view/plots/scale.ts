/** Smallest distance of an axis' ends, as a share of the larger: with less, a step between two ticks changes nothing. */
const LEAST = 1e-9;

/** An axis' ends, moved apart where they are the same or nearly so: by at least `room` where they are the same. */
export function apart(low: number, high: number, room = 0): [number, number] {
  const least = Math.max(Math.abs(low), Math.abs(high)) * LEAST;
  if (high - low > least) {
    return [low, high];
  }
  const more = Math.max(least, low === high ? room : 0);
  return [low - more, high + more];
}

/** Round numbers from `low` to `high`, at most about `most` of them, whatever their size. */
export function ticks(low: number, high: number, most: number): number[] {
  const count = Math.max(1, Math.floor(most));
  const rough = high / count - low / count; // the whole span may be beyond all numbers
  if (!(rough > 0)) {
    return [];
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5].find(times => times * power >= rough) ?? 10) * power;
  const found: number[] = [];
  for (let i = Math.ceil(low / step); found.length <= count; i += 1) {
    const tick = Number((i * step).toPrecision(12));
    const last = found.at(-1);
    if (tick > high || (last !== undefined && tick <= last)) {
      break;
    }
    if (tick >= low) {
      found.push(tick);
    }
  }
  return found;
}
