import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';

import { addRenderer } from './renderer';
import { Connection } from './server';

/** The outputs of `%%kftrain` cells are jobs: followed over the server, whether their kernel lives or not. */
const plugin: JupyterFrontEndPlugin<void> = {
  id: 'kfnb:plugin',
  description: 'Training jobs made from notebook cells',
  autoStart: true,
  optional: [INotebookTracker],
  activate: (app: JupyterFrontEnd, tracker: INotebookTracker | null) => {
    const connection = new Connection(app.serviceManager.serverSettings);
    void app.restored.then(() => connection.served());
    tracker?.forEach(panel => {
      addRenderer(panel.content.rendermime, connection);
    });
    tracker?.widgetAdded.connect((_, panel) => {
      addRenderer(panel.content.rendermime, connection);
    });
  }
};

export default plugin;
