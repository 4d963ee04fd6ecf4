import type { Head, Phase, RankInfo } from '../protocol';
import type { IconName } from './icons';

/** What a phase looks like; `tone` names its colour in the style sheet. */
export const PHASES: Readonly<Record<Phase, { icon: IconName; tone: string }>> = {
  Submitting: { icon: 'waiting', tone: 'quiet' },
  Pending: { icon: 'waiting', tone: 'wait' },
  Queued: { icon: 'queued', tone: 'wait' },
  Running: { icon: 'running', tone: 'run' },
  Restarting: { icon: 'restarting', tone: 'warn' },
  Stopping: { icon: 'stopping', tone: 'warn' },
  Succeeded: { icon: 'succeeded', tone: 'good' },
  Failed: { icon: 'failed', tone: 'bad' },
  Stopped: { icon: 'stopped', tone: 'quiet' },
  Lost: { icon: 'lost', tone: 'bad' }
};

/** What a job waits for where its reason does not say it. */
export function waiting(head: Head): string {
  switch (head.phase) {
    case 'Submitting':
      return 'The job is being handed over.';
    case 'Pending':
      return 'Waiting for its processes to start.';
    case 'Queued':
      return 'Waiting in the queue until there is room.';
    case 'Stopping':
      return 'The ranks have a moment to save and end.';
    default:
      return '';
  }
}

export interface RankLook {
  /** In a word or two, for names and hints. */
  words: string;
  /** Told apart by shape. */
  mark: string;
  tone: string;
}

/** The signal by which a rank is asked to end. */
const SIGTERM = 15;

export function rankLook({ state, code }: Pick<RankInfo, 'state' | 'code'>): RankLook {
  if (state === 'running') {
    return { words: 'running', mark: '●', tone: 'run' };
  }
  if (state === 'starting') {
    return { words: 'starting', mark: '○', tone: 'wait' };
  }
  if (state !== 'exited') {
    return { words: state, mark: '?', tone: 'quiet' };
  }
  if (code === 0) {
    return { words: 'exited with code 0', mark: '✓', tone: 'good' };
  }
  if (code === null) {
    return { words: 'exited', mark: '–', tone: 'quiet' };
  }
  if (code === -SIGTERM || code === 128 + SIGTERM) {
    // It was told to: the job was stopped, or another rank had failed.
    return { words: 'ended on request', mark: '■', tone: 'quiet' };
  }
  const words = code < 0 ? `ended by signal ${-code}` : `exited with code ${code}`;
  return { words, mark: '✕', tone: 'bad' };
}
