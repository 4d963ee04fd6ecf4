"""The form in a notebook's cell: one output, renewed while the job runs, and at the end the one that stays."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from kfnb.events import JobEvent
from kfnb.record import Record
from kfnb.state import JobState
from kfnb.views import html, text
from kfnb.views.words import Line

RECORD_TYPE = "application/vnd.kfnb.record+json"

#: Log lines and characters shown while the job runs, and those that stay in the saved notebook.
LIVE = {"head": 0, "tail": 30, "budget": 8_000}
FINAL = {"head": 50, "tail": 200, "budget": 40_000}

#: A record's values are kept in the notebook up to this size, in characters of JSON.
VALUES_LIMIT = 32_000

#: Seconds between two looks where only the time has changed.
_CLOCK = 1.0


class NotebookView:
    """``period``: shortest time between two updates in seconds (watch.PERIOD is the floor)."""

    def __init__(self, title: str, *, notes: Sequence[str] = (), period: float = 0.0) -> None:
        self.title = title
        self.footer = [Line("info", note) for note in notes]
        self._period = period
        self._handle: Any = None
        self._shown = ""
        self._changed = True
        self._last = 0.0

    def batch(self, state: JobState, events: Sequence[JobEvent]) -> None:
        self._changed = True

    def look(self, state: JobState, now: float) -> None:
        since = time.monotonic() - self._last
        if since < self._period or (not self._changed and since < _CLOCK):
            return
        self._changed, self._last = False, time.monotonic()
        self._show(state, now, LIVE, {})

    def finish(self, state: JobState, footer: Sequence[Line], record: Record | None) -> None:
        """The form that stays: what a reader of the saved notebook finds, with no kernel."""
        self.footer += footer
        extra = {RECORD_TYPE: summary(record)} if record is not None else {}
        self._show(state, time.time(), FINAL, extra)

    def _show(self, state: JobState, now: float, bounds: dict[str, int], extra: dict[str, Any]) -> None:
        from IPython.display import display

        shown = text.render(state, self.title, now, footer=self.footer, **bounds)
        if shown == self._shown and not extra:
            return
        self._shown = shown
        page = html.render(state, self.title, now, footer=self.footer, **bounds)
        data = {"text/plain": shown, "text/html": page, **extra}
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
