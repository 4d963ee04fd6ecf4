"""Tests with real processes: none may be left when a test ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_for


def processes_of(home: Path) -> list[psutil.Process]:
    """The living processes whose $KFNB_HOME is `home`: supervisors, workers, ranks, kernels of this test."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.pid != os.getpid() and process.environ().get("KFNB_HOME") == str(home)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # gone, or another user's
            continue
    return found


@pytest.fixture(autouse=True)
def no_orphans(home: Path) -> Iterator[None]:
    """Fails a test that leaves a process behind, once it had time to end, and ends what is left."""
    yield
    try:
        wait_for(lambda: not processes_of(home), timeout=30, what="this test's processes to end")
    except AssertionError:
        left = processes_of(home)
        names = "\n".join(f"  {p.pid} {' '.join(p.cmdline())[:200]}" for p in left if p.is_running())
        for process in left:
            process.kill()
        pytest.fail(f"processes left behind:\n{names}", pytrace=False)
