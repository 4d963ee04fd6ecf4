"""Cached virtual environments for ``--pip``: what the job adds, on top of what the notebook's own environment has.

venv's --system-site-packages does not lay one environment on another: made from within an environment, it shows the
packages of the interpreter below that one. So a .pth file adds the notebook's own folders behind the new environment's:
nothing that is there already (torch) is installed again, and what is added comes first.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import site
import sys
import time
import venv
from pathlib import Path

from kfnb.backends.local import rundir

#: Written last: an environment without it was never finished.
_COMPLETE = "complete.json"

_PTH = "kfnb_base.pth"


def requirement_lines(text: str) -> list[str]:
    """The lines of a requirements file that say something."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def shown(requirements: str) -> str:
    """What is installed, in one short line: without pip's own options, and without anybody's password in an address."""
    names = [line for line in requirement_lines(requirements) if not line.startswith("-") or line.startswith("-e")]
    return re.sub(r"://[^/@\s]*@", "://", ", ".join(names))[:200]


def key(requirements: str, folder: Path) -> str:
    """Names the environment that these requirements make beside this interpreter.

    Requirements that are local paths (relative to ``folder``) count with the time and size of what lies there.
    """
    parts: list[object] = [sys.version, sys.prefix, sys.executable, _base_folders()]
    for line in requirement_lines(requirements):
        parts.append(line)
        path = folder / line.removeprefix("-e ").split("[", 1)[0]
        if path.exists():
            parts.append([str(path.resolve()), _stamps(path)])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


class Venv:
    """One environment in the cache ``folder``. Everything but ``python`` and ``ready`` needs the lock held."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self.lock = folder / f"{name}.lock"
        self.python = str(self.path / "bin" / "python")

    def ready(self) -> bool:
        """Whether it is complete; if so, its time of last use is now."""
        try:
            os.utime(self.path / _COMPLETE)
        except OSError:
            return False
        return True

    def create(self) -> None:
        """Make the environment without the requirements. Raises ``OSError``."""
        shutil.rmtree(self.path, ignore_errors=True)  # what an interrupted build left
        venv.EnvBuilder(with_pip=False, symlinks=True).create(self.path)
        folders = next(self.path.glob("lib/python*/site-packages"))
        # addsitedir, not a bare path: the notebook's own .pth files (editable installs) count as well
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in _base_folders()]
        (folders / _PTH).write_text("".join(lines), encoding="utf-8")

    def commands(self, requirements: Path) -> list[list[str]]:
        """What installs a requirements file into it, to be run one after the other."""
        install = [
            self.python,
            "-m",
            "pip",
            "install",
            "--no-input",
            "--disable-pip-version-check",
            "--no-color",
        ]
        install += ["--progress-bar", "off", "-r", str(requirements)]
        if importlib.util.find_spec("pip") is None:
            return [[self.python, "-m", "ensurepip"], install]
        return [install]

    def publish(self) -> None:
        """Say that it is complete."""
        rundir.write_json(self.path / _COMPLETE, {"made": time.time(), "python": sys.version})

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """``base`` with this environment's programs found first."""
        programs = os.path.dirname(self.python)
        return {
            **base,
            "VIRTUAL_ENV": str(self.path),
            "PATH": os.pathsep.join(filter(None, [programs, base.get("PATH", "")])),
            "PIP_USER": "0",  # a user's pip.conf may say otherwise, which pip refuses in an environment
        }


def pip_errors(output: list[str]) -> str:
    """pip's own words on why it failed: its last error lines, else its last line."""
    said = [line for line in output if line.startswith(("ERROR:", "error:"))]
    words = said[-2:] or [line for line in output if line.strip()][-1:]
    return " ".join(line.strip().removeprefix("ERROR:").strip() for line in words)


def _base_folders() -> list[str]:
    folders = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [folder for folder in folders if os.path.isdir(folder)]


def _stamps(path: Path) -> list[list[object]]:
    files = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files[:10_000]]
