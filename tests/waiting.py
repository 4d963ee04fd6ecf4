"""Waiting for what another process does: a condition with a deadline, never a fixed sleep.

    from tests.waiting import wait_for
    wait_for(lambda: job.phase == "Running", timeout=60, what="the job to run")
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL = 0.02


def wait_for(predicate: Callable[[], T], *, timeout: float, what: str) -> T:
    """Calls `predicate` until what it returns is true, and returns that.

    Raises AssertionError naming `what` and the last value after `timeout` seconds. An AssertionError that the
    predicate raises counts as "not yet" and is shown as the cause at the deadline; any other exception is
    raised at once.
    """
    pause = threading.Event()
    deadline = time.monotonic() + timeout
    while True:
        value: object
        cause: AssertionError | None = None
        try:
            found = predicate()
            if found:
                return found
            value = found
        except AssertionError as error:
            value, cause = error, error
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout:g} s for {what}; last seen: {value!r}") from cause
        pause.wait(_POLL)
