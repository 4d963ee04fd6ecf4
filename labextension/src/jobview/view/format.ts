/** Numbers, durations and times as a person reads them. */

export function count(value: number): string {
  return value.toLocaleString('en-US');
}

/** "1 line", "12,480 lines". */
export function counted(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A running clock: 0:42, 12:05, 1:02:33, 2d 03:04:05. */
export function clock(seconds: number): string {
  const whole = Math.max(Math.floor(seconds), 0);
  const days = Math.floor(whole / 86_400);
  const hours = Math.floor(whole / 3_600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  const two = (part: number): string => String(part).padStart(2, '0');
  if (days > 0) {
    return `${days}d ${two(hours)}:${two(minutes)}:${two(whole % 60)}`;
  }
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** The two largest parts of a duration: 8s, 2m 3s, 1h 4m, 3d 2h. */
export function duration(seconds: number): string {
  const whole = Math.max(Math.round(seconds), 0);
  const parts: [number, string][] = [
    [Math.floor(whole / 86_400), 'd'],
    [Math.floor(whole / 3_600) % 24, 'h'],
    [Math.floor(whole / 60) % 60, 'm'],
    [whole % 60, 's']
  ];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) {
    return '0s';
  }
  return parts
    .slice(first, first + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value}${unit}`)
    .join(' ');
}

/** What a step takes: 12 ms, 0.12 s, 3.4 s, 2m 3s. */
export function pace(seconds: number): string {
  if (seconds < 0.1) {
    const milliseconds = seconds * 1_000;
    return `${milliseconds < 10 ? milliseconds.toPrecision(2) : String(Math.round(milliseconds))} ms`;
  }
  if (seconds < 60) {
    return `${seconds < 1 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;
  }
  return duration(seconds);
}

export function ago(seconds: number): string {
  return seconds < 5 ? 'just now' : `${duration(seconds)} ago`;
}

export function percent(share: number): string {
  return `${Math.round(Math.min(Math.max(share, 0), 1) * 100)}%`;
}

export function bytes(size: number): string {
  const units = ['bytes', 'KB', 'MB', 'GB', 'TB'];
  let value = size;
  let unit = 0;
  while (value >= 1_000 && unit < units.length - 1) {
    value /= 1_000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit] ?? ''}`;
}

/** The local time of day of Unix seconds, with milliseconds where asked for. */
export function timeOfDay(seconds: number, precise = false): string {
  const date = new Date(seconds * 1_000);
  if (Number.isNaN(date.getTime())) {
    return '';
  }
  const two = (part: number): string => String(part).padStart(2, '0');
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return precise ? `${time}.${String(date.getMilliseconds()).padStart(3, '0')}` : time;
}

/** The local date and time of Unix seconds. */
export function moment(seconds: number): string {
  const date = new Date(seconds * 1_000);
  return Number.isNaN(date.getTime()) ? '' : date.toLocaleString();
}

/** A sentence with its full stop, so that sentences can follow one another. */
export function sentence(text: string): string {
  const trimmed = text.trim();
  return trimmed === '' || /[.!?…]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}
