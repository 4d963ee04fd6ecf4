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

/** Powers of ten from `low` to `high`, which are above 0, with their double and fivefold where there is room. */
export function logTicks(low: number, high: number, most: number): number[] {
  const first = Math.floor(Math.log10(low));
  const last = Math.floor(Math.log10(high));
  const powers = last - Math.ceil(Math.log10(low)) + 1;
  const stride = Math.max(1, Math.ceil(powers / Math.max(1, Math.floor(most))));
  const times = 3 * (Math.log10(high) - Math.log10(low)) <= most ? [1, 2, 5] : [1];
  const found: number[] = [];
  for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride) {
    found.push(...times.map(time => Number(`${String(time)}e${String(power)}`)));
  }
  return found.filter(tick => tick >= low && tick <= high);
}
