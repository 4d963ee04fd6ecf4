"""Waiting for a job in a cell: show it, bring its results, and let go of it when interrupted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from kfnb import portal
from kfnb.events import Phase
from kfnb.job import Job, incomplete, raise_unless_succeeded
from kfnb.magics import attended
from kfnb.record import Record
from kfnb.state import JobState
from kfnb.views import words
from kfnb.views.interrupt import Detached, interruptible
from kfnb.views.notebook import NotebookView
from kfnb.views.terminal import TerminalView
from kfnb.views.watch import watch
from kfnb.views.words import Line

#: Seconds between two updates where nobody looks on: each one is work for the program that runs the notebook.
_UNATTENDED_PERIOD = 2.0

#: The release of ipykernel since which a cell that awaits lets the kernel answer a page.
_ANSWERING = (7,)

_View = NotebookView | TerminalView


async def show(shell: Any, job: Job, *, notes: Sequence[str] = (), lives_until: tuple[int, float] | None = None) -> Job:
    """Show ``job`` until its end and assign its results in the notebook.

    Raises ``JobFailed`` and its kin, ``Detached`` when interrupted, ``KfnbError`` where a result could not be brought.
    """
    view, state, record = _static_view(shell, job, notes), JobState(), None
    try:
        record = await portal.wait(job.arecord())
        if isinstance(view, NotebookView) and _answers():
            from kfnb.views.live import LiveView

            view = live = LiveView(job, record, notes=notes)
            state = await live.follow()
        else:
            if isinstance(view, NotebookView):
                view.record = record
            await watch(job, view, state)
        footer, missing = await _results(shell, job, state)
    except asyncio.CancelledError:
        raise await _let_go(view, state, job, record, lives_until) from None
    await _finish(view, state, footer, record)
    raise_unless_succeeded(job, state.phase, state.reason, state.failure)
    if missing:
        raise incomplete(job, missing)
    return job


async def show_detached(shell: Any, job: Job) -> None:
    """Show ``job`` and do not wait for it, where somebody sits before a page that can show it."""
    if getattr(shell, "kernel", None) is None or attended.in_terminal() or attended.until() is not None:
        return
    from kfnb.views.live import LiveView

    record = await interruptible(job.arecord(), f"Interrupted: {job.id} runs on its own.")
    view = LiveView(job, record)
    view.show()
    view.stand()


async def follow_log(shell: Any, job: Job, rank: int | None) -> None:
    """Show ``job`` until its end, with the lines of one rank or of all."""
    view, state = _static_view(shell, job, (), rank), JobState()
    try:
        await watch(job, view, state, rank=rank)
    except asyncio.CancelledError:
        raise await _let_go(view, state, job, None, None) from None
    await _finish(view, state, [], None)


def _static_view(shell: Any, job: Job, notes: Sequence[str], rank: int | None = None) -> _View:
    if getattr(shell, "kernel", None) is not None and not attended.in_terminal():
        return NotebookView(job.id, notes=notes, period=0.0 if attended.until() is None else _UNATTENDED_PERIOD)
    view = TerminalView(sys.stdout, job.id, rank=rank)
    view.finish(notes)
    return view


def _answers() -> bool:
    """Whether somebody looks on, and the kernel serves the messages of a page while this cell waits."""
    if attended.until() is not None or asyncio.get_running_loop() is portal.loop():
        return False
    from ipykernel._version import version_info

    return version_info[:1] >= _ANSWERING


async def _let_go(view: _View, state: JobState, job: Job, record: Record | None, lives_until: Any) -> Detached:
    said = words.detached(job.id, until_kernel_ends=lives_until is not None)
    # a terminal shows the exception right below; in a notebook the view is what stays
    if isinstance(view, NotebookView):
        await view.let_go(state, Line("info", said), record)
    else:
        view.finish()
    return Detached(said)


async def _finish(view: _View, state: JobState, footer: list[Line], record: Record | None) -> None:
    if isinstance(view, NotebookView):
        await view.finish(state, footer, record)
    else:
        view.finish([line.text for line in footer])


async def _results(shell: Any, job: Job, state: JobState) -> tuple[list[Line], dict[str, str]]:
    """Assign rank 0's values. Returns the sentences that say so, and why those are missing that did not come."""
    if state.phase is not Phase.SUCCEEDED:
        return [], {}
    values, errors = await portal.wait(job.aresults())
    shell.user_ns.update(values)
    footer = [Line("warning", words.clean(problem)) for problem in errors.values()]
    if values:
        total = f" ({words.size(state.result.bytes)})" if state.result else ""
        footer.insert(0, Line("info", f"Assigned in the notebook: {', '.join(values)}{total}"))
    return footer, errors
