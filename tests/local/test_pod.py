"""The worker as a pod runs it: its parts are mounted below one folder, and the pod's number is in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kfnb.backends.package import worker_zip
from kfnb.decode import StreamDecoder
from kfnb.events import AttemptStarted, Failure, JobEvent, LogLine, Note, RankState, Result, ResultPiece
from kfnb.source import cell_source
from kfnb_worker import values
from kfnb_worker.environment import free_port
from tests.waiting import wait_for

SLICE = 300


class Pods:
    """The pods of a hand-made job on this machine; they reach node 0 at a port of the loopback interface."""

    def __init__(self, path: Path, body: str, nodes: int = 1, procs: int = 2, **plan: Any) -> None:
        self.path, self.nodes = path, nodes
        out = ("answer",) if "answer =" in body else ()
        bundle = cell_source(body, first_line=1, namespace=None, use=(), out=out, modules=(), pip=(), cwd=path)
        common = {
            "v": 1,
            "job": "pods-abcde",
            "nodes": nodes,
            "procs": procs,
            "framework": "python",
            "attempt": 0,
            "retries": 0,
            "grace": 5,
            "args": [],
            "env": {},
            "precision": None,
            "bundle_sha256": bundle.sha256,
            "coordinator": {"host": "127.0.0.1", "port": free_port()},
            "python": sys.executable,
            "keep_checkpoints": 2,
            "results_in_log": True,
            **plan,
        }
        for node in range(nodes):
            root = path / str(node)
            for folder in ("code", "secret", "run"):
                (root / folder).mkdir(parents=True)
            (root / "code" / "worker.zip").write_bytes(worker_zip())
            (root / "code" / "pod.json").write_text(json.dumps(common))
            for index, start in enumerate(range(0, len(bundle.data), SLICE)):
                (root / "code" / f"bundle-{index:04d}").write_bytes(bundle.data[start : start + SLICE])
            (root / "secret" / "secret.json").write_text(json.dumps({"token": "secret", "env": {"COPIED": "value"}}))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> Pods:
        for node in range(self.nodes):
            self.start_node(node)
        return self

    def start_node(self, node: int) -> None:
        root = self.path / str(node)
        env = {
            **os.environ,
            "KFNB_POD_ROOT": str(root),
            "KFNB_TERMINATION_LOG": str(root / "termination"),
            "KFNB_NODE_INDEX": str(max(node - 1, 0)),  # as the workers of a PyTorchJob are numbered, after its master
            "KFNB_NODE_OFFSET": str(min(node, 1)),
        }
        with (root / "log").open("wb") as log:
            self.processes[node] = subprocess.Popen(
                [sys.executable, "-u", str(root / "code" / "worker.zip"), "--pod"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self) -> list[int]:
        return [process.wait(90) for _, process in sorted(self.processes.items())]

    def events(self, node: int) -> list[JobEvent]:
        return StreamDecoder(node).feed((self.path / str(node) / "log").read_bytes())

    def lines(self, node: int) -> list[str]:
        return [e.text for e in self.events(node) if isinstance(e, LogLine) and e.rank is not None]

    def termination(self, node: int) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / str(node) / "termination").read_text())
        return content


BODY = """
import os
import kfnb_worker as kf
print("rank", kf.rank(), "of", kf.world_size(), "has", os.environ["COPIED"], os.access(os.environ["HOME"], os.W_OK))
(kf.logdir() / "here").write_text(os.getcwd())
answer = {"ranks": kf.world_size(), "long": "x" * 20_000}
"""


def test_the_nodes_of_a_job_find_each_other_and_the_results_travel_by_the_log(tmp_path: Path) -> None:
    pods = Pods(tmp_path, BODY, nodes=3).start()
    assert pods.wait() == [0, 0, 0]
    assert sorted(line for node in range(3) for line in pods.lines(node)) == [
        f"rank {rank} of 6 has value True" for rank in range(6)
    ]
    assert pods.termination(2) == {"outcome": "succeeded"}
    events = pods.events(0)
    [result] = [event for event in events if isinstance(event, Result)]
    assert (result.names, result.errors) == (("answer",), {})
    pieces = [event for event in events if isinstance(event, ResultPiece)]
    folder = tmp_path / "results"
    folder.mkdir()
    for piece in pieces:
        (folder / piece.name).parent.mkdir(exist_ok=True)
        with (folder / piece.name).open("ab") as file:
            file.write(piece.data)
    assert len(pieces) > len({piece.name for piece in pieces})
    assert values.load_results(str(folder)) == ({"answer": {"ranks": 6, "long": "x" * 20_000}}, {})


def test_results_that_are_too_large_for_the_log_are_said_to_be(tmp_path: Path) -> None:
    pods = Pods(tmp_path, "answer = 'x' * 2_000_000", procs=1).start()
    assert pods.wait() == [0]
    notes = [event.text for event in pods.events(0) if isinstance(event, Note)]
    assert any("no more than 1048576 travel by the log" in note for note in notes), notes
    assert not [event for event in pods.events(0) if isinstance(event, ResultPiece)]


def test_a_container_that_is_started_again_after_a_failure_does_not_run_the_cell_again(tmp_path: Path) -> None:
    pods = Pods(tmp_path, "print('once')\nraise ValueError('on purpose')", procs=1).start()
    assert pods.wait() == [1]
    before = pods.termination(0)
    assert (before["outcome"], before["type"], before["message"]) == ("failed", "ValueError", "on purpose")
    assert [event.type for event in pods.events(0) if isinstance(event, Failure)] == ["ValueError"]
    (tmp_path / "0" / "termination").unlink()
    pods.start_node(0)
    assert pods.wait() == [1]
    assert pods.termination(0) == before
    assert pods.lines(0) == []
    [note] = [event for event in pods.events(0) if isinstance(event, Note)]
    assert "the cell is not run again" in note.text


def test_retries_are_the_coordinators_and_start_all_nodes_again(tmp_path: Path) -> None:
    body = """
import os
import kfnb_worker as kf
if kf.rank() == 1 and os.environ["KFNB_ATTEMPT"] == "0":
    raise ValueError("once")
answer = 1
"""
    pods = Pods(tmp_path, body, nodes=2, procs=1, retries=1).start()
    assert pods.wait() == [0, 0]
    for node in range(2):
        assert [event.attempt for event in pods.events(node) if isinstance(event, AttemptStarted)] == [1]


def test_a_job_that_runs_longer_than_its_time_out_fails(tmp_path: Path) -> None:
    pods = Pods(tmp_path, "import time\nwhile True: time.sleep(1)", nodes=2, procs=1, timeout=1.5).start()
    assert pods.wait() == [1, 1]
    [failure] = [event for event in pods.events(0) if isinstance(event, Failure)]
    assert (failure.kind, failure.rank) == ("timeout", None)
    assert failure.message == "it ran longer than its time-out of 1.5 s"
    assert pods.termination(1)["message"] == failure.message


def test_sigterm_stops_all_nodes(tmp_path: Path) -> None:
    pods = Pods(tmp_path, "import time\nprint('here')\nwhile True: time.sleep(1)", nodes=2, procs=1).start()
    wait_for(lambda: pods.lines(0) and pods.lines(1), timeout=60, what="both ranks")
    pods.processes[1].terminate()
    assert pods.wait() == [143, 143]
    assert {event.state for event in pods.events(0) if isinstance(event, RankState)} >= {"running", "exited"}


@pytest.mark.parametrize(("index", "offset", "node"), [("0", None, 0), ("3", None, 3), ("1", "1", 2)])
def test_a_pods_number(index: str, offset: str | None, node: int) -> None:
    from kfnb_worker.pod import node_number

    environ = {"KFNB_NODE_INDEX": index, **({"KFNB_NODE_OFFSET": offset} if offset else {})}
    assert node_number(environ) == node
