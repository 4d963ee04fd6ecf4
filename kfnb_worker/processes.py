"""No process is left behind: finding and ending what the ranks of a node started, however the worker itself ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import Dict, Iterable, List, Set

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _parents() -> Dict[int, int]:
    """The parent of every process that is not a zombie (Linux; elsewhere nothing is known)."""
    parents = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as source:
                    state, parent = source.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state not in (b"Z", b"X"):
                parents[int(name)] = int(parent)
    return parents


def descendants(roots: Iterable[int]) -> Set[int]:
    """Living descendants of ``roots``, without the roots. A subreaper's include those whose parents are gone."""
    children: Dict[int, List[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: Set[int] = set()
    new = list(roots)
    while new:
        new = [child for pid in new for child in children.get(pid, ()) if child not in found]
        found.update(new)
    return found


def environment_of(pid: int) -> Dict[str, str]:
    """The variables that a living process of this user began with (Linux; elsewhere nothing is known)."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as source:
            pairs = [entry.partition(b"=") for entry in source.read().split(b"\0")]
    except OSError:
        return {}
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def kill_group(leader: int) -> None:
    """SIGKILL to what is left of a rank's process group; its leader may be gone."""
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


class Guard:
    """A forked child that outlives the worker for a moment: where the worker is killed, it ends the ranks.

    It knows what to end by the variable ``name`` (the ranks' channel, at ``path``) in the environment of all processes
    of this worker's ranks, and by the process groups it was told of. It removes the channel's directory in the end. It
    is made before the worker has grown, and sleeps in a read all its life.
    """

    def __init__(self, name: str, path: str) -> None:
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _guard(read, ("%s=%s" % (name, path)).encode())
                with suppress(OSError):
                    os.unlink(path)
                with suppress(OSError):
                    os.rmdir(os.path.dirname(path))
            finally:
                os._exit(0)
        os.close(read)

    def watch(self, leader: int) -> None:
        """A rank was started: ``leader`` is its process and its process group."""
        self._tell(b"+%d\n" % leader)

    def forget(self, leader: int) -> None:
        """It ended and was reaped: its number may soon be another's."""
        self._tell(b"-%d\n" % leader)

    def _tell(self, line: bytes) -> None:
        with suppress(OSError):  # the guard was killed: then the worker has to do alone
            os.write(self._write, line)

    def dismiss(self) -> None:
        """All is ended."""
        os.close(self._write)


def _guard(read: int, mark: bytes) -> None:
    os.setsid()  # what is sent to the worker's group is not meant for it
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    kept = os.dup2(read, 3) if read != 3 else 3
    os.closerange(4, 256)
    told = b""
    while True:
        data = os.read(kept, 4096)
        if not data:
            break
        told += data
    leaders: Set[int] = set()
    for line in told.split():
        (leaders.add if line[:1] == b"+" else leaders.discard)(int(line[1:]))
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        for leader in leaders:
            kill_group(leader)
        marked = _marked(mark)
        marked |= descendants(marked)
        marked.discard(os.getpid())
        if not marked:
            break
        kill(marked)
        time.sleep(0.02)  # for those it could not see being born


def _marked(mark: bytes) -> Set[int]:
    """Processes with the mark in their environment."""
    found = set()
    for pid in _parents():
        try:
            with open("/proc/%d/environ" % pid, "rb") as source:
                if mark in source.read().split(b"\0"):
                    found.add(pid)
        except OSError:
            continue
    return found
