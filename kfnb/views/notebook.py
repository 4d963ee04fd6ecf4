"""The static form in a notebook's cell: one output, renewed while the job runs, and at the end the one that stays."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from kfnb.events import JobEvent
from kfnb.record import Record
from kfnb.state import JobState
from kfnb.views import html, picture, text
from kfnb.views.words import Line

RECORD_TYPE = "application/vnd.kfnb.record+json"

#: Log lines and characters shown while the job runs, and those that stay in the saved notebook.
LIVE: dict[str, Any] = {"head": 0, "tail": 30, "budget": 8_000}
FINAL: dict[str, Any] = {"head": 50, "tail": 200, "budget": 40_000}

#: A record's values are kept in the notebook up to this size, in characters of JSON.
VALUES_LIMIT = 32_000

#: Seconds between two looks where only the time has changed.
_CLOCK = 1.0


class NotebookView:
    """``period``: shortest time between two updates in seconds (watch.PERIOD is the floor).

    ``record``, once it is known, is in the output from then on: by it, a page that has another way to the job shows it.
    """

    def __init__(self, title: str, *, notes: Sequence[str] = (), period: float = 0.0) -> None:
        self.title = title
        self.footer = [Line("info", note) for note in notes]
        self.record: Record | None = None
        self._lock: AbstractContextManager[Any] = contextlib.nullcontext()
        self._period = period
        self._handle: Any = None
        self._shown = ""
        self._changed = True
        self._last = 0.0
        self._prepared = False

    def batch(self, state: JobState, events: Sequence[JobEvent]) -> None:
        self._changed = True

    def look(self, state: JobState, now: float) -> None:
        since = time.monotonic() - self._last
        if since < self._period or (not self._changed and since < _CLOCK):
            return
        self._changed, self._last = False, time.monotonic()
        if len(state.series) and not self._prepared:
            self._prepared = True
            picture.prepare()
        footer = [*self.footer, *self._passing(now)]
        shown = text.render(state, self.title, now, footer=footer, **LIVE)
        if shown != self._shown:
            page = html.render(state, self.title, now, footer=footer, **LIVE)
            self._display({**self._view(), "text/html": page, "text/plain": shown})
        self._shown = shown

    async def finish(
        self, state: JobState, footer: Sequence[Line], record: Record | None, *, live: bool = False
    ) -> None:
        """The form that stays: what a reader of the saved notebook finds, with no kernel.

        ``live``: the view that a page runs stays in it.
        """
        self.footer += footer
        self.record = record or self.record
        with self._lock:
            scalars = picture.collect(state)
        png = await self._draw(scalars)
        with self._lock:
            now = time.time()
            shown = text.render(state, self.title, now, footer=self.footer, **FINAL)
            page = html.render(state, self.title, now, footer=self.footer, picture=png, **FINAL)
        image = {"image/png": base64.b64encode(png).decode()} if png is not None else {}
        self._display({**(self._view() if live else {}), "text/html": page, **image, "text/plain": shown})

    async def let_go(self, state: JobState, said: Line, record: Record | None) -> None:
        """Show that nobody waits any more; ``said`` says so."""
        await self.finish(state, [said], record)

    async def _draw(self, scalars: picture.Scalars) -> bytes | None:
        try:
            return await asyncio.to_thread(picture.draw, scalars)
        except asyncio.CancelledError:  # interrupted a second time: what there is has to do
            return None
        except Exception as problem:  # a picture that cannot be made is no reason to lose the job's end
            self.footer.append(Line("warning", f"The scalars could not be drawn: {problem}"))
            return None

    def _passing(self, now: float) -> Sequence[Line]:
        """What the footer says besides, until the end."""
        return ()

    def _view(self) -> dict[str, Any]:
        """What an output holds besides, so that a page can run the view."""
        return {}

    def _display(self, data: dict[str, Any]) -> None:
        from IPython.display import display

        if self.record is not None:
            data = {RECORD_TYPE: summary(self.record), **data}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


def summary(record: Record) -> dict[str, Any]:
    """What a shared notebook keeps of a job, so that it can be run again: id, options and small values."""
    values: dict[str, Any] = record.values
    if len(json.dumps(values)) > VALUES_LIMIT:
        values = {}
    return {
        "version": 1,
        "id": record.id,
        "created": record.created,
        "options": record.spec.changed(),
        "values": values,
        "bundle": record.bundle_sha256,
    }
