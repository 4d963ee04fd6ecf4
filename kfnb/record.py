"""The record of a job: what was asked for and what a repeat of it needs.

Stored with the job, never with a secret value.
"""

from __future__ import annotations

import getpass
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kfnb.spec import TrainSpec

#: Distributions whose versions decide whether a run can be repeated; those installed are noted.
_PACKAGES = (
    "kfnb",
    "torch",
    "numpy",
    "lightning",
    "transformers",
    "accelerate",
    "tensorboard",
    "scikit-learn",
    "pandas",
)


class Git(BaseModel):
    """The commit a notebook was at; ``dirty`` where tracked files differed from it."""

    model_config = ConfigDict(frozen=True)

    commit: str
    branch: str = ""
    dirty: bool = False


class Record(BaseModel):
    """Written once, at submission. ``version`` changes with the format; older ones still open."""

    model_config = ConfigDict(frozen=True)

    version: int = 1
    id: str
    spec: TrainSpec
    created: float
    owner: str
    host: str
    workdir: str
    bundle_sha256: str
    code: str = Field(description="main.py, as the cell had it")
    first_line: int = 1
    values: dict[str, Any] = Field(default_factory=dict, description="Captured values that are small and JSON-able")
    definitions: tuple[str, ...] = ()
    notebook: str | None = None
    cell_id: str | None = None
    git: Git | None = None
    python: str = ""
    packages: dict[str, str] = Field(default_factory=dict)
    again: str | None = Field(default=None, description="The id of the job that this one repeats")


def provenance(workdir: Path) -> dict[str, Any]:
    """What the machine and the checkout say: the record's fields that do not come from the request."""
    return {
        "created": time.time(),
        "owner": getpass.getuser(),
        "host": socket.gethostname(),
        "workdir": str(workdir),
        "git": git_state(workdir),
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": package_versions(),
    }


def package_versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_state(folder: Path) -> Git | None:
    """The checkout's commit and whether tracked files differ from it; None outside a checkout or without git."""
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    if status is None:
        return None
    header: Mapping[str, str] = dict(
        line[2:].split(" ", 1) for line in status.splitlines() if line.startswith("# branch.") and " " in line[2:]
    )
    commit = header.get("branch.oid", "")
    if not commit or commit == "(initial)":
        return None
    dirty = any(not line.startswith("#") for line in status.splitlines())
    return Git(commit=commit, branch=header.get("branch.head", ""), dirty=dirty)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        # optional locks would touch the index of a repository that the user is working in
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=3,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
