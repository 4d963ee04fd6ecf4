import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

/**
 * The extension's root. It needs no service of JupyterLab and asks nothing of the server: its parts are
 * added to it, each of which must stand being absent.
 */
const plugin: JupyterFrontEndPlugin<void> = {
  id: 'kfnb:plugin',
  description: 'Training jobs made from notebook cells',
  autoStart: true,
  activate: () => undefined
};

export default plugin;
