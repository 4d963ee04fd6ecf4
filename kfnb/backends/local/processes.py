"""Processes: who they are beyond a number that is used again, what belongs to a job, and how to end all of it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

#: In the environment of every process of a job: its run directory. Finds what left its parents and its group.
MARK = "KFNB_RUN_DIR"

_SET_CHILD_SUBREAPER = 36


def here() -> dict[str, Any]:
    """This process, for others to recognise: {"pid", "started" (Unix seconds), "host", "boot"}."""
    pid = os.getpid()
    return {
        "pid": pid,
        "started": psutil.Process(pid).create_time(),
        "host": socket.gethostname(),
        "boot": boot(),
    }


def boot() -> str:
    """Names this start of the machine; the same until it is started again."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{psutil.boot_time() / 60:.0f}"  # to the minute: it moves a little whenever the clock is set


def find(pid: Any, started: Any) -> psutil.Process | None:
    """The living process with this pid and start time (Unix seconds, to 2 s); None where there is none any more."""
    try:
        process = psutil.Process(int(pid))
        if abs(process.create_time() - float(started)) < 2 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    except (psutil.Error, TypeError, ValueError, OverflowError):
        pass
    return None


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parents end, so that it can find and end them (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def belonging(run_dir: Path, roots: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
    """The living processes of a job but this one: ``roots``, what is marked with its directory, and their children."""
    found: dict[int, psutil.Process] = {process.pid: process for process in roots}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(run_dir):
                found[process.pid] = process
        except (psutil.Error, OSError):
            continue  # gone, or another user's
    for process in list(found.values()):
        try:
            found.update((child.pid, child) for child in process.children(recursive=True))
        except psutil.Error:
            continue
    found.pop(os.getpid(), None)
    return [process for process in found.values() if lives(process)]


def kill_all(
    run_dir: Path,
    roots: Iterable[psutil.Process] = (),
    *,
    patience: float = 5.0,
    reap: Callable[[], None] = lambda: None,
) -> list[psutil.Process]:
    """SIGKILL what belongs to a job until nothing is left of it; returns what would not go within ``patience`` s.

    ``reap`` collects the exit statuses of those that are children of this process.
    """
    deadline = time.monotonic() + patience
    roots = list(roots)
    while True:
        left = belonging(run_dir, roots)
        if not left or time.monotonic() > deadline:
            return left
        for process in left:
            try:
                process.send_signal(signal.SIGKILL)  # checks that the pid is still the same process
            except psutil.Error:
                continue
        time.sleep(0.02)
        reap()


class Children:
    """The children of this process, adopted ones too: collected in one place, so that no exit status is lost."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}  # pid -> exit code, or minus the signal
        self._mine: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a child in a session of its own. Its exit is seen in ``codes``, never by the object's own wait()."""
        child = subprocess.Popen(command, start_new_session=True, **options)
        self._mine[child.pid] = child
        return child

    def reap(self) -> None:
        """Collect what has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._mine.pop(pid, None)
            if child is not None:
                child.returncode = self.codes[pid] = os.waitstatus_to_exitcode(status)


def lives(process: psutil.Process) -> bool:
    """Whether it still runs: a zombie, which its parent has not collected yet, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
