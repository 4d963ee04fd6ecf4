import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Panel, Widget } from '@lumino/widgets';

import { JobStore, mountJobView } from './jobview';
import type { Connection } from './server';

export const RECORD = 'application/vnd.kfnb.record+json';
export const WIDGET = 'application/vnd.jupyter.widget-view+json';

/** What can be a job's id: nothing else that a notebook says is asked for. */
const ID = /^[a-z0-9][-a-z0-9]{0,99}$/;

/** Before the widget, whose rank is -10: the server shows the job whether there is a kernel or not. */
const RANK = -100;

/** Have `rendermime` show the outputs of `%%kftrain` as jobs, over the server. */
export function addRenderer(rendermime: IRenderMimeRegistry, connection: Connection): void {
  rendermime.addFactory(
    {
      // what a stranger's notebook says is not looked up before it is trusted
      safe: false,
      mimeTypes: [RECORD],
      createRenderer: () => new JobOutput(rendermime, connection)
    },
    RANK
  );
}

/** How an output is shown: as it was saved until the job's first picture is there, live, or by what else it holds. */
type Form = 'saved' | 'live' | 'other';

/** One output of a cell. */
export class JobOutput extends Panel implements IRenderMime.IRenderer {
  readonly #rendermime: IRenderMimeRegistry;
  readonly #connection: Connection;
  #id: string | null = null;
  #form: Form = 'saved';
  #model: IRenderMime.IMimeModel | null = null;
  /** Of the saved or other form: what it was made from. */
  #made = '';
  #seen: IntersectionObserver | null = null;
  #release: (() => void) | null = null;

  constructor(rendermime: IRenderMimeRegistry, connection: Connection) {
    super();
    this.#rendermime = rendermime;
    this.#connection = connection;
    this.addClass('kfnb-JobOutput');
  }

  /** Called for each update of the output; the same job stays as it is shown. */
  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.#model = model;
    const id = jobId(model.data[RECORD]);
    if (id !== this.#id || id === null) {
      this.#end();
      this.#id = id;
      this.#form = id === null ? 'other' : 'saved';
      this.#made = '';
      if (id !== null) {
        this.#whenSeen(id);
      }
    }
    if (this.#form !== 'live') {
      await this.#showForm(this.#form);
    }
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.#end();
      super.dispose();
    }
  }

  #end(): void {
    this.#seen?.disconnect();
    this.#release?.();
    this.#seen = this.#release = null;
  }

  /** A notebook may hold a hundred runs: only those that are looked at are asked for. */
  #whenSeen(id: string): void {
    this.#seen = new IntersectionObserver(
      entries => {
        if (entries.some(entry => entry.isIntersecting)) {
          this.#seen?.disconnect();
          void this.#open(id);
        }
      },
      { rootMargin: '300px' }
    );
    this.#seen.observe(this.node);
  }

  async #open(id: string): Promise<void> {
    const served = await this.#connection.served();
    if (this.isDisposed || this.#id !== id) {
      return;
    }
    if (!served) {
      this.#fallBack();
      return;
    }
    const open = (other: string): JobStore => new JobStore(this.#connection.carrier(other), other);
    const store = open(id);
    const unsubscribe = store.subscribe('head', () => {
      if (store.head) {
        unsubscribe();
        this.#showLive(store, open);
      } else if (store.gone) {
        this.#fallBack();
      }
    });
    this.#release = () => {
      unsubscribe();
      store.dispose();
    };
  }

  #showLive(store: JobStore, open: (id: string) => JobStore): void {
    const live = new Widget();
    const unmount = mountJobView(live.node, store, { open });
    const release = this.#release;
    this.#release = () => {
      unmount();
      release?.();
    };
    this.#form = 'live';
    this.#replace(live);
  }

  #fallBack(): void {
    this.#end();
    this.#form = 'other';
    this.#made = '';
    void this.#showForm('other');
  }

  /** The saved form is text and a picture; the other one is the kernel's widget, where the output has it. */
  async #showForm(form: Form): Promise<void> {
    const model = this.#model;
    if (!model) {
      return;
    }
    const widget = form === 'other' && WIDGET in model.data && this.#rendermime.mimeTypes.includes(WIDGET);
    const mime = widget ? WIDGET : 'text/html' in model.data ? 'text/html' : 'text/plain';
    const made = `${mime} ${JSON.stringify(model.data[mime])}`;
    if (made === this.#made) {
      return;
    }
    this.#made = made;
    const renderer = this.#rendermime.createRenderer(mime);
    await renderer.renderModel(model);
    if (this.isDisposed || this.#made !== made || this.#form !== form) {
      renderer.dispose();
      return;
    }
    this.#replace(renderer);
  }

  #replace(widget: Widget): void {
    for (const old of [...this.widgets]) {
      old.dispose();
    }
    this.addWidget(widget);
  }
}

function jobId(record: unknown): string | null {
  const id = typeof record === 'object' && record !== null && 'id' in record ? record.id : null;
  return typeof id === 'string' && ID.test(id) ? id : null;
}
