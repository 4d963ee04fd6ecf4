"""Which processes a test has started, however deep: they all have the test's $KFNB_HOME."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


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
