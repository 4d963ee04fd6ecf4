"""What the run directory promises: whole files, phases that survive torn writes, locks that end with their holder."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.backends.local import rundir
from kfnb.backends.local.rundir import RunDir
from kfnb.errors import BackendError, NotFound
from kfnb.home import home as kfnb_home


@pytest.fixture
def run() -> RunDir:
    return rundir.reserve_id(rundir.open_home() / "jobs", "job")


def mode(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_home_is_private(home):
    before = os.umask(0)
    try:
        rundir.open_home()
        run = rundir.reserve_id(home / "jobs", "job")
        rundir.write_atomic(run.secret, b"{}")
        rundir.append_phase(run, "Running", "")
    finally:
        os.umask(before)
    assert [mode(path) for path in (home, home / "jobs", run.path)] == [0o700] * 3
    assert [mode(path) for path in (run.secret, run.phases)] == [0o600] * 2


def test_the_home_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("KFNB_HOME", "~/there")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kfnb_home() == tmp_path / "there"
    monkeypatch.delenv("KFNB_HOME")
    assert kfnb_home() == tmp_path / ".local" / "share" / "kfnb"


def test_a_home_that_cannot_be_written_is_refused(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("KFNB_HOME", str(file / "below"))
    with pytest.raises(BackendError) as caught:
        rundir.open_home()
    assert str(file) in caught.value.what
    assert "KFNB_HOME" in caught.value.fix


def test_ids_do_not_clash():
    jobs = rundir.open_home() / "jobs"
    runs = [rundir.reserve_id(jobs, "same") for _ in range(50)]
    assert len({run.id for run in runs}) == 50
    assert all(run.path.is_dir() and run.id.startswith("same-") and len(run.id) == 10 for run in runs)


def test_a_reserved_directory_is_no_job_before_its_record(run):
    with pytest.raises(NotFound):
        rundir.find(run.id)
    assert list(rundir.jobs()) == []
    rundir.write_json(run.record, {})
    assert rundir.find(run.id).path == run.path
    assert [job.id for job in rundir.jobs()] == [run.id]


@pytest.mark.parametrize("id", ["nothing-abcde", "../jobs", "../../job-aaaaa", ".", "", "a/b"])
def test_what_is_no_job_is_not_found(id):
    rundir.open_home()
    elsewhere = rundir.open_home().parent / "job-aaaaa"  # one that lies beside the jobs
    elsewhere.mkdir()
    (elsewhere / "record.json").write_text("{}")
    with pytest.raises(NotFound):
        rundir.find(id)


@given(data=st.data())
def test_a_torn_phase_is_passed_over_and_the_next_is_whole(data, tmp_path_factory):
    run = RunDir(tmp_path_factory.mktemp("run"))
    reasons = data.draw(st.lists(st.text(max_size=20), min_size=1, max_size=5))
    for reason in reasons:
        rundir.append_phase(run, "Pending", reason)
    content = run.phases.read_bytes()
    cut = data.draw(st.integers(0, 10_000)) % (len(content) + 1)
    run.phases.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    assert [entry["reason"] for entry, _ in rundir.read_phases(run)] == reasons[:whole]
    rundir.append_phase(run, "Running", "next")
    read = rundir.read_phases(run)
    # a line cut right before its newline is whole again
    assert [entry["reason"] for entry, _ in read][:whole] == reasons[:whole]
    assert read[-1][0]["reason"] == "next"
    assert read[-1][1] == run.phases.stat().st_size


def test_writes_replace_or_leave_alone(run):
    rundir.write_json(run.plan, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        rundir.write_json(run.plan, {"a": float("nan")})
    assert rundir.read_json(run.plan) == {"a": 1}
    run.plan.write_text("[1")
    assert rundir.read_json(run.plan) is None
    assert rundir.read_json(run.path / "missing") is None
    assert [path.name for path in run.path.iterdir()] == ["plan.json"]


def test_a_lock_is_handed_on_to_a_child_and_ends_with_it(run):
    lock = rundir.take_lock(run.lock)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock])
    os.close(lock)
    assert rundir.is_locked(run.lock)
    assert rundir.take_lock(run.lock) is None
    child.kill()
    child.communicate()
    assert not rundir.is_locked(run.lock)
    lock = rundir.take_lock(run.lock)
    assert lock is not None
    os.close(lock)


def test_shared_locks_keep_only_others_out(run):
    first = rundir.take_lock(run.lock, shared=True)
    second = rundir.take_lock(run.lock, shared=True)
    assert None not in (first, second)
    assert rundir.take_lock(run.lock) is None
    os.close(first)
    os.close(second)


def test_logs_are_found_by_node_and_restart(run):
    for name in ("0/0.log", "0/10.log", "0/2.log", "10/0.log", "2/0.log", "2/notes.log", "x/0.log"):
        path = run.nodes / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [(node, restart) for node, restart, _ in run.logs()] == [(0, 0), (0, 2), (0, 10), (2, 0), (10, 0)]


def test_removing_leaves_no_half_job(run, home):
    rundir.write_json(run.record, {})
    (run.path / "nodes").mkdir()
    rundir.remove(run)
    assert list((home / "jobs").iterdir()) == []


def test_a_reserve_does_not_take_the_last_of_a_disk(run, monkeypatch):
    monkeypatch.setattr(rundir, "free", lambda path: rundir.RESERVE_BYTES)
    with pytest.raises(OSError, match="space") as caught:
        rundir.write_reserve(run.reserve, rundir.RESERVE_BYTES)
    assert rundir.is_full(caught.value)
    assert not run.reserve.exists()


FULL = """
import json, resource, signal, sys
from pathlib import Path
from kfnb.backends.local import rundir
run = rundir.RunDir(Path(sys.argv[1]))
rundir.write_atomic(run.reserve, b"x" * rundir.RESERVE_BYTES)
rundir.append_phase(run, "Running", "")
resource.setrlimit(resource.RLIMIT_FSIZE, (run.phases.stat().st_size + 40,) * 2)
try:
    rundir.append_phase(run, "Restarting", "")
except OSError as error:
    print(error.errno, run.reserve.exists())
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)) if len(sys.argv) > 2 else None
try:
    rundir.append_phase(run, "Failed", "")
except OSError as error:
    print(error.errno, run.reserve.exists())
print(json.dumps([entry["phase"] for entry, _ in rundir.read_phases(run)]))
"""


def test_a_phase_that_cannot_be_written_keeps_the_reserve_for_the_last_one(run):
    done = subprocess.run([sys.executable, "-c", FULL, str(run.path)], capture_output=True, text=True, check=True)
    first, second, phases = done.stdout.splitlines()
    assert first.endswith("True")
    assert second.endswith("False")
    assert json.loads(phases) == ["Running"]
