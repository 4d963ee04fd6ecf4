"""Keeping ``$KFNB_HOME`` bounded: ended jobs and cached environments by age and size, never what is in use."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from kfnb.backends.local import rundir
from kfnb.backends.local.rundir import RunDir
from kfnb.home import home

DAY = 86400.0

#: What a laptop stands: ended jobs and environments are kept a month, and within 10 GiB.
DEFAULT_AGE = 30 * DAY
DEFAULT_BYTES = 10 * 1024**3

#: A directory that was reserved and never submitted, or a removal that was cut short, is rubbish after this.
_ABANDONED = 600.0


@dataclass(frozen=True)
class Removal:
    """Something that was, or in a dry run would be, removed: ``kind`` "job", "venv" or "remains"."""

    kind: str
    name: str
    bytes: int
    why: str


@dataclass(frozen=True)
class _Candidate:
    kind: str
    path: Path
    used: float  # Unix seconds
    bytes: int


def prune(max_age: float = DEFAULT_AGE, max_bytes: float = DEFAULT_BYTES, *, dry_run: bool = False) -> list[Removal]:
    """Remove what is older than ``max_age`` seconds, then the oldest down to ``max_bytes``; and expired jobs.

    Jobs that have not ended are counted in the size and never removed.
    """
    now = time.time()
    removals = remove_expired(dry_run=dry_run) + _remove_remains(dry_run)
    gone = {removal.name for removal in removals}
    candidates = [found for found in _candidates() if found.path.name not in gone]
    total = sum(found.bytes for found in candidates) + sum(rundir.size(run.path) for run in _unended())
    for found in sorted(candidates, key=lambda candidate: candidate.used):
        if now - found.used > max_age:
            why = f"unused for {(now - found.used) / DAY:.0f} days"
        elif total > max_bytes:
            why = f"kfnb's folder is over {max_bytes / 1024**3:.3g} GiB, and this is the oldest"
        else:
            continue
        if dry_run or _remove(found):
            total -= found.bytes
            removals.append(Removal(found.kind, found.path.name, found.bytes, why))
    return removals


def remove_expired(*, dry_run: bool = False) -> list[Removal]:
    """Remove the jobs whose ``--ttl`` after their end is over."""
    now = time.time()
    removals = []
    for run in rundir.jobs():
        ended = _ended(run)
        ttl = _ttl(run)
        if ended is None or ttl is None or now < ended + ttl:
            continue
        removal = Removal("job", run.id, rundir.size(run.path), f"its --ttl of {ttl:g} s is over")
        if dry_run or _remove_job(run):
            removals.append(removal)
    return removals


def _ttl(run: RunDir) -> float | None:
    orders = (rundir.read_json(run.plan) or {}).get("local")
    ttl = orders.get("ttl") if isinstance(orders, dict) else None
    return ttl if rundir.is_duration(ttl) else None


def tidy() -> None:
    """What may be removed without being asked: expired jobs, rubbish, and environments that can be made again.

    Jobs without a --ttl are the user's: they stay until `kfnb prune`.
    """
    remove_expired()
    _remove_remains()
    for found in _venvs():
        if time.time() - found.used > DEFAULT_AGE:
            _remove(found)


def _candidates() -> list[_Candidate]:
    found = _venvs()
    for run in rundir.jobs():
        ended = _ended(run)
        if ended is not None:
            found.append(_Candidate("job", run.path, ended, rundir.size(run.path)))
    return found


def _venvs() -> list[_Candidate]:
    found = []
    for path in (home() / "venvs").glob("*"):
        if path.is_dir():
            marker = path / "complete.json"
            used = (marker if marker.exists() else path).stat().st_mtime
            found.append(_Candidate("venv", path, used, rundir.size(path)))
    return found


def _unended() -> list[RunDir]:
    return [run for run in rundir.jobs() if _ended(run) is None]


def _ended(run: RunDir) -> float | None:
    """When the job ended; None while it runs or is not yet known to have ended."""
    last = rundir.last_phase(run)
    return last["t"] if last is not None and last["phase"] in rundir.TERMINAL else None


def _remove(found: _Candidate) -> bool:
    return _remove_job(RunDir(found.path)) if found.kind == "job" else _remove_venv(found.path)


def _remove_job(run: RunDir) -> bool:
    # the lock is taken so that the supervisor has really left, and that no two clients remove the same job
    try:
        descriptor = rundir.take_lock(run.lock)
        if descriptor is None:
            return False
        try:
            rundir.remove(run)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def _remove_venv(path: Path) -> bool:
    """Unless it is being built or used: every job holds its environment's lock shared."""
    try:
        descriptor = rundir.take_lock(path.with_name(f"{path.name}.lock"))
        if descriptor is None:
            return False
        try:
            (path / "complete.json").unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def _remove_remains(dry_run: bool = False) -> list[Removal]:
    """Directories of submissions that never came to their end, and of removals that did not."""
    now = time.time()
    removals = []
    for path in (home() / "jobs").glob("*"):
        try:
            if not (path.name.startswith(".") or not (path / "record.json").exists()):
                continue
            if now - path.stat().st_mtime < _ABANDONED or rundir.is_locked(path / "supervisor.lock"):
                continue
        except OSError:
            continue
        removals.append(Removal("remains", path.name, rundir.size(path), "left by a submission or removal cut short"))
        if not dry_run and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif not dry_run:
            path.unlink(missing_ok=True)
    return removals
