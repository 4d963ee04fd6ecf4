"""Copy as script, as a person goes on with it: the file is saved, its command is run, and the result is the same."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kfnb
from kfnb import portal
from kfnb.api import prepare_cell
from kfnb.views import script

DEFINITION = """\
def scaled(batch):
    return [factor * item for item in batch]
"""

CELL = """\
import os, sys
where = !echo "$PWD"
total = sum(scaled(batch)) + len(os.environ["WORLD_SIZE"])
said = (sys.argv[1:], os.environ["SEED"], __name__, len(where))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_the_script_of_a_cell_gives_the_same_result(here: Path) -> None:
    namespace: dict[str, Any] = {"factor": 3, "batch": [1, 2.5]}
    exec(DEFINITION, namespace)
    options = {
        "name": "digits",
        "nodes": 2,
        "framework": "python",
        "use": "batch,scaled,factor",
        "out": "total,said",
        "env": ["SEED=a b"],
        "args": ("--lr", "0.1"),
    }
    prepared = portal.call(
        prepare_cell(CELL, options, first_line=2, namespace=namespace, history=[DEFINITION], cwd=here)
    )
    job = portal.call(prepared.submit()).wait()
    text = script.as_script(job.record, portal.call(job._backend.bundle(job.id)))
    [line] = re.findall(r"^#     kfnb (train .*)$", text, re.MULTILINE)
    (here / script.filename(job.record)).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "kfnb", *shlex.split(line)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        cwd=here,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    again = kfnb.attach("digits")
    assert again.id != job.id
    assert again.result() == job.result()
    assert again.result()["total"] == 11.5
    assert again.record.spec.nodes == 2
