"""The live view as an anywidget: the feed's messages over the kernel's comm, for pages that have no other way.

After "Run again" a view shows another job: its messages carry ``job``, that job's id, both ways.

Importing this takes anywidget and the built view with it: it is done when a view is shown, and raises ``OSError`` in a
checkout whose view has not been built.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
from traitlets import Unicode

from kfnb import portal
from kfnb.api import job_of
from kfnb.errors import KfnbError
from kfnb.job import Job
from kfnb.views.feed import open_feed

if TYPE_CHECKING:
    from kfnb.views.feed import Subscriber

VIEW_TYPE = "application/vnd.jupyter.widget-view+json"

#: The view's module, made by the build from labextension/src/jobview.
MODULE = Path(__file__).parent / "static" / "jobview.js"


#: Jobs that the views of one widget follow at a time.
JOBS = 64


class JobWidget(anywidget.AnyWidget):
    """A job in a page. Nothing is read of the job, and nothing sent, until a page has said hello."""

    # more than one line: anywidget takes a text of one line for a path
    _esm = MODULE.read_text(encoding="utf-8") + "\n"
    job_id = Unicode().tag(sync=True)

    #: Whether a page has said anything: it shows the job.
    heard = False
    _closed = False

    def __init__(self, job: Job) -> None:
        super().__init__(job_id=job.id)
        self._job = job
        self._subscribers: dict[str, Subscriber] = {}
        self.on_msg(self._received)

    def __repr__(self) -> str:
        return f"JobWidget({self.job_id!r})"

    def bundle(self) -> dict[str, Any]:
        """What a display holds so that a page shows this."""
        return {VIEW_TYPE: {"version_major": 2, "version_minor": 0, "model_id": self.model_id}}

    def close(self) -> None:
        super().close()
        portal.loop().call_soon_threadsafe(self._leave)

    def _received(self, _: Any, message: Any, __: Any) -> None:
        """Called by the kernel, in whichever thread serves its messages."""
        self.heard = True
        portal.loop().call_soon_threadsafe(self._deliver, message)

    def _deliver(self, message: Any) -> None:
        if self._closed or not isinstance(message, dict):
            return
        id = message.get("job", self._job.id)
        subscriber = self._subscribers.get(id) if isinstance(id, str) else None
        if subscriber is None:
            if message.get("type") not in ("hello", "call") or len(self._subscribers) >= JOBS:
                return
            try:
                subscriber = self._subscribe(id)
            except KfnbError:  # no page of ours asks for what cannot be a job
                return
        subscriber.receive(message)
        if id != self._job.id and message.get("type") == "bye":
            portal.loop().call_soon(self._left, id)

    def _left(self, id: str) -> None:
        """A view has said goodbye to another job than the widget's own: the last one closes it."""
        subscriber = self._subscribers.get(id)
        if subscriber is not None and not subscriber.has_views:
            self._subscribers.pop(id).close()

    def _subscribe(self, id: Any) -> Subscriber:
        own = id == self._job.id
        job = self._job if own else job_of(id)
        mark = {} if own else {"job": job.id}

        def publish(header: dict[str, Any], buffers: list[bytes]) -> None:
            self._publish({**header, **mark}, buffers)

        self._subscribers[job.id] = open_feed(job).subscribe(publish)
        return self._subscribers[job.id]

    def _publish(self, header: dict[str, Any], buffers: list[bytes]) -> None:
        """Called on the portal's loop; the comm's messages may be sent from any thread."""
        try:
            self.send(header, buffers)
        except Exception:
            if self.comm is not None:  # else it was closed in the meantime, and nobody misses the message
                raise

    def _leave(self) -> None:
        self._closed = True
        for subscriber in self._subscribers.values():
            subscriber.close()
        self._subscribers.clear()
