"""Interrupting: it ends the wait and never the job, and a submission is not cut in the middle."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kfnb import portal
from kfnb.errors import KfnbError
from kfnb.job import Job

T = TypeVar("T")


class Detached(KfnbError):
    """The user interrupted the wait; a job that was started goes on. Raised so that "Run all" halts here."""

    exit_code = 130

    def _render_traceback_(self) -> list[str]:
        return [self.what]


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a magic's coroutine where the cell cannot await. An interrupt cancels it, and what that raises is raised."""
    started: list[asyncio.Task[Any] | None] = []

    async def noted() -> T:
        started.append(asyncio.current_task())
        return await work

    future = asyncio.run_coroutine_threadsafe(noted(), portal.loop())
    try:
        return _result(future)
    except KeyboardInterrupt:
        if not started or started[0] is None:
            future.cancel()
            raise
        portal.loop().call_soon_threadsafe(started[0].cancel)
        try:
            return _result(future)
        except concurrent.futures.CancelledError:
            raise KeyboardInterrupt from None


def _result(future: concurrent.futures.Future[T]) -> T:
    while not future.done():
        # short waits: one without an end would hold an interrupt back
        concurrent.futures.wait([future], timeout=0.2)
    return future.result()


async def interruptible(work: Coroutine[Any, Any, T], said: str = "Interrupted: nothing was started.") -> T:
    """Await ``work`` of the portal's loop, which starts nothing; ``said`` is what an interrupt raises."""
    try:
        return await portal.wait(work)
    except asyncio.CancelledError:
        raise Detached(said) from None


async def submitted(work: Coroutine[Any, Any, Job], say: Callable[[str], str]) -> Job:
    """A submission that an interrupt does not cut in the middle: it is finished, and then detached from.

    ``say`` makes what is said from the job's id.
    """
    submission = asyncio.ensure_future(portal.wait(work))
    try:
        return await asyncio.shield(submission)
    except asyncio.CancelledError:
        job = await submission
        raise Detached(say(job.id)) from None
