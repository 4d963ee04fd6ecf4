"""A worker run by itself, as a supervisor or a pod runs it, and how results are told."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kfnb.backends.package import worker_zip
from kfnb.source import cell_source


def prepare(folder: Path, code: str, *, procs: int, framework: str = "python") -> list[str]:
    """Lays out a one-node job that runs `code` in `folder`; returns the argv of its worker."""
    folder.mkdir(parents=True)
    bundle = cell_source(code, first_line=1, namespace=None, use=(), out=(), modules=(), pip=(), cwd=folder)
    for name in ("nodes/0", "logdir", "checkpoints", "results"):
        (folder / name).mkdir(parents=True)
    (folder / "bundle.zip").write_bytes(bundle.data)
    (folder / "worker.zip").write_bytes(worker_zip())
    (folder / "secret.json").write_text(json.dumps({"token": "0" * 64, "env": {}}))
    (folder / "secret.json").chmod(0o600)
    plan = {
        "v": 1,
        "job": "bench-00000",
        "nodes": 1,
        "procs": procs,
        "framework": framework,
        "attempt": 0,
        "retries": 0,
        "grace": 5,
        "args": [],
        "env": {},
        "precision": None,
        "bundle": str(folder / "bundle.zip"),
        "bundle_sha256": bundle.sha256,
        "secret": str(folder / "secret.json"),
        "coordinator": {"host": "127.0.0.1", "port": 0, "file": str(folder / "coordinator.json")},
        "python": sys.executable,
        "workdir": None,
        "node_dir": str(folder / "nodes/{node}"),
        "logdir": str(folder / "logdir"),
        "checkpoints": str(folder / "checkpoints"),
        "results": str(folder / "results"),
        "keep_checkpoints": 3,
        "devices": None,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    return [sys.executable, "-S", "-E", str(folder / "worker.zip"), str(folder / "plan.json"), "--node", "0"]


def start(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """The worker with its output in a file, as the local backend has it, and a lifeline as its input."""
    with log.open("wb") as out:
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT)


def finish(worker: subprocess.Popen[bytes], log: Path, timeout: float = 300) -> None:
    if worker.wait(timeout) != 0:
        sys.exit(f"the worker ended with {worker.returncode}:\n{log.read_text(errors='replace')[-4000:]}")


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def tell(what: str, measured: str, target: str, reached: bool) -> None:
    """One line of the report: `ok` or `MISSED`, what was measured, and what was to be reached."""
    print(f"{'ok    ' if reached else 'MISSED'} {what}: {measured} (to reach: {target})", flush=True)
