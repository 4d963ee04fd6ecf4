import { type Carrier, copyBuffer } from './carrier';
import { serverStop } from './labserver';
import type { FeedMessage } from './protocol';
import { JobStore } from './store';
import { mountJobView } from './view/mount';

type Listener = (
  content: FeedMessage & { job?: string },
  buffers?: readonly (ArrayBuffer | ArrayBufferView)[]
) => void;

/** What this uses of a widget's model, as anywidget hands it out. */
export interface Model {
  get(name: string): unknown;
  on(event: 'msg:custom', listener: Listener): void;
  off(event: 'msg:custom', listener: Listener): void;
  send(content: unknown): unknown;
}

/**
 * A widget's custom messages as a carrier of the job `id`; those of a job that is not the widget's own say so. They say
 * nothing of a kernel that is gone: the store notices the silence.
 */
export function widgetCarrier(model: Model, id: string): Carrier {
  const stop = serverStop(id);
  const own = jobId(model);
  return {
    open: (receive, status) => {
      const listener: Listener = (content, buffers = []) => {
        if ((content.job ?? own) === id) {
          receive(content, buffers.map(copyBuffer));
        }
      };
      model.on('msg:custom', listener);
      status('open');
      return () => {
        model.off('msg:custom', listener);
      };
    },
    send: message => {
      void sendQuietly(model, id === own ? message : { ...message, job: id });
    },
    ...(stop && { stop })
  };
}

/** Whether it fails at once or later, a message that cannot be sent is dropped. */
async function sendQuietly(model: Model, message: unknown): Promise<void> {
  try {
    await model.send(message);
  } catch {
    // The kernel is gone or not there yet; the store says hello again.
  }
}

interface Open {
  store: JobStore;
  /** How many use it. */
  users: number;
}

/**
 * One store a widget. Every view of a widget gets another object for its model, so a model that is not known is known
 * by its job.
 */
const byModel = new WeakMap<Model, Open>();
const byJob = new Map<string, Open>();

function openStore(model: Model): { store: JobStore; release: () => void } {
  const id = jobId(model);
  let open = byModel.get(model) ?? byJob.get(id);
  if (!open || open.users === 0) {
    open = { store: new JobStore(widgetCarrier(model, id), id), users: 0 };
    byJob.set(id, open);
  }
  byModel.set(model, open);
  const used = open;
  used.users += 1;
  let released = false;
  return {
    store: used.store,
    release: () => {
      if (released) {
        return;
      }
      released = true;
      used.users -= 1;
      if (used.users === 0) {
        byModel.delete(model);
        byJob.delete(id);
        used.store.dispose();
      }
    }
  };
}

function jobId(model: Model): string {
  const id = model.get('job_id');
  return typeof id === 'string' ? id : '';
}

/** The widget: its store lives as long as the widget, its views come and go. */
export default {
  initialize({ model }: { model: Model }): () => void {
    return openStore(model).release;
  },
  render({ model, el }: { model: Model; el: HTMLElement }): () => void {
    const { store, release } = openStore(model);
    const unmount = mountJobView(el, store, {
      open: other => new JobStore(widgetCarrier(model, other), other)
    });
    return () => {
      unmount();
      release();
    };
  }
};
