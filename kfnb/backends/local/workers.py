"""The workers of a job, one a node: started together, watched, ended, and their exits judged."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from kfnb.backends.local import rundir
from kfnb.backends.local.processes import Children
from kfnb.backends.local.rundir import RunDir
from kfnb.decode import failure_from_record
from kfnb.events import Failure
from kfnb.failures import explain

#: Exit statuses of a worker (kfnb_worker.launcher); anything else is a worker that did not end as it should.
SUCCEEDED, FAILED, LOST, STOPPED = 0, 1, 75, 143

#: How much of a log's end is looked at for a worker's own last words.
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class End:
    """How a job, or one start of its workers, ended: a terminal phase, why, and the failure behind it.

    ``Lost`` is only said of workers: what becomes of the job is the supervisor's to decide.
    """

    phase: str
    reason: str
    failure: dict[str, Any] | None = None
    exits: dict[str, int] = field(default_factory=dict)  # node -> exit status


class Workers:
    """One start of all workers: the ``restart``-th of this job."""

    def __init__(self, run: RunDir, plan: dict[str, Any], restart: int, children: Children) -> None:
        self._run, self._plan, self._restart = run, plan, restart
        self._children = children
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, environment: dict[str, str]) -> list[dict[str, Any]]:
        """Start them; returns {"node", "pid", "started"} of each. Raises ``OSError``."""
        # what the start before this one left must not be taken for this one's
        self._run.coordinator.unlink(missing_ok=True)
        started = []
        for node in range(self._plan["nodes"]):
            folder = self._run.node(node)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("state.json", "termination.json"):
                (folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a disk that is nearly full: what is left is better used by the job
                rundir.write_reserve(self._run.node_reserve(node), rundir.NODE_RESERVE_BYTES)
            command = [
                self._plan["python"],
                "-S",
                "-E",
                str(self._run.worker),
                str(self._run.plan),
                "--node",
                str(node),
            ]
            log = os.open(self._run.node_log(node, self._restart), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                # its stdin is never written to: it ends when this process does, however it does
                child = self._children.start(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=self._run.path,
                )
            finally:
                os.close(log)
            self._processes[node] = child
            started.append({"node": node, "pid": child.pid, "started": _started(child.pid)})
        return started

    def running(self) -> bool:
        return len(self.exits()) < len(self._processes)

    def exits(self) -> dict[int, int]:
        """node -> exit status (minus the signal) of those that have ended, in the order in which they did."""
        nodes = {child.pid: node for node, child in self._processes.items()}
        return {nodes[pid]: code for pid, code in self._children.codes.items() if pid in nodes}

    def broken(self) -> bool:
        """Whether one has ended in a way after which the others cannot go on."""
        return any(code != SUCCEEDED for code in self.exits().values())

    def terminate(self) -> None:
        """Ask all to stop: they pass it to their ranks and wait for those."""
        ended = self.exits()
        for node, child in self._processes.items():
            if node not in ended:
                os.kill(child.pid, signal.SIGTERM)  # not reaped yet, so the pid is its own

    def release(self) -> None:
        """Close the lifelines."""
        for child in self._processes.values():
            if child.stdin is not None:
                child.stdin.close()

    def states(self) -> list[dict[str, Any]]:
        """What each worker last said of itself; nodes that have said nothing yet are left out."""
        read = (rundir.read_json(self._run.node(node) / "state.json") for node in self._processes)
        return [state for state in read if state is not None]

    def end(self, attempt: int) -> End:
        """What the exits of all of them mean for the job."""
        exits = self.exits()
        codes = {str(node): code for node, code in exits.items()}
        failure = self.first_failure()
        if FAILED in exits.values() and failure is not None:
            return self._failed("Failed", failure, codes)
        strange = {node: code for node, code in exits.items() if code not in (SUCCEEDED, LOST, STOPPED)}
        if strange:
            node, code = next(iter(strange.items()))
            return self._failed("Lost", self._lost(node, code, attempt), codes)
        if LOST in exits.values():
            node = next(node for node, code in exits.items() if code == LOST)
            return self._failed("Lost", failure or self._lost(node, LOST, attempt), codes)
        if STOPPED in exits.values():
            return End("Stopped", "It was asked to stop.", None, codes)
        return End("Succeeded", "", None, codes)

    def _failed(self, phase: str, failure: dict[str, Any], codes: dict[str, int]) -> End:
        return End(phase, explain(told_failure(failure, self._run)), failure, codes)

    def first_failure(self) -> dict[str, Any] | None:
        """The failure that a worker wrote down, the earliest of several."""
        failures = []
        for node in self._processes:
            told = rundir.read_json(self._run.node(node) / "termination.json") or {}
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                failures.append((told_failure(told, self._run).time, told))
        return min(failures, key=lambda item: item[0])[1] if failures else None

    def _lost(self, node: int, code: int, attempt: int) -> dict[str, Any]:
        if code == LOST:
            message = "it lost its connection to the other nodes."
        elif code < 0:
            message = f"its worker was killed by {signal_name(-code)}."
            if code == -signal.SIGKILL:
                message += " If nobody did that, the machine had no memory left."
        else:
            message = f"its worker ended with exit status {code}" + self._last_words(node)
        failure = failure_dict(message, "lost", "WorkerLost", node=node, attempt=attempt)
        told = self.first_failure()
        if told is not None:  # by others, who lost this one: its end is the cause, seen later
            failure["t"] = float(told["t"]) - 0.001
        return failure

    def _last_words(self, node: int) -> str:
        """What it printed outside its protocol in the end: the traceback of a worker that crashed."""
        try:
            with open(self._run.node_log(node, self._restart), "rb") as file:
                start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
                file.seek(start)
                tail = file.read()
        except OSError:
            return "."
        words = own_words(tail, whole=start == 0)
        return f": {words[:500]}" if words else "."


def own_words(tail: bytes, *, whole: bool) -> str:
    """The last line of a log's end (``whole``: of all of it) where the worker itself printed it; else nothing.

    Those are lines after the last framed one. A rank's line may be torn at both ends: by where the tail begins, and
    by a full disk, where only its beginning was written.
    """
    lines = tail.split(b"\n")
    if not whole:
        del lines[0]
    last = b""
    for line in lines:
        if line.startswith(b"["):
            last = b""
        elif line.strip():
            last = line
    return last.decode("utf-8", "replace").strip()


def failure_dict(
    message: str, kind: str, type: str, *, attempt: int, node: int | None = None, traceback: str = ""
) -> dict[str, Any]:
    """A failure as in the wire's record, of which no worker has told: ``source`` says that it is in no log."""
    return {
        "source": "supervisor",
        "r": None,
        "node": node,
        "a": attempt,
        "kind": kind,
        "type": type,
        "message": message,
        "traceback": traceback,
        "line": None,
        "t": time.time(),
    }


def told_failure(told: dict[str, Any], run: RunDir) -> Failure:
    """A failure as others see it. Raises ``ValueError``, ``KeyError``, ``TypeError`` for what is none."""
    first_line = (rundir.read_json(run.record) or {}).get("first_line")
    return failure_from_record(told, first_line=first_line if isinstance(first_line, int) else 1)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _started(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:  # ended at once; its exit says why
        return time.time()
