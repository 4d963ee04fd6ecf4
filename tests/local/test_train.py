"""Whole jobs on this machine through the SDK: real ranks, what they say, and what comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import kfnb
from kfnb.errors import JobFailed, KfnbError, UsageError
from kfnb.events import Batch, LogLine, Phase, PhaseChanged, Points
from tests.local.jobs import assert_nothing_runs, detached, processes_of, wait_for_line
from tests.waiting import wait_for

ALL_REDUCE = """
import os, sys, torch, torch.distributed as dist
import kfnb_worker as kf
dist.init_process_group("gloo")
x = torch.ones(1) * kf.rank()
dist.all_reduce(x)
print("sum", x.item(), flush=True)
for step in range(5):
    kf.log(step, loss=1.0 / (step + 1) + kf.rank())
    kf.progress(step + 1, 5)
total = {"sum": x.item(), "tensor": x, "world": kf.world_size()}
dist.destroy_process_group()
"""


def test_two_nodes_of_two_ranks_reduce_and_bring_their_values_back() -> None:
    job = kfnb.train(ALL_REDUCE, name="reduce", nodes=2, procs_per_node=2, out="total")
    result = job.result()["total"]
    assert (result["sum"], result["world"]) == (6.0, 4)
    assert result["tensor"].item() == 6.0
    assert Counter((line.rank, line.text) for line in job.logs() if line.text.startswith("sum")) == {
        (rank, "sum 6.0"): 1 for rank in range(4)
    }
    scalars = job.scalars()
    assert sorted(key.rank for key in scalars) == [0, 1, 2, 3]
    series = scalars.find("loss", rank=2)
    assert series.step.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(series.value, 2 + 1 / np.arange(1, 6))
    assert job.phase is Phase.SUCCEEDED
    assert [info.id for info in kfnb.jobs()] == [job.id]
    assert kfnb.attach("reduce") == kfnb.attach(job.id) == job
    assert_nothing_runs(job.id)


def test_two_jobs_of_one_name_at_once_do_not_meet() -> None:
    jobs = [detached(ALL_REDUCE, name="twin", nodes=2, out="total") for _ in range(2)]
    assert len({job.id for job in jobs}) == 2
    for job in jobs:
        assert job.wait(timeout=120).result()["total"]["sum"] == 1.0


def test_two_readers_see_every_event_once_and_one_resumes_where_it_was() -> None:
    code = """
import time, kfnb_worker as kf
for step in range(400):
    print("line", step, flush=True)
    kf.log(step, loss=step)
    time.sleep(0.002)
"""
    job = detached(code, name="read", nodes=2, framework="python")
    first: list[object] = []
    cursor = None
    stream = job.events()
    for batch in stream:
        first += batch.events
        cursor = batch.cursor
        if sum(isinstance(event, LogLine) for event in first) > 50:
            break
    for batch in job.events(cursor):
        first += batch.events
    second = [event for batch in job.events() for event in batch.events]
    for events in (first, second):
        lines = Counter((event.rank, event.text) for event in events if isinstance(event, LogLine))
        assert lines == {(rank, f"line {step}"): 1 for rank in range(2) for step in range(400)}
        points = Counter((p.rank, step) for p in events if isinstance(p, Points) and not p.keyframe for step in p.steps)
        assert points == {(rank, step): 1 for rank in range(2) for step in range(400)}


def test_a_copied_secret_is_nowhere_but_in_the_ranks(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "s3cr3t-" + os.urandom(8).hex()
    monkeypatch.setenv("TOKEN", secret)
    code = """
import os, time, hashlib
print("digest", hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
raise RuntimeError("to have a record of a failure too")
"""
    monkeypatch.chdir(home.parent)
    job = detached(code, name="secret", framework="python", env="TOKEN", nodes=2)
    wait_for_line(job, "digest")

    def readable_files_with_it() -> list[str]:
        return [
            str(path)
            for path in home.rglob("*")
            if path.is_file() and path.stat().st_mode & 0o077 and secret.encode() in path.read_bytes()
        ]

    assert readable_files_with_it() == []
    assert not any(secret in " ".join(process.cmdline()) for process in processes_of(job.id))
    (home.parent / "go").touch()
    with pytest.raises(JobFailed) as caught:
        job.wait(timeout=60)
    assert secret not in str(caught.value)
    leftovers = [str(path) for path in home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert leftovers == []
    assert secret not in job.record.model_dump_json()
    assert secret not in "".join(capfd.readouterr())


def test_a_copy_of_what_is_not_set_is_refused_before_anything_is_made(home: Path) -> None:
    with pytest.raises(UsageError, match="NOT_SET"):
        kfnb.train("print(1)", env="NOT_SET")
    assert kfnb.jobs() == []


def test_more_gpus_than_there_are_is_refused_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFNB_LOCAL_GPUS", "0,1")
    with pytest.raises(KfnbError, match="2"):
        kfnb.train("print(1)", nodes=2, gpus=2)


def test_gpus_are_leased_between_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFNB_LOCAL_GPUS", "0,1")
    code = """
import os, time
print("has", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.02)
"""
    gate = Path(os.environ["KFNB_HOME"]).parent / "gate"
    first = detached(code, name="first", gpus=2, procs_per_node=1, framework="python", env={"GATE": str(gate)})
    wait_for_line(first, "has 0,1")
    second = detached(code, name="second", nodes=2, gpus=1, framework="python", env={"GATE": str(gate)})
    wait_for(lambda: first.id in second.info.reason, timeout=30, what="the second job to wait for the first's GPUs")
    assert second.phase is Phase.PENDING
    gate.touch()
    second.wait(timeout=60)
    assert {line.text for line in second.logs()} == {"has 0", "has 1"}


def test_a_function_and_a_script_train_as_well(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, kfnb_worker as kf\nprint('args', sys.argv[1:], kf.world_size())\n")
    job = kfnb.train(script, args=("--lr", "0.1"), procs_per_node=2, framework="python")
    assert [line.text for line in job.logs()] == ["args ['--lr', '0.1'] 2"] * 2
    assert job.record.code == script.read_text()


def test_a_deleted_job_is_gone() -> None:
    job = kfnb.train("print(1)", framework="python")
    job.delete()
    assert kfnb.jobs() == []
    with pytest.raises(KfnbError, match="no job"):
        kfnb.attach(job.id)


def test_a_running_job_is_not_deleted() -> None:
    job = detached("import time; print('up', flush=True); time.sleep(600)", framework="python")
    wait_for_line(job, "up")
    with pytest.raises(KfnbError, match=r"(?i)stop"):
        job.delete()
    job.stop().delete()
    assert_nothing_runs(job.id)


def test_export_writes_plain_files(tmp_path: Path) -> None:
    job = kfnb.train(ALL_REDUCE, nodes=2, out="total")
    folder = job.export(tmp_path / "kept")
    assert (folder / "code" / "main.py").read_text() == ALL_REDUCE
    assert "sum 1.0" in (folder / "log.txt").read_text()
    assert (folder / "scalars.csv").read_text().count("loss") == 10
    assert (folder / "results").is_dir()
    with pytest.raises(UsageError, match="exists already"):
        job.export(tmp_path / "kept")


def test_compare_names_what_differs_and_the_first_nan() -> None:
    code = """
import kfnb_worker as kf
for step in range(5):
    kf.log(step, loss=float("nan") if SCALE > 1 and step > 2 else SCALE / (step + 1))
"""
    good = kfnb.train("SCALE = 1\n" + code, name="good", framework="python")
    bad = kfnb.train("SCALE = 2\n" + code, name="bad", framework="python", nodes=2)
    comparison = kfnb.compare("good", bad.id)
    rows = {label: cells for _, label, cells in comparison.rows}
    assert rows["nodes"] == ["-", "2"]
    assert rows["code"] == ["-", "differs"]
    assert rows["loss"][0] == "0.2 @ 4 (best 0.2 @ 4)"
    assert rows["loss"][1] == "nan @ 4 (best 0.6667 @ 2) [nan since step 3]"
    assert "-SCALE = 1" in comparison.diffs[bad.id]
    assert good.id in comparison.text()


def test_a_client_that_dies_right_after_submission_leaves_a_job_that_runs_on(home: Path) -> None:
    code = """
import kfnb, os
job = kfnb.train("print(42)", name="orphan", framework="python", detach=True)
print(job.id, flush=True)
os.kill(os.getpid(), 9)
"""
    client = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert client.returncode == -signal.SIGKILL
    job = kfnb.attach(client.stdout.strip())
    assert job.wait(timeout=60).phase is Phase.SUCCEEDED
    assert [line.text for line in job.logs()] == ["42"]


def test_many_lines_and_bars_are_kept_whole_and_the_bars_folded() -> None:
    code = """
import sys, time
for i in range(50_000):
    print(f"{i:06d} " + "x" * 190)
    if i % 50 == 0:
        sys.stderr.write(f"\\r{i // 500:3d}%|###")
sys.stderr.write("\\r100%|###|\\n")
"""
    job = kfnb.train(code, nodes=2, procs_per_node=2, framework="python")
    seen: Counter[tuple[int | None, str]] = Counter()
    bars: Counter[int | None] = Counter()
    transient = 0
    for batch in job.events():
        for event in batch.events:
            if isinstance(event, LogLine):
                if event.transient:
                    transient += 1
                elif event.stream == "stdout":
                    seen[event.rank, event.text[:6]] += 1
                else:
                    assert event.text == "100%|###|"
                    bars[event.rank] += 1
    assert seen == {(rank, f"{i:06d}"): 1 for rank in range(4) for i in range(50_000)}
    assert bars == {0: 1, 1: 1, 2: 1, 3: 1}
    assert transient < 200


def test_phases_are_told_in_order_with_reasons() -> None:
    job = kfnb.train("print(1)", framework="python")
    phases = [e.phase for batch in job.events() for e in batch.events if isinstance(e, PhaseChanged)]
    assert list(dict.fromkeys(phases)) == [Phase.SUBMITTING, Phase.PENDING, Phase.RUNNING, Phase.SUCCEEDED]
    info = job.info
    assert info.started is not None
    assert info.ended is not None
    assert info.created <= info.started <= info.ended <= time.time()


def test_every_batch_has_a_cursor_and_after_the_last_nothing_comes() -> None:
    job = kfnb.train("print(1)", framework="python")
    batches: list[Batch] = list(job.events())
    assert all(batch.cursor for batch in batches)
    assert not any(batch.events for batch in job.events(batches[-1].cursor))


def test_a_value_that_cannot_come_back_says_so_and_costs_no_other() -> None:
    job = kfnb.train("good = 1\nbad = open\nif False:\n    absent = 1", framework="python", out="good,bad,absent")
    with pytest.raises(KfnbError, match=r"not all of --out came back") as caught:
        job.result()
    assert "bad" in caught.value.why
    assert "absent" in caught.value.why
    assert job.result(partial=True) == {"good": 1}


def test_precision_reaches_the_libraries_that_read_it() -> None:
    code = "import os; print(os.environ['ACCELERATE_MIXED_PRECISION'], os.environ['KFNB_PRECISION'])"
    job = kfnb.train(code, framework="python", precision="bf16")
    assert [line.text for line in job.logs()] == ["bf16 bf16"]


def test_a_rank_that_leaves_without_its_results_says_so() -> None:
    job = kfnb.train("import os\nx = 1\nos._exit(0)", framework="python", out="x")
    with pytest.raises(KfnbError, match="x: rank 0 stored no such value"):
        job.result()


def test_a_channel_that_user_code_closed_fails_no_training() -> None:
    code = """
import os, kfnb_worker as kf
kf.log(0, loss=1.0)
os.closerange(3, 64)
for step in range(1, 3):
    kf.log(step, loss=1.0)
print("done")
"""
    job = kfnb.train(code, framework="python")
    assert [line.text for line in job.logs()] == ["done"]
