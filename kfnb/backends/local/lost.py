"""Whether a job that has written no end still lives; if not, the first client that looks writes down its loss."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import psutil

from kfnb.backends.local import processes, rundir
from kfnb.backends.local.rundir import RunDir

#: Seconds that workers whose supervisor is gone have to end by themselves before they are killed.
_PATIENCE = 5.0


def present_phase(run: RunDir) -> dict[str, Any]:
    """The job's last phase, after it was found ``Lost`` where what ran it is gone. May take seconds then."""
    last = rundir.last_phase(run)
    if last is not None and last["phase"] in rundir.TERMINAL:
        return last
    if alive(run):
        return last or {"t": time.time(), "phase": "Submitting", "reason": "", "a": 0}
    try:
        judge = rundir.take_lock(run.path / "judge.lock")
    except OSError:  # a disk that cannot be written to: every client comes to the same judgement
        return _declare(run, last["a"] if last else 0)
    if judge is None:  # another client is at it
        return last or {"t": time.time(), "phase": "Submitting", "reason": "", "a": 0}
    try:
        last = rundir.last_phase(run)  # it may have ended just before it let go of its lock
        if last is not None and last["phase"] in rundir.TERMINAL:
            return last
        return _declare(run, last["a"] if last else 0)
    finally:
        os.close(judge)


def alive(run: RunDir) -> bool:
    """Whether the job's supervisor lives: it holds its lock, and its process is there."""
    if not rundir.is_locked(run.lock):
        return False
    who = rundir.read_json(run.supervisor)
    # A fork of the submitting process may have kept the lock's descriptor.
    return who is None or who.get("host") != socket.gethostname() or _runs(who.get("pid"))


def _runs(pid: Any) -> bool:
    """By the pid alone: start times move when the clock is set, and a pid that is used again is rare enough."""
    try:
        return bool(psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, ValueError, TypeError, OverflowError):
        return False


def _declare(run: RunDir, attempt: int) -> dict[str, Any]:
    who = rundir.read_json(run.supervisor) or {}
    why = _why(run, who)
    if who.get("host") == socket.gethostname() and who.get("boot") == processes.boot():
        _sweep(run, who)
    try:
        run.secret.unlink(missing_ok=True)
        entry = rundir.append_phase(run, "Lost", why, attempt=attempt)
        run.free_reserves()
        return entry
    except OSError:  # a full or read-only disk: it is lost all the same, and the next client tries again
        return {"t": time.time(), "phase": "Lost", "reason": why, "a": attempt}


def _why(run: RunDir, who: dict[str, Any]) -> str:
    if not who:
        said = tail(run)
        return "The process that should run the job never came up" + (f": {said}" if said else ".")
    if who.get("boot") != processes.boot() and who.get("host") == socket.gethostname():
        return "The machine was restarted while the job ran."
    where = "" if who.get("host") == socket.gethostname() else f" on {who.get('host')}"
    said = tail(run)
    return f"The process that ran the job (its supervisor, pid {who.get('pid')}{where}) was killed" + (
        f" or crashed: {said}" if said else "."
    )


def tail(run: RunDir) -> str:
    """The last line that the supervisor itself wrote, for a person to read."""
    try:
        lines = rundir.read_bytes(run.log)[-4096:].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip()[:500] if lines else ""


def _sweep(run: RunDir, who: dict[str, Any]) -> None:
    """End what is left running. Workers notice by themselves that their supervisor is gone, and get a moment for it."""
    states = [rundir.read_json(path) or {} for path in run.nodes.glob("*/state.json")]
    told = [who.get("workers"), *(state.get("ranks") for state in states)]
    roots = [
        process
        for entries in told
        if isinstance(entries, list)
        for entry in entries
        if isinstance(entry, dict) and (process := processes.find(entry.get("pid"), entry.get("started")))
    ]
    deadline = time.monotonic() + _PATIENCE
    while processes.belonging(run.path, roots) and time.monotonic() < deadline:
        time.sleep(0.05)
    processes.kill_all(run.path, roots)
