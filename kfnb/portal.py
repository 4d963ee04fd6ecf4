"""The one background event loop of a process: the core is async, users see a plain sync API."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_pid: int | None = None


def loop() -> asyncio.AbstractEventLoop:
    """The loop, running in a daemon thread; started at first use, and again in a forked child."""
    global _loop, _pid
    with _lock:
        if _loop is None or _pid != os.getpid():
            _loop, _pid = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="kfnb", daemon=True).start()
        return _loop


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on the loop and wait. An interrupt cancels it and is raised here."""
    future = asyncio.run_coroutine_threadsafe(work, loop())
    while True:
        try:
            # short waits: a lock that is waited for without an end would hold an interrupt back
            return future.result(timeout=0.2)
        except concurrent.futures.TimeoutError:
            if future.done():
                return future.result()
        except BaseException:
            future.cancel()
            raise


async def wait(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on the portal's loop and await it from another loop. Cancelling the waiter cancels the work."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop()))


def iterate(stream: AsyncIterator[T]) -> Iterator[T]:
    """An async iterator as a plain one; leaving the loop over it closes it."""
    try:
        while True:
            try:
                yield call(_next(stream))
            except StopAsyncIteration:
                return
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            call(close())


async def _next(stream: AsyncIterator[T]) -> T:
    return await stream.__anext__()
