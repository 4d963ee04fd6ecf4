"""The live view as an anywidget: the feed's messages over the kernel's comm, for pages that have no other way.

Importing this takes anywidget and the built view with it: it is done when a view is shown, and raises ``OSError`` in a
checkout whose view has not been built.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
from traitlets import Unicode

from kfnb import portal
from kfnb.job import Job
from kfnb.views.feed import open_feed

if TYPE_CHECKING:
    from kfnb.views.feed import Subscriber

VIEW_TYPE = "application/vnd.jupyter.widget-view+json"

#: The view's module, made by the build from labextension/src/jobview.
MODULE = Path(__file__).parent / "static" / "jobview.js"


class JobWidget(anywidget.AnyWidget):
    """A job in a page. Nothing is read of the job, and nothing sent, until a page has said hello."""

    # more than one line: anywidget takes a text of one line for a path
    _esm = MODULE.read_text(encoding="utf-8") + "\n"
    job_id = Unicode().tag(sync=True)

    #: Whether a page has said anything: it shows the job.
    heard = False
    _subscriber: Subscriber | None = None
    _closed = False

    def __init__(self, job: Job) -> None:
        super().__init__(job_id=job.id)
        self._job = job
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
        if self._closed:
            return
        if self._subscriber is None:
            self._subscriber = open_feed(self._job).subscribe(self._publish)
        self._subscriber.receive(message)

    def _publish(self, header: dict[str, Any], buffers: list[bytes]) -> None:
        """Called on the portal's loop; the comm's messages may be sent from any thread."""
        try:
            self.send(header, buffers)
        except Exception:
            if self.comm is not None:  # else it was closed in the meantime, and nobody misses the message
                raise

    def _leave(self) -> None:
        self._closed = True
        if self._subscriber is not None:
            self._subscriber.close()
            self._subscriber = None
