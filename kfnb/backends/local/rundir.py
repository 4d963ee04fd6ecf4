"""A job's directory under ``$KFNB_HOME``: what lies where, and how it is written so that no crash leaves a false word.

Used by the supervisor, so nothing here imports more than the standard library and ``kfnb.errors``.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import stat
import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from kfnb.errors import BackendError, NotFound
from kfnb.home import home

TERMINAL = frozenset({"Succeeded", "Failed", "Stopped", "Lost"})
PHASES = (*TERMINAL, "Submitting", "Pending", "Queued", "Running", "Restarting", "Stopping")

#: Freed when the disk is full, so that the end of a job can still be written down...
RESERVE_BYTES = 64 * 1024

#: ...and before that, per node, the last words of its worker: what it kept of its output (a read's worth of it,
#: framed), and how much it could not.
NODE_RESERVE_BYTES = 2 * 1024 * 1024

#: What reserves leave alone: a job that takes the last of a disk for its end would not come that far.
_MARGIN_BYTES = 1024 * 1024

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LETTERS = string.ascii_lowercase + string.digits
_ID = re.compile(r"[a-z][-a-z0-9]*-[a-z0-9]{5}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def open_home() -> Path:
    """``home()``, made (0700) where it is missing; raises ``BackendError`` where jobs cannot be kept in it."""
    path = home()
    fix = "Set KFNB_HOME to a folder on a local disk that you can write to."
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in ("jobs", "gpus", "venvs"):
            (path / part).mkdir(mode=0o700, exist_ok=True)
        # asked by trying: access(2) knows nothing of read-only mounts of some kinds, nor of lock support
        probe = path / "jobs" / f".probe-{os.getpid()}-{secrets.token_hex(4)}"
        descriptor = take_lock(probe)
        probe.unlink()
        if descriptor is not None:
            os.close(descriptor)
    except OSError as error:
        raise BackendError(f"kfnb cannot keep jobs in {path}", f"{error.strerror or error}", fix) from None
    return path


class RunDir:
    """The paths of one job's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.record = path / "record.json"
        self.plan = path / "plan.json"
        self.bundle = path / "bundle.zip"
        self.worker = path / "worker.zip"
        self.secret = path / "secret.json"
        self.phases = path / "phases.jsonl"
        self.lock = path / "supervisor.lock"
        self.supervisor = path / "supervisor.json"
        self.log = path / "supervisor.log"
        self.reserve = path / "reserve"
        self.stop = path / "stop"
        self.coordinator = path / "coordinator.json"
        self.nodes = path / "nodes"
        self.logdir = path / "logdir"
        self.checkpoints = path / "checkpoints"
        self.results = path / "results"

    def node(self, node: int) -> Path:
        return self.nodes / str(node)

    def node_log(self, node: int, restart: int) -> Path:
        return self.node(node) / f"{restart}.log"

    def node_reserve(self, node: int) -> Path:
        return self.node(node) / "reserve"

    def free_reserves(self) -> None:
        """Give back the room that was kept for the end."""
        for path in (self.reserve, *self.nodes.glob("*/reserve")):
            path.unlink(missing_ok=True)

    def logs(self) -> list[tuple[int, int, Path]]:
        """(node, restart, path) of every node log there is now, in that order."""
        return sorted(
            (int(path.parent.name), int(path.stem), path)
            for path in self.nodes.glob("*/*.log")
            if _NUMBER.fullmatch(path.parent.name) and _NUMBER.fullmatch(path.stem)
        )


def reserve_id(jobs: Path, name: str) -> RunDir:
    """Make the directory of a new job, ``NAME-xxxxx``: mkdir decides between two clients that draw the same letters."""
    while True:
        path = jobs / f"{name}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return RunDir(path)


def find(id: str) -> RunDir:
    """The job's directory. Raises ``NotFound``, also for one whose submission never came to its end."""
    run = RunDir(home() / "jobs" / id)
    if not _ID.fullmatch(id) or not _is_job(run):  # an id may come from a page: it is no path
        raise NotFound(f"There is no job {id} on this machine", fix="`%kfjobs` (or `kfnb jobs`) lists those there are.")
    return run


def jobs() -> Iterator[RunDir]:
    """Every submitted job, in no order."""
    try:
        names = os.listdir(home() / "jobs")
    except OSError:
        return
    for name in names:
        run = RunDir(home() / "jobs" / name)
        if _is_job(run):
            yield run


def _is_job(run: RunDir) -> bool:
    return _ID.fullmatch(run.id) is not None and os.path.isfile(run.record)


def remove(run: RunDir) -> None:
    """Remove a directory so that a reader sees all of it or nothing: renamed first, then emptied."""
    gone = run.path.with_name(f".gone-{run.id}-{secrets.token_hex(4)}")
    run.path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


# --- files ---------------------------------------------------------------------------------------------------------


def write_atomic(path: Path, content: bytes) -> None:
    """Write a 0600 file that is there whole or not at all, also after a power cut. Raises ``OSError``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def private(path: str, flags: int) -> int:
    """An opener of 0600 files."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write_reserve(path: Path, size: int) -> None:
    """Take room on the disk, to give it back when there is none left.

    Raises ``OSError``, having taken none, where it would be the last that the disk has.
    """
    if free(path.parent) < size + _MARGIN_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    try:
        with open(path, "wb", opener=private) as file:
            file.write(os.urandom(size))  # nothing that a file system would store smaller
    except OSError:
        path.unlink(missing_ok=True)
        raise


def free(path: Path) -> int:
    """Bytes that this user can still write on the disk of ``path``. Raises ``OSError``."""
    return shutil.disk_usage(path).free


def is_full(error: OSError) -> bool:
    """Whether it says that there is no room left."""
    return error.errno in _FULL


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False).encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where the file is missing or does not hold one."""
    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_bytes(path: Path) -> bytes:
    """A regular file's content; anything else (a pipe would be waited for) is an ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "It is not a file", str(path))
    with open(descriptor, "rb") as file:
        return file.read()


def is_time(value: Any) -> TypeGuard[float]:
    """Whether it is a time in Unix seconds that calendars know."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11


def is_duration(value: Any) -> TypeGuard[float]:
    """Whether it is a number of seconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


# --- phases --------------------------------------------------------------------------------------------------------


def append_phase(run: RunDir, phase: str, reason: str, *, attempt: int = 0, **more: Any) -> dict[str, Any]:
    """Add a phase to the job's history and see it on the disk before returning it.

    ``more`` holds ``failure`` and ``exit`` of a terminal phase. For that one a full disk's reserve is freed. Raises
    ``OSError`` where it cannot be written.
    """
    entry = {"t": time.time(), "phase": phase, "reason": reason, "a": attempt, **more}
    line = json.dumps(entry, allow_nan=False).encode() + b"\n"
    try:
        _append(run.phases, line)
    except OSError as error:
        if not is_full(error) or phase not in TERMINAL or not run.reserve.exists():
            raise
        run.reserve.unlink()
        _append(run.phases, line)
    return entry


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            line = b"\n" + line  # what was torn off stays a line of its own, which readers pass over
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_phases(run: RunDir) -> list[tuple[dict[str, Any], int]]:
    """The phases so far, as ``append_phase`` writes them, each with the offset after its line.

    What is torn, or no phase that this version knows, is passed over.
    """
    try:
        content = read_bytes(run.phases)
    except OSError:
        return []
    entries, end = [], 0
    for line in content.splitlines(keepends=True):
        end += len(line)
        entry = _phase(line) if line.endswith(b"\n") else None
        if entry is not None:
            entries.append((entry, end))
    return entries


def _phase(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("phase") not in PHASES or not is_time(entry.get("t")):
        return None
    attempt = entry.get("a")
    entry["reason"] = str(entry.get("reason") or "")
    entry["a"] = attempt if isinstance(attempt, int) and 0 <= attempt < 1 << 31 else 0
    if not isinstance(entry.get("failure"), dict):
        entry.pop("failure", None)
    return entry


def last_phase(run: RunDir) -> dict[str, Any] | None:
    """The job's last phase as written down; None before the first. Whether its supervisor lives is another matter."""
    entries = read_phases(run)
    return entries[-1][0] if entries else None


# --- locks ---------------------------------------------------------------------------------------------------------


def take_lock(path: Path, *, shared: bool = False) -> int | None:
    """An open descriptor that holds ``path`` locked, or None where somebody else does. Raises ``OSError``.

    The lock belongs to the open file, so a child that inherits the descriptor holds it on, and the kernel lets go of it
    when the last of them ends, however it ends. ``shared`` locks keep only the others out.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # nobody made it, or what lies there is no lock
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def size(path: Path) -> int:
    """Bytes that a folder takes on the disk (0 where it is gone)."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
    return total
