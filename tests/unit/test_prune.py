"""What is removed to keep the home bounded, and what never is."""

from __future__ import annotations

import os
import time

import pytest

from kfnb.backends.local import prune, rundir
from kfnb.backends.local.prune import DAY


def job(name, *, phase="Succeeded", age=0.0, size=0, ttl=None):
    """A job that ended (or was last heard of) `age` seconds ago."""
    run = rundir.reserve_id(rundir.open_home() / "jobs", name)
    rundir.write_json(run.record, {"id": run.id})
    rundir.write_json(run.plan, {"local": {"ttl": ttl}})
    (run.path / "data").write_bytes(os.urandom(size))
    rundir.write_atomic(
        run.phases, b'{"t": %r, "phase": "%s", "reason": "", "a": 0}\n' % (time.time() - age, phase.encode())
    )
    return run


def venv(name, *, age=0.0, size=0):
    path = rundir.open_home() / "venvs" / name
    path.mkdir()
    (path / "data").write_bytes(os.urandom(size))
    marker = path / "complete.json"
    marker.touch()
    os.utime(marker, (time.time() - age,) * 2)
    return path


def removed(**options):
    return {removal.name for removal in prune.prune(**options)}


def test_what_is_old_goes_and_what_is_not_stays():
    old, new = job("old", age=31 * DAY), job("new", age=29 * DAY)
    old_venv, new_venv = venv("old", age=31 * DAY), venv("new", age=DAY)
    assert removed() == {old.id, "old"}
    assert not old.path.exists()
    assert not old_venv.exists()
    assert new.path.exists()
    assert new_venv.exists()


def test_the_oldest_go_until_the_rest_fits():
    runs = [job(f"job{age}", age=age * 3600, size=300_000) for age in (3, 2, 1)]
    environment = venv("venv", age=10 * 3600, size=300_000)
    assert removed(max_bytes=700_000) == {"venv", runs[0].id}
    assert not environment.exists()
    assert [run.path.exists() for run in runs] == [False, True, True]


@pytest.mark.parametrize("phase", ["Pending", "Running", "Restarting", "Stopping"])
def test_a_job_that_has_not_ended_stays_whatever_its_age_and_size(phase):
    run = job("alive", phase=phase, age=365 * DAY, size=500_000, ttl=1)
    ended = job("ended", size=10_000)
    # it counts in the size all the same
    assert removed(max_bytes=400_000) == {ended.id}
    assert run.path.exists()


def test_an_ended_job_whose_supervisor_still_works_stays():
    run = job("busy", age=365 * DAY)
    lock = rundir.take_lock(run.lock)
    try:
        assert removed() == set()
    finally:
        os.close(lock)
    assert removed() == {run.id}


def test_an_environment_in_use_stays():
    path = venv("used", age=365 * DAY)
    lock = rundir.take_lock(path.with_name("used.lock"), shared=True)
    try:
        assert removed() == set()
    finally:
        os.close(lock)
    assert removed() == {"used"}


def test_ttl_counts_from_the_end():
    over, not_over = job("over", age=100, ttl=60), job("later", age=100, ttl=1000)
    assert [removal.name for removal in prune.remove_expired()] == [over.id]
    assert not over.path.exists()
    assert not_over.path.exists()


def test_a_dry_run_says_what_and_why_and_removes_nothing():
    old, over = job("old", age=40 * DAY, size=50_000), job("over", age=100, ttl=60)
    found = {removal.name: removal for removal in prune.prune(dry_run=True)}
    assert set(found) == {old.id, over.id}
    assert "unused for 40 days" in found[old.id].why
    assert found[old.id].bytes >= 50_000
    assert "--ttl of 60 s" in found[over.id].why
    assert old.path.exists()
    assert over.path.exists()


def test_without_being_asked_only_what_is_no_ones_goes():
    mine, over, environment = job("mine", age=400 * DAY), job("over", age=100, ttl=60), venv("old", age=31 * DAY)
    kept = venv("kept", age=DAY)
    prune.tidy()
    assert [path.exists() for path in (mine.path, over.path, environment, kept)] == [True, False, False, True]


def test_what_a_killed_client_left_goes_after_a_while():
    jobs = rundir.open_home() / "jobs"
    reserved, young, gone = rundir.reserve_id(jobs, "reserved"), rundir.reserve_id(jobs, "young"), jobs / ".gone-x"
    gone.mkdir()
    for path in (reserved.path, gone):
        os.utime(path, (time.time() - 3600,) * 2)
    assert removed() == {reserved.id, ".gone-x"}
    assert [path.name for path in jobs.iterdir()] == [young.id]
