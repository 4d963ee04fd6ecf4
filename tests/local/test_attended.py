"""Whether somebody attends a kernel is told by the program that started it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.local.kernels import ROOT

KERNEL = "import json; from kfnb.magics import attended; print(json.dumps(attended.until()))"


_KNOWN = ("PYTEST_CURRENT_TEST", "JPY_PARENT_PID", "JPY_SESSION_NAME")


def until(program: Path, *words: str, **env: str) -> tuple[int, float] | None:
    """What a "kernel" says that `program` has started."""
    program.write_text(
        f"import subprocess, sys\nkernel = subprocess.Popen([sys.executable, '-c', {KERNEL!r}])\n"
        "kernel.wait()\nprint(kernel.pid)\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in _KNOWN}
    done = subprocess.run(
        [sys.executable, str(program), *words],
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        cwd=program.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    said, pid = done.stdout.splitlines()
    found = json.loads(said)
    if found is None:
        return None
    assert found[0] == int(pid)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("papermill", ["in.ipynb", "out.ipynb"]),
        ("jupyter-nbconvert", ["--execute", "in.ipynb"]),
        ("jupyter-execute", ["in.ipynb"]),
        ("jupyter", ["execute", "in.ipynb"]),
        ("jupyter", ["nbconvert", "--execute", "in.ipynb"]),
        ("pytest", ["--nbval"]),
        ("flow.py", []),  # papermill or nbclient as a library
    ],
)
def test_programs_that_run_notebooks(tmp_path: Path, program: str, words: list[str]) -> None:
    found = until(tmp_path / program, *words)
    assert found is not None
    assert found[1] > psutil.boot_time()


@pytest.mark.parametrize(("program", "words"), [("jupyter-lab", []), ("jupyter", ["lab", "x.ipynb"])])
def test_programs_with_somebody_before_them(tmp_path: Path, program: str, words: list[str]) -> None:
    assert until(tmp_path / program, *words) is None


def test_it_can_be_said(tmp_path: Path) -> None:
    assert until(tmp_path / "jupyter-lab", KFNB_ATTENDED="0") is not None
    assert until(tmp_path / "papermill", KFNB_ATTENDED="1") is None
    assert until(tmp_path / "own-server", JPY_SESSION_NAME="nb.ipynb") is None
    assert until(tmp_path / "jupyter-lab", PYTEST_CURRENT_TEST="nb.ipynb::Cell 1") is not None
