"""The ranks of this node: started, watched, ended, and their ends explained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, Tuple

from kfnb_worker import wire
from kfnb_worker.loop import Loop, Timer
from kfnb_worker.processes import Guard, descendants, kill, kill_group
from kfnb_worker.relay import Output, Pipe

#: What the interpreter of a rank is told. Its first path is the working directory, where a file named like a module of
#: the standard library may lie; the code of a job is what was shipped with it.
RANK_COMMAND = ["-c", "import sys; del sys.path[0]; from kfnb_worker.run import start; start()"]

SWEEP_SECONDS = 0.05
SWEEPS = 100
#: How long a pipe is waited for that something we could not end still holds.
PIPE_SECONDS = 2.0


class Rank:
    """One rank of this node in one attempt."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], pipes: List[Pipe]) -> None:
        self.number, self.process, self.pipes = number, process, pipes
        self.pid = process.pid
        self.started = time.time()
        self.ready = False
        self.code: Optional[int] = None
        self.failure: Optional[Dict[str, Any]] = None


class Ranks:
    """All ranks of this node in one attempt.

    ``exited(rank)`` is called for each that ends, after its last output. ``end`` ends them all, and what they started.
    """

    def __init__(self, loop: Loop, output: Output, guard: Guard, exited: Callable[[Rank], None]) -> None:
        self._loop, self._output, self._guard, self._exited = loop, output, guard, exited
        self.all: List[Rank] = []
        self._ended: Optional[Callable[[], None]] = None  # to be called
        self._sweeping = False
        self._timer: Optional[Timer] = None

    def start(self, number: int, command: List[str], env: Dict[str, str], directory: str) -> Rank:
        """Start one rank in a session of its own. Raises ``OSError``."""
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                start_new_session=True,
            )
        except OSError:
            os.close(out_read)
            os.close(err_read)
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        self._guard.watch(process.pid)
        who = b"%d" % number
        out = Pipe(self._loop, self._output, out_read, who, wire.STDOUT)
        err = Pipe(self._loop, self._output, err_read, who, wire.STDERR, first=out)
        rank = Rank(number, process, [out, err])
        self.all.append(rank)
        return rank

    @property
    def living(self) -> List[Rank]:
        return [rank for rank in self.all if rank.code is None]

    def reap(self, pid: int, status: int) -> None:
        """A child of this process ended: if it is a rank, that is news."""
        for rank in self.all:
            if rank.pid == pid and rank.code is None:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                rank.code = rank.process.returncode = code
                self._guard.forget(pid)
                for pipe in rank.pipes:
                    pipe.drain()
                self._exited(rank)
                self._check()
                return

    def end(self, grace: float, ended: Callable[[], None]) -> None:
        """SIGTERM, after ``grace`` seconds SIGKILL, then nothing is left and ``ended()`` is called.

        Called again before that, it changes the grace and what is called.
        """
        if self._ended is None:
            for rank in self.living:
                _signal(rank.pid, signal.SIGTERM)
        self._ended = ended
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.after(grace, self.kill)
        self._check()

    def _check(self) -> None:
        if self._ended is not None and not self.living and not self._sweeping:
            self._sweeping = True
            self._loop.after(0, lambda: self._sweep(SWEEPS))

    def kill(self) -> None:
        """SIGKILL to every living rank and what is in its group."""
        for rank in self.living:
            kill_group(rank.pid)
            _signal(rank.pid, signal.SIGKILL)

    def _sweep(self, left: int) -> None:
        """End what the ranks started; again, until nothing is there."""
        others = descendants([os.getpid()]) - {self._guard.pid}
        kill(others)
        if sys.platform != "linux":
            for rank in self.all:
                kill_group(rank.pid)
        if others and left:
            self._loop.after(SWEEP_SECONDS, lambda: self._sweep(left - 1))
        else:
            self._wait_for_pipes(time.monotonic() + PIPE_SECONDS)

    def _wait_for_pipes(self, deadline: float) -> None:
        pipes = [pipe for rank in self.all for pipe in rank.pipes if not pipe.closed]
        for pipe in pipes:
            pipe.drain()
        if any(not pipe.closed for pipe in pipes) and time.monotonic() < deadline:
            self._loop.after(SWEEP_SECONDS, lambda: self._wait_for_pipes(deadline))
            return
        for pipe in pipes:
            pipe.close()
        if self._timer is not None:
            self._timer.cancel()
        ended, self._ended = self._ended, None
        self._sweeping = False
        if ended is not None:
            ended()


def _signal(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def explain(code: int, out_of_memory: bool) -> Tuple[str, str, str]:
    """(kind, type, what happened to it) for a rank that ended without saying why; ``code`` as in ``Popen.returncode``.

    ``out_of_memory``: the kernel counted a kill for memory in this container meanwhile.
    """
    if code >= 0 and code not in (128 + signal.SIGKILL, 128 + signal.SIGBUS, 128 + signal.SIGSEGV):
        return "exit", "SystemExit", "it ended with exit code %d" % code
    number = -code if code < 0 else code - 128
    name = signal_name(number)
    says = "it was ended by %s" % name
    if code > 0:
        says = "it ended with exit code %d, as after %s" % (code, name)
    if number == signal.SIGKILL and out_of_memory:
        says += ": it ran out of memory, and the kernel killed it. Ask for more memory, or use less (a smaller batch)"
    elif number == signal.SIGKILL:
        says += ": somebody killed it; most often that is the kernel when memory runs out (exit code 137)"
    elif number == signal.SIGBUS:
        says += ": most often that is shared memory running out%s. DataLoader workers use it: fewer of them, " % _shm()
        says += "or more shared memory"
    elif number == signal.SIGSEGV:
        says += ": native code crashed (a library built for another version or machine?); its stack is in the log above"
    elif number == signal.SIGABRT:
        says += ": native code gave up; its reason is in the log above"
    elif number == signal.SIGILL:
        says += ": a library uses instructions that this processor does not have"
    return "signal", name, says


def _shm() -> str:
    try:
        there = os.statvfs("/dev/shm")
    except OSError:
        return ""
    mega = there.f_frsize / 1e6
    return " (/dev/shm has %.0f MB, %.0f MB are free)" % (there.f_blocks * mega, there.f_bavail * mega)


def memory_kills() -> int:
    """How often the kernel killed a process of this container for memory; 0 where that is not known."""
    try:
        with open("/proc/self/cgroup") as source:
            own = source.read().rpartition("::")[2].strip()
        with open("/sys/fs/cgroup%s/memory.events" % (own if own != "/" else "")) as source:
            counts = dict(line.split() for line in source)
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
