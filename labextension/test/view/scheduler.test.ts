import { describe, expect, it } from 'vitest';

import { type Clock, Scheduler } from '../../src/jobview/view/plots/scheduler';

/** A page whose time moves by hand. */
class Page implements Clock {
  time = 0;
  #frame: (() => void) | null = null;
  #timers = new Map<number, { at: number; callback: () => void }>();
  #next = 0;

  now = (): number => this.time;

  frame = (callback: () => void): number => {
    this.#frame = callback;
    return 1;
  };

  cancelFrame = (): void => {
    this.#frame = null;
  };

  later = (callback: () => void, delay: number): ReturnType<typeof setTimeout> => {
    this.#next += 1;
    this.#timers.set(this.#next, { at: this.time + delay, callback });
    return this.#next;
  };

  cancelLater = (handle: ReturnType<typeof setTimeout>): void => {
    this.#timers.delete(handle);
  };

  get idle(): boolean {
    return this.#frame === null && this.#timers.size === 0;
  }

  /** One frame of 16 ms. */
  step(): void {
    this.time += 16;
    for (const [handle, { at, callback }] of [...this.#timers]) {
      if (at <= this.time) {
        this.#timers.delete(handle);
        callback();
      }
    }
    const frame = this.#frame;
    this.#frame = null;
    frame?.();
  }
}

describe('the scheduler', () => {
  it('draws the same thing at most four times a second', () => {
    const page = new Page();
    const scheduler = new Scheduler(page);
    const key = {};
    let drawn = 0;
    while (page.time < 2_000) {
      scheduler.request(key, () => {
        drawn += 1;
      });
      page.step();
    }
    expect(drawn).toBeGreaterThanOrEqual(7);
    expect(drawn).toBeLessThanOrEqual(9);
  });

  it('draws only as much in a frame as fits, and everything in the end', () => {
    const page = new Page();
    const scheduler = new Scheduler(page);
    const drawn: number[] = [];
    for (let i = 0; i < 20; i++) {
      scheduler.request({ i }, () => {
        page.time += 3;
        drawn.push(i);
      });
    }
    page.step();
    expect(drawn).toEqual([0, 1, 2]);
    for (let i = 0; i < 10; i++) {
      page.step();
    }
    expect(drawn).toHaveLength(20);
    expect(page.idle).toBe(true);
  });

  it('draws what has waited longest first', () => {
    const page = new Page();
    const scheduler = new Scheduler(page);
    const [one, two] = [{}, {}];
    const drawn: string[] = [];
    const slow = (name: string) => () => {
      page.time += 10;
      drawn.push(name);
    };
    scheduler.request(one, slow('one'));
    page.step();
    page.time += 300;
    scheduler.request(one, slow('one'));
    scheduler.request(two, slow('two'));
    page.step();
    expect(drawn).toEqual(['one', 'two']);
  });

  it('draws at once what the user asked for, and nothing that was called off', () => {
    const page = new Page();
    const scheduler = new Scheduler(page);
    const key = {};
    const drawn: string[] = [];
    scheduler.request(key, () => drawn.push('first'));
    page.step();
    scheduler.request(key, () => drawn.push('later'));
    scheduler.request(key, () => drawn.push('asked for'), true);
    page.step();
    expect(drawn).toEqual(['first', 'asked for']);
    scheduler.request(key, () => drawn.push('called off'), true);
    scheduler.cancel(key);
    page.step();
    scheduler.request(key, () => drawn.push('disposed'), true);
    scheduler.dispose();
    page.step();
    expect(drawn).toEqual(['first', 'asked for']);
  });
});
