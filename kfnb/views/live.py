"""The live form in a notebook: a view that a page runs, and beside it the static form for all who cannot."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kfnb import portal
from kfnb.errors import KfnbError
from kfnb.job import Job
from kfnb.record import Record
from kfnb.state import JobState
from kfnb.views.feed import open_feed
from kfnb.views.notebook import NotebookView
from kfnb.views.words import Line, how_to

if TYPE_CHECKING:
    from kfnb.views.widget import JobWidget

#: Seconds between two renewals of the static form, while a cell waits, and of one that stands there by itself.
WAITING, STANDING = 2.0, 10.0

#: Seconds that a job has to say what it is before it is first shown: one that has ended is shown once, at its end.
_FIRST = 0.25

#: The views that stand by themselves: whoever started them keeps no reference.
_standing: set[concurrent.futures.Future[None]] = set()


class LiveView(NotebookView):
    """``job`` in one output of the cell that runs now."""

    def __init__(self, job: Job, record: Record, *, notes: Sequence[str] = ()) -> None:
        super().__init__(job.id, notes=notes)
        self.record = record
        self._feed = open_feed(job)
        self._lock = self._feed.lock
        self._job = job
        self._widget: JobWidget | None = None
        self._tried = False

    async def follow(self, period: float = WAITING) -> JobState:
        """Show the job until its end, on whichever loop this runs. Raises what reading the job raises."""
        ending = asyncio.ensure_future(portal.wait(self._feed.wait()))
        try:
            await asyncio.wait({ending}, timeout=_FIRST)
            while not ending.done():
                if self._widget is None or not self._widget.heard:
                    self.show()
                await asyncio.wait({ending}, timeout=period)
            return await ending
        finally:
            ending.cancel()

    def show(self) -> None:
        """Show the job as it is now."""
        with self._lock:
            self.look(self._feed.state, time.time())

    def stand(self, *, passing: Line | None = None, interactive: bool = False) -> None:
        """Go on by itself until the job's end; an ``interactive`` view stays one after it.

        ``passing`` is the sentence of the footer that no longer holds then.
        """

        async def to_the_end() -> None:
            with contextlib.suppress(KfnbError):  # the page says itself that the job is gone
                state = await self.follow(STANDING)
                self.footer = [line for line in self.footer if line != passing]
                await self.finish(state, [], self.record, live=interactive)

        standing = asyncio.run_coroutine_threadsafe(to_the_end(), portal.loop())
        _standing.add(standing)
        standing.add_done_callback(_standing.discard)

    async def let_go(self, state: JobState, said: Line, record: Record | None) -> None:
        await super().let_go(self._feed.state, said, record)
        self.stand(passing=said)

    async def finish(
        self, state: JobState, footer: Sequence[Line], record: Record | None, *, live: bool | None = None
    ) -> None:
        live = not state.phase.terminal if live is None else live
        if live and not self._tried:
            self._open()
        await super().finish(state, footer, record, live=live)
        if not live and self._widget is not None:
            self._widget.close()

    def look(self, state: JobState, now: float) -> None:
        if not self._tried:
            self._open()
        super().look(state, now)

    def _view(self) -> dict[str, Any]:
        return self._widget.bundle() if self._widget is not None else {}

    def _passing(self, now: float) -> Sequence[Line]:
        """A page that runs the view sees no more of this form, and a notebook that is saved meanwhile keeps it."""
        if self._widget is None:
            return ()
        then = time.strftime("%Y-%m-%d %H:%M", time.gmtime(now))
        return [Line("info", f"So it was at {then} UTC. {how_to(self._job.id)}")]

    def _open(self) -> None:
        self._tried = True
        self._widget, note = open_widget(self._job)
        if note:
            self.footer.append(Line("info", note))


def open_widget(job: Job) -> tuple[JobWidget | None, str]:
    """The job as a widget; else None, and a sentence that says why there is none."""
    try:
        from kfnb.views.widget import JobWidget

        return JobWidget(job), ""
    except ImportError as problem:
        return None, f"This is the static form of the view: {problem}."
    except OSError:
        return None, "This is the static form of the view: the interactive one is not built in this checkout."
