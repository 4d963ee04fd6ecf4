"""A job's directory under ``$KFNB_HOME``: what lies where, and how it is written so that no crash leaves a false word.

Used by the supervisor, so nothing here imports more than the standard library and ``kfnb.errors``.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfnb.errors import BackendError, NotFound
from kfnb.home import home

TERMINAL = frozenset({"Succeeded", "Failed", "Stopped", "Lost"})

#: Freed when the disk is full, so that the end of a job can still be written down...
RESERVE_BYTES = 64 * 1024

#: ...and before that, per node, the last words of its worker: what it kept (256 KiB), and how much it could not.
NODE_RESERVE_BYTES = 512 * 1024

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LETTERS = string.ascii_lowercase + string.digits


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
            if path.parent.name.isdigit() and path.stem.isdigit()
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
    if os.sep in id or id.startswith(".") or not run.record.is_file():
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
        if not name.startswith(".") and run.record.is_file():
            yield run


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
    """Take room on the disk, to give it back when there is none left. Raises ``OSError``."""
    with open(path, "wb", opener=private) as file:
        file.write(os.urandom(size))  # nothing that a file system would store smaller


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False).encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where the file is missing or does not hold one."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


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
        if error.errno not in _FULL or phase not in TERMINAL or not run.reserve.exists():
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
    """The phases so far, each with the offset after its line. A torn line is passed over."""
    try:
        content = run.phases.read_bytes()
    except OSError:
        return []
    entries, end = [], 0
    for line in content.splitlines(keepends=True):
        end += len(line)
        try:
            entry = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("phase"), str):
            entries.append((entry, end))
    return entries


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
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
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
