"""Builds the front end, from where the wheel takes it: the JupyterLab extension and the widget's module.

It is built when one of the two is missing or older than one of its sources, so that a checkout never ships a stale
bundle. A source distribution holds what was built, and is installed without Node.js.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = ["kfnb/labextension/package.json", "kfnb/views/static/jobview.js"]
SOURCES = [
    "labextension/src",
    "labextension/style",
    "labextension/schema",
    "labextension/build.mjs",
    "package.json",
    "package-lock.json",
    "tsconfig.json",
]
# Only a source distribution has it. The times of its files are worth nothing: some installers set those of unpacking.
UNPACKED = "PKG-INFO"

# npm writes the first of these at the end of an installation from the second
INSTALLED, LOCK = "node_modules/.package-lock.json", "package-lock.json"


class LabextensionHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if (root / UNPACKED).exists() and all((root / built).exists() for built in BUILT):
            return
        if not any(_older(root / built, [root / source for source in SOURCES]) for built in BUILT):
            return
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError("npm was not found: building kfnb from a checkout needs Node.js 20 or newer")
        shutil.rmtree(root / "kfnb/labextension", ignore_errors=True)
        if _older(root / INSTALLED, [root / LOCK]):
            subprocess.run([npm, "ci"], cwd=root, check=True)
        subprocess.run([npm, "run", "build:prod"], cwd=root, check=True)


def _older(target: Path, sources: list[Path]) -> bool:
    if not target.exists():
        return True
    files = (file for source in sources for file in ([source] if source.is_file() else source.rglob("*")))
    return any(file.stat().st_mtime > target.stat().st_mtime for file in files if file.is_file())
