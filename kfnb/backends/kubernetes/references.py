"""Which jobs this user has submitted to which cluster, so that any process of theirs finds them again by name."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from kfnb.home import home


@dataclass(frozen=True)
class Reference:
    """``file``, ``context`` and ``namespace`` as in ``Access``; ``created`` in Unix seconds."""

    id: str
    name: str
    file: str | None
    context: str
    namespace: str
    created: float


def remember(reference: Reference) -> None:
    """A home that cannot be written to is no reason to fail a job that was submitted."""
    path = _folder() / f"{reference.id}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_text(json.dumps(asdict(reference)))
        new.replace(path)
    except OSError:
        pass


def forget(id: str) -> None:
    (_folder() / f"{id}.json").unlink(missing_ok=True)


def recall(id: str) -> Reference | None:
    """``id`` is what can be an id."""
    return _read(_folder() / f"{id}.json")


def everyone() -> list[Reference]:
    """All of them, the newest first."""
    found = [_read(path) for path in _folder().glob("*.json")]
    return sorted((one for one in found if one is not None), key=lambda one: one.created, reverse=True)


def _folder() -> Path:
    return home() / "kubernetes" / "jobs"


def _read(path: Path) -> Reference | None:
    try:
        return Reference(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # none, or one that somebody else has written
        return None
