import anywidget from './anywidget';

export type { Carrier, Status } from './carrier';
export { copyBuffer } from './carrier';
export { JobStore } from './store';
export { type ViewOptions, mountJobView } from './view/mount';
export default anywidget;
