import type { FeedMessage, ViewMessage } from './protocol';

/** Whether a feed can be reached. */
export type Status = 'connecting' | 'open' | 'lost';

/** What brings messages from a feed to a view and back. */
export interface Carrier {
  /**
   * Start; `receive` gets every message, `status` says whether the other side can be reached. Returns how to stop.
   *
   * The store says hello at each `open`, so a carrier that has connected again says `open` again. Calls that wait for
   * their answer fail at `lost`.
   */
  open(
    receive: (message: FeedMessage, buffers: ArrayBuffer[]) => void,
    status: (status: Status) => void
  ): () => void;
  /** Send if that is possible now; what cannot be sent is dropped. */
  send(message: ViewMessage): void;
  /** Stop the job by another way where this one does not answer (Lab's server); absent where there is none. */
  stop?(): Promise<void>;
}

/** A buffer of its own: what a carrier gets may be a view into a larger one, at any offset. */
export function copyBuffer(buffer: ArrayBuffer | ArrayBufferView): ArrayBuffer {
  if (buffer instanceof ArrayBuffer) {
    return buffer;
  }
  const copy = new Uint8Array(buffer.byteLength);
  copy.set(new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength));
  return copy.buffer;
}
