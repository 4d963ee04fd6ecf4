"""Imports point one way, `import kfnb` is light, and what travels into a job needs nothing but an old Python."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KFNB = sorted((ROOT / "kfnb").rglob("*.py"))
WORKER = sorted((ROOT / "kfnb_worker").rglob("*.py"))

# Each layer, and what is above it: a module never imports from a layer above its own.
# magics, labserver, cli -> views, workspaces, job -> backends -> spec, source
LAYERS = [
    {"config", "decode", "errors", "events", "failures", "home", "options", "portal", "record", "series"}
    | {"source", "spec"},
    {"backends"},
    {"api", "comparison", "export", "job", "state", "views", "workspaces"},
    {"__main__", "cli", "labserver", "magics"},
]
HEAVY = ["torch", "kubernetes", "ipywidgets", "anywidget", "numpy", "pydantic", "pandas", "tensorboard"]


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path) -> Iterator[tuple[int, str]]:
    """Every module that the file imports, wherever in it: (line, absolute dotted name)."""
    package = module_name(file).split(".")
    if file.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def layer(module: str) -> int | None:
    """The index in LAYERS of a module of kfnb; None for anything else."""
    parts = module.split(".")
    if parts[0] != "kfnb" or len(parts) < 2:
        return None
    return next((index for index, names in enumerate(LAYERS) if parts[1] in names), None)


@pytest.mark.parametrize("file", [f for f in KFNB if f != ROOT / "kfnb/__init__.py"], ids=module_name)
def test_imports_point_down(file: Path) -> None:
    own = layer(module_name(file))
    assert own is not None, f"{file} is in no layer: say in LAYERS where it belongs"
    assert [f"{file}:{line} {name}" for line, name in imported(file) if (layer(name) or 0) > own] == []


@pytest.mark.parametrize("file", WORKER, ids=module_name)
def test_worker_needs_only_the_standard_library(file: Path) -> None:
    optional = {"numpy", "torch"}  # imported where a value of theirs is at hand, never at the top
    allowed = sys.stdlib_module_names | {"kfnb_worker"}
    for line, name in imported(file):
        top = name.split(".")[0]
        assert top in allowed | optional, f"{file}:{line} imports {name}"
    for node in ast.parse(file.read_text()).body:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        assert not {name.split(".")[0] for name in names} & optional, f"{file}:{node.lineno}: every job imports it"


@pytest.mark.parametrize("file", WORKER, ids=module_name)
def test_worker_parses_as_python_3_8(file: Path) -> None:
    ast.parse(file.read_text(), str(file), feature_version=(3, 8))


@pytest.mark.parametrize("file", KFNB, ids=module_name)
def test_the_cluster_client_and_the_widgets_are_each_imported_in_one_place(file: Path) -> None:
    within = module_name(file)
    for line, name in imported(file):
        top = name.split(".")[0]
        if top == "kubernetes":
            assert within.startswith("kfnb.backends.kubernetes"), f"{file}:{line}"
        if top in {"ipywidgets", "anywidget"}:
            assert within.startswith("kfnb.views"), f"{file}:{line}"


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `code`."""
    script = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_importing_kfnb_is_light() -> None:
    assert not loaded_by("import kfnb") & set(HEAVY)


def test_importing_the_worker_is_light() -> None:
    assert not loaded_by("import kfnb_worker") & {*HEAVY, "asyncio", "kfnb"}
