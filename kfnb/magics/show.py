"""``kfnb.show``: a job's live view, wherever it is called."""

from __future__ import annotations

import sys
import time
from typing import Any

from kfnb import portal
from kfnb.api import find
from kfnb.job import Job
from kfnb.magics import attended
from kfnb.record import Record
from kfnb.state import JobState
from kfnb.views import text
from kfnb.views.live import LiveView, open_widget
from kfnb.views.notebook import FINAL, NotebookView


def show(job: Job | str) -> Any:
    """Show a job, or the newest of this name, as it goes on, and do not wait for it. Raises ``NotFound``.

    In a notebook: the view that a page runs, also of a job that has ended. In marimo it is returned, to be the cell's
    output. Elsewhere the job is printed as it is now.
    """
    found = portal.call(find(job)) if isinstance(job, str) else job
    if _in_marimo():
        widget, note = open_widget(found)
        if widget is not None:
            return widget
        print(note)
    if not _in_notebook():
        print(text.render(portal.call(_state(found)), found.id, time.time(), **FINAL))
        return None
    record = portal.call(found.arecord())
    if attended.until() is None:
        ended = portal.call(found.ainfo()).phase.terminal
        view = LiveView(found, record)
        if not ended:
            view.show()
        view.stand(interactive=ended)
    else:
        portal.call(_show_once(found, record))
    return None


async def _state(job: Job) -> JobState:
    state = JobState()
    async for batch in job.astream(follow=False):
        state.fold(batch)
    return state


async def _show_once(job: Job, record: Record) -> None:
    await NotebookView(job.id).finish(await _state(job), [], record)


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None and not attended.in_terminal()


def _in_marimo() -> bool:
    marimo = sys.modules.get("marimo")
    return marimo is not None and bool(marimo.running_in_notebook())
