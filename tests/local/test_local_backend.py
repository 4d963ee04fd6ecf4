"""``LocalBackend`` with real workers: what a submission makes, what ranks are given, and machines in a bad state."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import psutil
import pytest

import kfnb
from kfnb import portal
from kfnb.api import prepare_source
from kfnb.backends.local import lost, rundir
from kfnb.backends.package import worker_zip
from kfnb.errors import BackendError, JobFailed, JobStopped, NotFound
from kfnb.events import Failure, Gap, LogLine, Phase, PhaseChanged, RankState
from tests.local.test_venvs import make_wheel
from tests.waiting import wait_for

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def start(code: str, **options: object) -> kfnb.Job:
    return kfnb.train(code, **{"detach": True, "framework": "python", "grace": 2, **options})


def lines(job: kfnb.Job) -> list[str]:
    return [line.text for line in job.logs()]


def wait_up(job: kfnb.Job, count: int = 1) -> None:
    wait_for(lambda: lines(job).count("up") == count, timeout=90, what="the ranks to be up")


def workers(job: kfnb.Job) -> list[dict[str, int]]:
    return rundir.read_json(rundir.find(job.id).supervisor)["workers"]


def events(job: kfnb.Job, kind: type) -> list:
    return [event for batch in job.events() for event in batch.events if isinstance(event, kind)]


# --- what a submission makes


def test_the_worker_zip_is_the_same_bytes_and_all_of_it():
    content = worker_zip()
    worker_zip.cache_clear()
    assert worker_zip() == content
    names = zipfile.ZipFile(BytesIO(content)).namelist()
    assert names == sorted(names)
    package = {f"kfnb_worker/{path.name}" for path in (Path(__file__).parents[2] / "kfnb_worker").glob("*.py")}
    assert set(names) == package | {"__main__.py"}


def test_the_run_directory_has_what_a_repeat_and_a_reader_need(home):
    job = start("print(1)").wait()
    run = rundir.find(job.id)
    assert json.loads(run.record.read_text())["code"] == "print(1)"
    assert job.record.bundle_sha256 == portal.call(job._backend.bundle(job.id)).sha256
    plan = json.loads(run.plan.read_text())
    assert (plan["python"], plan["workdir"], plan["attempt"]) == (sys.executable, os.getcwd(), 0)
    assert not run.secret.exists()
    open_to_others = {path.name for path in run.path.iterdir() if path.stat().st_mode & 0o077}
    assert open_to_others <= {"coordinator.json"}  # the worker's: a port; and the folder is closed to others anyway
    assert run.path.stat().st_mode & 0o777 == 0o700


def test_a_dry_run_shows_the_plan_and_makes_nothing(home, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cr3t-value")
    prepared = portal.call(prepare_source("print(1)\n", {"nodes": 2, "env": ["A=b", "API_TOKEN"]}))
    text = portal.call(prepared.dry_run())
    assert "2 x 1 ranks" in text
    assert '"A": "b"' in text
    assert "API_TOKEN" in text
    assert "s3cr3t-value" not in text
    assert list((home / "jobs").iterdir()) == []


def test_options_without_effect_here_are_said(monkeypatch):
    monkeypatch.setenv("KFNB_LOCAL_GPUS", "0,1")
    notes = portal.call(prepare_source("print(1)\n", {"image": "pytorch:2", "memory": "4Gi"})).notes
    assert any("--image, --memory: without effect on this machine" in note for note in notes)
    assert any("has 2 GPUs; the job uses none" in note for note in notes)


def test_a_submission_that_fails_leaves_nothing(home, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BackendError, match="could not be started"):
        start("print(1)", workspace=str(tmp_path / "file" / "below"))
    assert list((home / "jobs").iterdir()) == []


def test_a_home_that_cannot_be_written_is_refused_before_anything(monkeypatch):
    monkeypatch.setenv("KFNB_HOME", "/proc/kfnb")
    with pytest.raises(BackendError, match="KFNB_HOME"):
        start("print(1)")


# --- what ranks are given


def test_ranks_have_the_environment_of_the_client_and_of_the_options(monkeypatch, tmp_path):
    monkeypatch.setenv("OF_THE_KERNEL", "inherited")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    code = """
import os
print(os.environ["OF_THE_KERNEL"], os.environ["GIVEN"], os.environ.get("MPLBACKEND"), os.getcwd())
"""
    job = start(code, env=["GIVEN=a=b c"], workspace=str(tmp_path / "ws")).wait()
    assert lines(job) == [f"inherited a=b c None {tmp_path / 'ws'}"]
    # what is only inherited is written nowhere
    run = rundir.find(job.id)
    for path in run.path.rglob("*"):
        if path.is_file() and path.suffix != ".log":
            assert b"inherited" not in path.read_bytes()


def test_a_home_relative_to_the_working_directory_is_that_of_all(monkeypatch, home):
    monkeypatch.setenv("KFNB_LOCAL_GPUS", "a")
    monkeypatch.setenv("KFNB_HOME", os.path.relpath(home))
    job = start("import os\nprint(os.environ['KFNB_HOME'])\n", gpus=1).wait()
    assert lines(job) == [str(home)]
    assert (home / "gpus" / "a.lock").exists()


def test_each_node_has_its_own_gpus(monkeypatch):
    monkeypatch.setenv("KFNB_LOCAL_GPUS", "a,b,c,d,e")
    code = "import os\nprint(os.environ['NODE_RANK'], os.environ['CUDA_VISIBLE_DEVICES'])\n"
    job = start(code, nodes=2, gpus=2, procs_per_node=1).wait()
    assert sorted(lines(job)) == ["0 a,b", "1 c,d"]
    job = start(code).wait()
    assert lines(job) == ["0 "]


def test_packages_are_installed_on_top_of_this_environment(tmp_path, monkeypatch, home):
    wheel = make_wheel(tmp_path / "wheels", "from the wheel")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    code = "import tinypackage, pydantic, sys\nprint(tinypackage.VALUE)\nprint(sys.prefix)\n"
    job = start(code, pip=[str(wheel)]).wait()
    value, prefix = [line.text for line in job.logs() if line.rank == 0]
    assert value == "from the wheel"
    assert Path(prefix).parent == home / "venvs"
    assert any("Successfully installed tinypackage" in line.text for line in job.logs() if line.rank is None)
    reasons = [event.reason for event in events(job, PhaseChanged)]
    assert any(reason.startswith("installing packages: ") for reason in reasons)


def test_packages_that_cannot_be_installed_end_the_job_in_pips_words(monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    job = start("print(1)", pip=["no-such-package-anywhere"])
    with pytest.raises(JobFailed, match="No matching distribution found for no-such-package-anywhere"):
        job.wait()
    assert [failure.type for failure in events(job, Failure)] == ["pip"]


# --- what goes wrong


def test_a_killed_worker_fails_the_job_and_is_the_reason():
    job = start(SLEEP, nodes=2)
    wait_up(job, 2)
    os.kill(workers(job)[1]["pid"], signal.SIGKILL)
    with pytest.raises(JobFailed) as caught:
        job.wait(timeout=90)
    assert "Node 1: its worker was killed by SIGKILL" in str(caught.value)
    assert (caught.value.failure.kind, caught.value.failure.node) == ("lost", 1)


def test_a_killed_worker_is_started_again_with_all_others():
    code = """
import os, time
print("attempt", os.environ["KFNB_ATTEMPT"], flush=True)
if os.environ["KFNB_ATTEMPT"] == "0":
    print("up", flush=True)
    time.sleep(600)
"""
    job = start(code, nodes=2, retries=1)
    wait_up(job, 2)
    os.kill(workers(job)[0]["pid"], signal.SIGKILL)  # the coordinator's
    job.wait(timeout=90)
    assert sorted(lines(job)) == ["attempt 0"] * 2 + ["attempt 1"] * 2 + ["up"] * 2
    phases = events(job, PhaseChanged)
    assert Phase.RESTARTING in [event.phase for event in phases]
    assert (phases[-1].phase, phases[-1].attempt) == (Phase.SUCCEEDED, 1)
    assert {line.restart for line in job.logs()} == {0, 1}


def test_the_job_of_a_killed_client_that_was_to_end_with_it_is_stopped():
    client = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        prepared = portal.call(prepare_source(SLEEP, {"framework": "python"}))
        job = portal.call(prepared.submit((client.pid, psutil.Process(client.pid).create_time())))
        wait_up(job)
        client.kill()
        with pytest.raises(JobStopped, match=f"pid {client.pid}"):
            job.wait(timeout=90)
    finally:
        client.kill()
        client.wait()


def test_a_killed_supervisor_loses_stubborn_ranks_too():
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
    job = start(code, nodes=2)
    wait_up(job, 2)
    run = rundir.find(job.id)
    psutil.Process(rundir.read_json(run.supervisor)["pid"]).kill()
    wait_for(lambda: not lost.alive(run), timeout=30, what="the supervisor to be gone")
    assert job.phase is Phase.LOST
    ranks = [rank for node in "01" for rank in rundir.read_json(run.nodes / node / "state.json")["ranks"]]
    assert len(ranks) == 2
    for rank in ranks:
        assert not psutil.pid_exists(rank["pid"]) or psutil.Process(rank["pid"]).status() == psutil.STATUS_ZOMBIE


def test_jobs_are_deleted_once_they_have_ended_and_expire():
    job = start(SLEEP)
    with pytest.raises(BackendError, match="not deleted"):
        job.delete()
    wait_up(job)
    job.stop()
    assert job.phase is Phase.STOPPED
    job.stop()  # a no-op by now
    job.delete()
    with pytest.raises(NotFound):
        _ = job.phase
    short = start("print(1)", ttl=0.1)
    wait_for(lambda: short.id not in [info.id for info in kfnb.jobs()], timeout=60, what="the job to expire")


@pytest.fixture
def small_disk(home: Path) -> Iterator[None]:
    """A home on a file system of 6 MiB."""
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "kfnb-test", str(home)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root on Linux only")
    yield
    subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_loses_lines_that_are_counted_and_not_the_end():
    code = """
for i in range(60_000):
    print(i, "x" * 100)
"""
    job = start(code)
    job.wait(timeout=120)
    seen = lines(job)
    (gap,) = events(job, Gap)
    assert "full" in gap.why or "written" in gap.why
    assert len(seen) > 5_000
    assert len(seen) + gap.count >= 60_000  # scalars, clocks and the like are lost lines, too
    assert len(seen) + gap.count < 61_000
    assert events(job, RankState)[-1].code == 0


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_that_fails_the_ranks_is_said():
    code = """
import os
with open(os.path.join(os.environ["KFNB_RESULTS"], "big"), "wb") as file:
    file.write(bytes(64 << 20))
"""
    job = start(code)
    with pytest.raises(JobFailed) as caught:
        job.wait(timeout=120)
    assert caught.value.failure.type == "OSError"
    assert job.phase is Phase.FAILED
    assert "was full" in job.info.reason


@pytest.mark.usefixtures("small_disk")
def test_a_disk_too_full_to_start_is_said(home):
    (home / "jobs").mkdir(parents=True)
    with contextlib.suppress(OSError):
        (home / "big").write_bytes(bytes(8 << 20))
    with pytest.raises(BackendError, match="could not be started") as caught:
        start("print(1)\n" + f"x = {'y' * (8 << 20)!r}\n")
    assert "room" in caught.value.fix
    assert kfnb.jobs() == []


def test_two_clients_of_one_job_see_the_same(home):
    job = start("for i in range(2000): print(i)", nodes=2)
    code = f"""
import kfnb
job = kfnb.attach({job.id!r})
print(sum(len([e for e in b.events if type(e).__name__ == "LogLine"]) for b in job.events()), job.phase)
"""
    others = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    mine = events(job, LogLine)
    assert len(mine) == 4000
    for other in others:
        out, _ = other.communicate(timeout=120)
        assert out == "4000 Succeeded\n"


def test_a_requirements_file_is_read_when_the_job_is_submitted(tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path / "wheels", "from the wheel")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text(f"# ours\n{wheel}\n")
    job = start("import tinypackage\nprint(tinypackage.VALUE)\n", pip=["requirements.txt"])
    (tmp_path / "requirements.txt").write_text("no-such-package-anywhere\n")
    job.wait()
    assert "from the wheel" in lines(job)
