"""Tests with real processes: none may be left when a test ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import processes_of
from tests.waiting import wait_for


@pytest.fixture(autouse=True)
def no_orphans(home: Path) -> Iterator[None]:
    """Fails a test that leaves a process behind, once it had time to end, and ends what is left."""
    yield
    try:
        wait_for(lambda: not processes_of(home), timeout=30, what="this test's processes to end")
    except AssertionError:
        names = []
        for process in processes_of(home):
            with contextlib.suppress(psutil.NoSuchProcess):
                names.append(f"  {process.pid} {' '.join(process.cmdline())[:200]}")
                process.kill()
        pytest.fail("\n".join(["processes left behind:", *names]), pytrace=False)
