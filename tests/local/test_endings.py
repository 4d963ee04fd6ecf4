"""How jobs end that do not simply succeed: failures, kills, stops, restarts, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import kfnb
from kfnb.errors import JobFailed, JobLost, JobStopped
from kfnb.events import Checkpoint, Failure, Phase, PhaseChanged
from tests.local.jobs import assert_nothing_runs, detached, wait_for_line
from tests.waiting import wait_for


def test_the_first_failing_rank_is_the_failure_while_the_others_hang() -> None:
    code = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
if int(os.environ["RANK"]) == 3:
    raise ValueError("the data is bad")
dist.all_reduce(torch.ones(1))
time.sleep(600)
"""
    job = detached(code, name="bad", nodes=2, procs_per_node=2)
    with pytest.raises(JobFailed) as caught:
        job.wait(timeout=60)
    failure = caught.value.failure
    assert (failure.rank, failure.node, failure.type, failure.line) == (3, 1, "ValueError", 5)
    assert "Rank 3 (node 1) raised ValueError: the data is bad at line 5" in str(caught.value)
    shown = "\n".join(caught.value._render_traceback_())
    assert 'File "main.py", line 5' in shown
    assert 'raise ValueError("the data is bad")' in shown
    assert "kfnb_worker" not in shown
    assert not any("terminate called" in line.text or "Fatal Python" in line.text for line in job.logs())
    assert_nothing_runs(job.id)


def test_a_killed_rank_ends_all_at_once_and_says_so() -> None:
    code = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("joined", flush=True)
if int(os.environ["RANK"]) == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(1))
"""
    job = detached(code, name="killed", nodes=2)
    with pytest.raises(JobFailed, match=r"Rank 1 \(node 1\).*SIGKILL"):
        job.wait(timeout=60)
    assert_nothing_runs(job.id)


RESUMING = """
import os, signal, torch, torch.distributed as dist
import kfnb_worker as kf
dist.init_process_group("gloo")
start, latest = 0, kf.latest()
if latest:
    start = torch.load(os.path.join(latest, "state.pt"), weights_only=True)["step"] + 1
for step in range(start, 10):
    loss = torch.tensor(10.0 - step)
    dist.all_reduce(loss)
    if kf.rank() == 0:
        kf.log(step, loss=loss.item())
    folder = kf.checkpoint_dir(step)
    if kf.rank() == 0:
        torch.save({"step": step}, os.path.join(folder, "state.pt"))
    kf.commit(step)
    if step == 5 and start == 0 and kf.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
started_from = start
dist.destroy_process_group()
"""


def test_a_retry_starts_all_ranks_again_from_the_checkpoint_and_the_curve_is_whole() -> None:
    job = kfnb.train(RESUMING, name="resume", nodes=2, retries=1, out="started_from")
    assert job.result()["started_from"] in (5, 6)
    series = job.scalars().find("loss")
    assert series.step.tolist() == list(range(10))
    events = [event for batch in job.events() for event in batch.events]
    reasons = [e.reason for e in events if isinstance(e, PhaseChanged) and e.phase is Phase.RESTARTING]
    assert any("SIGKILL" in reason and "attempt 1" in reason for reason in reasons)
    assert any(isinstance(event, Checkpoint) and event.step == 9 for event in events)


def test_a_kept_checkpoint_folder_is_gone_on_from_by_the_next_job(tmp_path: Path) -> None:
    with pytest.raises(JobFailed):
        kfnb.train(RESUMING, name="first", nodes=2, checkpoint=str(tmp_path / "ckpt"))
    again = kfnb.train(RESUMING, name="second", nodes=2, checkpoint=str(tmp_path / "ckpt"), out="started_from")
    assert again.result()["started_from"] in (5, 6)


def test_stop_lets_the_ranks_save_and_leave() -> None:
    code = """
import time, kfnb_worker as kf
print("looping", flush=True)
while not kf.stopping():
    time.sleep(0.05)
print("saved", flush=True)
"""
    job = detached(code, name="stoppable", nodes=2, framework="python")
    wait_for(lambda: sum(line.text == "looping" for line in job.logs()) == 2, timeout=60, what="both ranks to loop")
    job.stop()
    assert job.phase is Phase.STOPPED
    assert sum(line.text == "saved" for line in job.logs()) == 2
    with pytest.raises(JobStopped):
        job.wait()
    assert_nothing_runs(job.id)


def test_stop_kills_what_does_not_listen_after_its_grace() -> None:
    code = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
escaped = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.setsid(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", escaped])
print("deaf", flush=True)
time.sleep(600)
"""
    job = detached(code, name="deaf", framework="python", grace=1)
    wait_for_line(job, "deaf")
    job.stop()
    assert job.phase is Phase.STOPPED
    assert_nothing_runs(job.id)


def test_timeout_counts_from_running_and_is_the_reason() -> None:
    job = detached("import time; time.sleep(600)", name="slow", framework="python", timeout=1, grace=1)
    with pytest.raises(JobFailed, match=r"(?i)time"):
        job.wait(timeout=60)
    assert_nothing_runs(job.id)


def test_a_killed_supervisor_is_a_lost_job_and_leaves_nothing(home: Path) -> None:
    job = detached("import time; print('up', flush=True); time.sleep(600)", name="lost", nodes=2, framework="python")
    wait_for_line(job, "up")
    supervisor = json.loads((home / "jobs" / job.id / "supervisor.json").read_text())
    os.kill(supervisor["pid"], signal.SIGKILL)
    wait_for(lambda: job.phase is Phase.LOST, timeout=30, what="the job to be lost")
    assert "supervisor" in job.info.reason
    with pytest.raises(JobLost):
        job.wait(timeout=30)
    assert_nothing_runs(job.id)


def test_stacks_of_a_hanging_job_name_the_line() -> None:
    code = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("waiting", flush=True)
if dist.get_rank() == 0:
    dist.recv(torch.ones(1), src=1)
else:
    import time
    time.sleep(600)
"""
    job = detached(code, name="hang", nodes=2)
    wait_for_line(job, "waiting")
    stacks = wait_for(
        lambda: (s := job.stacks()) and "main.py" in s.get(0, "") and s, timeout=60, what="rank 0 to be in recv"
    )
    assert "line 6" in stacks[0]
    job.stop()
    assert_nothing_runs(job.id)


def test_failures_of_every_rank_end_in_one_first_failure() -> None:
    job = detached("raise SystemExit(3)", nodes=2, procs_per_node=2, framework="python")
    with pytest.raises(JobFailed, match="3"):
        job.wait(timeout=60)
    failures = [e for batch in job.events() for e in batch.events if isinstance(e, Failure)]
    assert failures
    assert {failure.kind for failure in failures} == {"exit"}


def test_the_message_of_an_exit_is_the_reason() -> None:
    job = detached("import sys; sys.exit('no data in the folder')", framework="python")
    with pytest.raises(JobFailed, match="exit code 1: no data in the folder"):
        job.wait(timeout=60)


LOADS = """
import torch.utils.data as data
class Rows(data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return SIZE + i
list(data.DataLoader(Rows(), num_workers=1, multiprocessing_context="spawn"))
"""


MAPS = """
import multiprocessing
def work(i): return SIZE + i
with multiprocessing.get_context("spawn").Pool(1) as pool:
    pool.map(work, [1])
"""


@pytest.mark.parametrize("use", [LOADS, MAPS], ids=["DataLoader", "Pool"])
def test_a_spawned_child_without_a_name_of_the_cell_says_why(use: str) -> None:
    job = detached("SIZE = int('8')\n" + use, framework="python")
    with pytest.raises(JobFailed) as caught:
        job.wait(timeout=120)
    assert "NameError: name 'SIZE' is not defined" in caught.value.failure.traceback
    assert "SIZE: the cell has it, and a spawned child does not" in caught.value.failure.traceback


@pytest.mark.parametrize("last", ["pass", "raise ValueError('bad')"])
def test_what_a_rank_leaves_to_its_end_is_done(tmp_path: Path, last: str) -> None:
    code = f"""
import atexit, threading
gate = threading.Event()
def save():
    gate.wait()
    print("saved by a thread", flush=True)
threading.Thread(target=save).start()
atexit.register(lambda: print("at exit", end=""))
threading.Timer(0.2, gate.set).start()
text, binary = open({str(tmp_path / "text")!r}, "w"), open({str(tmp_path / "binary")!r}, "wb")
text.write("not closed")
binary.write(b"neither")
{last}
"""
    job = detached(code, framework="python")
    if last == "pass":
        job.wait(timeout=60)
    else:
        with pytest.raises(JobFailed, match="ValueError: bad"):
            job.wait(timeout=60)
    assert [line.text for line in job.logs() if line.stream == "stdout"] == ["saved by a thread", "at exit"]
    assert (tmp_path / "text").read_text() == "not closed"
    assert (tmp_path / "binary").read_bytes() == b"neither"
