import { isRecord, readError } from './decode';
import { FeedError } from './protocol';

/**
 * How to stop the job `id` through JupyterLab's server, which answers while the kernel is busy; undefined in a page
 * that has no such server.
 */
export function serverStop(id: string): (() => Promise<void>) | undefined {
  const config = pageConfig();
  const base = config && serverAddress(config.baseUrl);
  if (!base) {
    return undefined;
  }
  const headers: Record<string, string> = {};
  if (typeof config.token === 'string' && config.token !== '') {
    headers.Authorization = `token ${config.token}`;
  }
  return async () => {
    const xsrf = cookie('_xsrf');
    const address = new URL(`kfnb/api/jobs/${encodeURIComponent(id)}/stop`, base);
    let response: Response;
    try {
      response = await fetch(address, {
        method: 'POST',
        credentials: 'same-origin',
        headers: xsrf === undefined ? headers : { ...headers, 'X-XSRFToken': xsrf }
      });
    } catch {
      throw new FeedError({
        what: `${id} was not stopped.`,
        why: 'Neither the kernel nor the Jupyter server answered.',
        fix: `When they can be reached again: %kf stop ${id}`
      });
    }
    if (!response.ok) {
      const body = await readJson(response);
      const said = isRecord(body) && typeof body.what === 'string' ? readError(body) : undefined;
      throw new FeedError(
        said ?? {
          what: `${id} was not stopped.`,
          why: `The kernel did not answer, and the Jupyter server refused (${response.status}).`,
          fix: `When the kernel is free, or in a terminal: kfnb stop ${id}`
        }
      );
    }
  };
}

function pageConfig(): Readonly<Record<string, unknown>> | undefined {
  const text = document.getElementById('jupyter-config-data')?.textContent ?? '';
  try {
    const config: unknown = JSON.parse(text);
    return isRecord(config) ? config : undefined;
  } catch {
    return undefined;
  }
}

/** The server's address, where it is the one that the page came from: no other gets the token. */
function serverAddress(base: unknown): URL | undefined {
  if (typeof base !== 'string') {
    return undefined;
  }
  try {
    const address = new URL(base.endsWith('/') ? base : `${base}/`, document.location.href);
    return address.origin === document.location.origin ? address : undefined;
  } catch {
    return undefined;
  }
}

function cookie(name: string): string | undefined {
  for (const pair of document.cookie.split(';')) {
    const [key, ...value] = pair.trim().split('=');
    if (key === name) {
      return value.join('=');
    }
  }
  return undefined;
}

async function readJson(response: Response): Promise<unknown> {
  try {
    return await response.json();
  } catch {
    return undefined;
  }
}
