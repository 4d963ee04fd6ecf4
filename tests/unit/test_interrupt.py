"""An interrupt ends the wait, never a submission that has begun, and is quiet."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from kfnb.errors import UsageError
from kfnb.job import Job
from kfnb.views.interrupt import Detached, blocking, interruptible, submitted


async def cancelled_once(started: threading.Event, work: asyncio.Task[object]) -> None:
    await asyncio.to_thread(started.wait)
    work.cancel()


async def test_before_the_start_nothing_is_left() -> None:
    started, ended = threading.Event(), threading.Event()

    async def prepare() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    task = asyncio.create_task(interruptible(prepare()))
    await cancelled_once(started, task)
    with pytest.raises(Detached, match="nothing was started"):
        await task
    assert await asyncio.to_thread(ended.wait, 60)


async def test_a_submission_is_finished_and_then_detached_from() -> None:
    started, go = threading.Event(), threading.Event()

    async def submit() -> Job:
        started.set()
        await asyncio.to_thread(go.wait)
        return Job("digits-ab12c", None)  # type: ignore[arg-type]

    task = asyncio.create_task(submitted(submit(), lambda id: f"{id} goes on"))
    await cancelled_once(started, task)
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(Detached, match="digits-ab12c goes on"):
        await task


def test_control_c_reaches_a_call_that_blocks() -> None:
    async def work() -> None:
        try:
            threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise Detached("digits-ab12c goes on") from None

    with pytest.raises(Detached, match="digits-ab12c goes on") as caught:
        blocking(work())
    assert caught.value._render_traceback_() == ["digits-ab12c goes on"]


def test_control_c_that_nobody_handles_is_an_interrupt() -> None:
    async def work() -> None:
        threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
        await asyncio.sleep(3600)

    with pytest.raises(KeyboardInterrupt):
        blocking(work())


def test_errors_and_results_pass_through() -> None:
    async def fails() -> None:
        raise UsageError("wrong")

    async def gives() -> int:
        return 3

    with pytest.raises(UsageError, match="wrong"):
        blocking(fails())
    assert blocking(gives()) == 3
