"""Which jobs this user has submitted to which cluster: any process of theirs finds them again by name.

What a repeat needs is kept with them: it outlives their objects on the cluster.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from kfnb.home import home


@dataclass(frozen=True)
class Reference:
    """``file``, ``context`` and ``namespace`` as in ``Access``; ``created`` and ``stopped`` in Unix seconds.

    ``stopped``: when this user stopped the job, with which its objects went; None while it was not.
    """

    id: str
    name: str
    file: str | None
    context: str
    namespace: str
    created: float
    stopped: float | None = None


def remember(reference: Reference, record: str | None = None, bundle: bytes | None = None) -> None:
    """Keep it, with the job's record and code where they are given.

    A home that cannot be written to is no reason to fail a job that was submitted.
    """
    folder = _folder() / reference.id
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if record is not None:
            (folder / "record.json").write_text(record)
        if bundle is not None:
            (folder / "bundle.zip").write_bytes(bundle)
        new = folder / f"reference.{os.getpid()}.new"
        new.write_text(json.dumps(asdict(reference)))
        new.replace(folder / "reference.json")
    except OSError:
        pass


def forget(id: str) -> None:
    shutil.rmtree(_folder() / id, ignore_errors=True)


def recall(id: str) -> Reference | None:
    """``id`` is what can be an id."""
    return _read(_folder() / id / "reference.json")


def kept(id: str, name: str) -> bytes | None:
    """``record.json`` or ``bundle.zip`` of a job, as it was submitted."""
    try:
        return (_folder() / id / name).read_bytes()
    except OSError:
        return None


def everyone() -> list[Reference]:
    """All of them, the newest first."""
    found = [_read(path) for path in _folder().glob("*/reference.json")]
    return sorted((one for one in found if one is not None), key=lambda one: one.created, reverse=True)


def _folder() -> Path:
    return home() / "kubernetes" / "jobs"


def _read(path: Path) -> Reference | None:
    try:
        return Reference(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # none, or one that somebody else has written
        return None
