"""``%%kftrain``: the cell below becomes a job."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kfnb import portal
from kfnb.api import Prepared, prepare_cell
from kfnb.errors import UsageError
from kfnb.job import Job
from kfnb.magics import attended, line
from kfnb.magics.waiting import show, show_detached
from kfnb.options import help_text, parse_train
from kfnb.views import words
from kfnb.views.interrupt import blocking, interruptible, submitted


def kftrain(shell: Any, text: str, body: str) -> Job | None:
    """The form for a cell that cannot await, and for a call from code."""
    return blocking(_train(shell, text, body))


def kftrain_awaiting(shell: Any, text: str, body: str) -> Coroutine[Any, Any, Job | None]:
    return _train(shell, text, body)


def kftrain_misplaced(shell: Any, text: str) -> None:
    raise UsageError(
        "%%kftrain has to be the first line of its cell, with two % signs.",
        "Where something stands above it, a comment is enough, the cell is ordinary code to IPython.",
        "Move what is above it below it, or into a cell of its own.",
    )


async def _train(shell: Any, text: str, body: str) -> Job | None:
    joined, first_line = line.join(text)
    if joined in ("--help", "-h", "?"):
        print(help_text())
        return None
    given = parse_train(line.expand(joined, shell.user_ns))
    if not body.strip():
        raise UsageError("The cell has nothing below %%kftrain.", fix="Write the training code there.")
    work = prepare_cell(
        body,
        given,
        first_line=first_line,
        namespace=shell.user_ns,
        history=list(shell.history_manager.input_hist_raw),
        notebook=attended.notebook_path(shell),
        cell_id=attended.cell_id(shell),
    )
    return await start(shell, await interruptible(work))


async def start(shell: Any, prepared: Prepared) -> Job | None:
    """Show what would be run, or start it and wait for it, as its options say."""
    spec = prepared.spec
    if spec.dry_run:
        print("\n".join([*(f"Note: {note}" for note in prepared.notes), await portal.wait(prepared.dry_run())]))
        return None
    lives_until = None if spec.detach else attended.until()
    job = await submitted(
        prepared.submit(lives_until), lambda id: words.detached(id, until_kernel_ends=lives_until is not None)
    )
    if not spec.detach:
        return await show(shell, job, notes=prepared.notes, lives_until=lives_until)
    for note in prepared.notes:
        print(f"Note: {note}")
    print(f"{job.id} runs on its own. {words.how_to(job.id)}")
    await show_detached(shell, job)
    return job
