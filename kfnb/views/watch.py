"""Following a job for a view: its stream is folded on the portal's loop, and the view looks now and then."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from kfnb import portal
from kfnb.events import Batch, JobEvent, LogLine
from kfnb.job import Job
from kfnb.state import JobState

#: Shortest time between two looks, in seconds.
PERIOD = 0.25


class View(Protocol):
    def batch(self, state: JobState, events: Sequence[JobEvent]) -> None:
        """``events`` have just been folded into ``state``; called on the portal's loop."""
        ...

    def look(self, state: JobState, now: float) -> None:
        """Show the present state; called at most every ``PERIOD``, and where nothing happens too, since time passes."""
        ...


async def watch(job: Job, view: View, state: JobState, *, rank: int | None = None) -> None:
    """Show ``job`` in ``view`` until its end, whichever loop this runs on, folding its stream into ``state``.

    Goes on from ``state.cursor``; with ``rank``, lines of other ranks are left out. Cancelling it stops the watching
    and does nothing to the job.
    """
    lock = threading.Lock()

    async def follow() -> None:
        async with contextlib.aclosing(job.astream(state.cursor)) as stream:  # type: ignore[type-var]
            async for batch in stream:
                if rank is not None:
                    batch = Batch(
                        [e for e in batch.events if not isinstance(e, LogLine) or e.rank == rank], batch.cursor
                    )
                with lock:
                    state.fold(batch)
                    view.batch(state, batch.events)

    following = asyncio.ensure_future(portal.wait(follow()))
    try:
        while not following.done():
            await asyncio.wait({following}, timeout=PERIOD)
            with lock:
                view.look(state, time.time())
        await following
    finally:
        following.cancel()
