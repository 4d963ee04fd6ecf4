"""The worker as a foreign machine has it: a zip and a plan, under Python 3.9 as under the interpreter of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kfnb.backends.package import worker_zip
from kfnb.source import cell_source
from kfnb_worker import values

BODY = """\
import asyncio
import sys

import kfnb_worker as kf

await asyncio.sleep(0)
!echo shell of rank $RANK
print(f"Python {sys.version_info[0]}.{sys.version_info[1]} rank {kf.rank()} of {kf.world_size()}")
for step in range(3):
    kf.log(step, loss=1.0 / (step + 1 + kf.rank()))
    kf.progress(step + 1, 3)
folder = kf.checkpoint_dir(2)
if kf.rank() == 0:
    (folder / "state").write_text("saved")
kf.commit(2)
assert (kf.latest() / "state").read_text() == "saved"
if kf.rank() == failing:
    raise RuntimeError("told to fail")
answer = {"ranks": kf.world_size()}
"""


@dataclass
class Machine:
    """An interpreter, and the folder that it and the test share: ``shared`` here, ``inside`` there."""

    python: str
    version: str
    prefix: list[str]
    shared: Path
    inside: Path


@pytest.fixture(params=["python3.9", "here"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    if request.param == "here":
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        yield Machine(sys.executable, version, [], tmp_path, tmp_path)
        return
    root = os.environ.get("KFNB_TEST_PYTHON39_ROOT")
    if not root:
        pytest.skip("KFNB_TEST_PYTHON39_ROOT names no root of a system with Python 3.9")
    if os.geteuid() != 0:
        pytest.skip("entering KFNB_TEST_PYTHON39_ROOT needs root rights")
    enter = 'mount --bind /proc "$0/proc" && exec chroot "$0" "$@"'
    with tempfile.TemporaryDirectory(dir=Path(root) / "tmp") as shared:
        inside = Path("/") / Path(shared).relative_to(root)
        yield Machine("/usr/bin/python3", "3.9", ["unshare", "-m", "sh", "-c", enter, root], Path(shared), inside)


def run_job(machine: Machine, failing: int) -> tuple[list[int], list[list[str]]]:
    """Two workers, two ranks each. Returns their exit codes and the lines that each wrote."""
    bundle = cell_source(
        BODY,
        first_line=2,
        namespace={"failing": failing},
        use=("failing",),
        out=("answer",),
        modules=(),
        pip=(),
        cwd=machine.shared,
    )
    (machine.shared / "worker.zip").write_bytes(worker_zip())
    (machine.shared / "bundle.zip").write_bytes(bundle.data)
    (machine.shared / "secret.json").write_text(json.dumps({"token": "0" * 64, "env": {}}))
    (machine.shared / "secret.json").chmod(0o600)
    at = machine.inside
    plan = {
        "v": 1,
        "job": "old-00000",
        "nodes": 2,
        "procs": 2,
        "framework": "python",
        "attempt": 0,
        "retries": 0,
        "grace": 5,
        "args": [],
        "env": {},
        "precision": None,
        "bundle": str(at / "bundle.zip"),
        "bundle_sha256": bundle.sha256,
        "secret": str(at / "secret.json"),
        "coordinator": {"host": "127.0.0.1", "port": 0, "file": str(at / "coordinator.json")},
        "python": machine.python,
        "workdir": None,
        "node_dir": str(at / "nodes/{node}"),
        "logdir": str(at / "logdir"),
        "checkpoints": str(at / "checkpoints"),
        "results": str(at / "results"),
        "keep_checkpoints": 3,
        "devices": None,
    }
    (machine.shared / "plan.json").write_text(json.dumps(plan))
    for folder in ("nodes/0", "nodes/1", "logdir", "checkpoints", "results"):
        (machine.shared / folder).mkdir(parents=True)
    worker = [*machine.prefix, machine.python, "-S", "-E", str(at / "worker.zip"), str(at / "plan.json"), "--node"]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "KFNB_HOME": os.environ["KFNB_HOME"]}

    def start(node: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*worker, str(node)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True
        )

    running = [start(node) for node in range(2)]
    lines = [process.communicate(timeout=240)[0].splitlines() for process in running]
    return [process.returncode for process in running], lines


def records(lines: list[str], kind: str) -> list[dict[str, object]]:
    found = [json.loads(line.partition("] ")[2]) for line in lines if line.startswith("[kfnb:")]
    return [record for record in found if record["e"] == kind]


def test_a_job_runs_to_its_end(machine: Machine) -> None:
    codes, lines = run_job(machine, failing=-1)
    printed = {line.partition("] ")[2] for line in lines[0] + lines[1] if not line.startswith("[kfnb:")}
    assert codes == [0, 0], lines
    expected = {f"Python {machine.version} rank {rank} of 4" for rank in range(4)}
    assert printed >= expected | {f"shell of rank {rank}" for rank in range(4)}
    assert [record["outcome"] for record in records(lines[0], "end") + records(lines[1], "end")] == ["succeeded"] * 2
    points = [record["p"]["loss"] for record in records(lines[0], "s") if record["r"] == 0]  # type: ignore[index]
    assert [value for _, _, found in points for value in found] == [1.0, 1 / 2, 1 / 3]
    found, errors = values.load_results(machine.shared / "results")
    assert (found, errors) == ({"answer": {"ranks": 4}}, {})


def test_a_failing_rank_ends_all(machine: Machine) -> None:
    codes, lines = run_job(machine, failing=3)
    assert codes == [1, 1], lines
    (failure,) = records(lines[1], "failure")
    assert (failure["r"], failure["type"], failure["message"]) == (3, "RuntimeError", "told to fail")
    assert failure["line"] == 1 + BODY.splitlines().index('    raise RuntimeError("told to fail")')
