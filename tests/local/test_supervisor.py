"""The supervisor with workers of every kind: how jobs end, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil

from kfnb.backends.local import lost, processes, rundir
from kfnb.backends.local.gpus import Gpu, Leases
from tests.local.standin import end, last, make_run, phases, pids_of, supervise, wait_phase
from tests.waiting import wait_for

RUN = 'state("running")\n'
FOREVER = RUN + "while True: time.sleep(60)\n"
OBEYS = "signal.signal(signal.SIGTERM, lambda *_: os._exit(143))\n" + FOREVER
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER

FAILS = """
failure = {"e": "failure", "r": node, "node": node, "a": 0, "kind": "exception", "type": "ValueError",
           "message": f"from rank {node}", "traceback": "Traceback", "line": 3, "t": 100.0 - node}
(folder / "termination.json").write_text(json.dumps({"outcome": "failed", **failure}))
sys.exit(1)
"""


def test_success_passes_through_the_phases_and_leaves_no_secret():
    run = make_run(RUN + "time.sleep(0.5)\n", nodes=2)
    entry = end(run, supervise(run))
    assert entry["phase"] == "Succeeded"
    assert entry["exit"] == {"0": 0, "1": 0}
    assert phases(run) == ["Pending", "Running", "Succeeded"]
    assert not run.secret.exists()
    assert not rundir.is_locked(run.lock)


def test_failure_is_that_of_the_rank_that_failed_first():
    run = make_run(RUN + FAILS, nodes=2)
    entry = end(run, supervise(run))
    assert entry["phase"] == "Failed"
    assert entry["reason"] == "Rank 1 (node 1) raised ValueError: from rank 1 at line 3 of main.py"
    assert entry["failure"]["line"] == 3


def test_a_worker_that_crashes_says_its_last_words():
    run = make_run(RUN + "raise RuntimeError('a bug of the worker')\n")
    entry = end(run, supervise(run))
    assert entry["phase"] == "Failed"
    assert "Node 0: its worker ended with exit status 1: RuntimeError: a bug of the worker" in entry["reason"]
    assert entry["failure"]["kind"] == "lost"


def test_stop_by_marker_and_signal():
    run = make_run(OBEYS, nodes=2)
    supervisor = supervise(run)
    wait_phase(run, "Running")
    rundir.write_json(run.stop, {"reason": "Enough."})
    supervisor.send_signal(signal.SIGTERM)
    entry = end(run, supervisor)
    assert (entry["phase"], entry["reason"]) == ("Stopped", "Enough.")
    assert phases(run) == ["Pending", "Running", "Stopping", "Stopped"]


def test_stop_kills_what_does_not_obey():
    run = make_run(STUBBORN, grace=0.1)
    supervisor = supervise(run)
    wait_phase(run, "Running")
    rundir.write_json(run.stop, {"reason": "Enough."})
    entry = end(run, supervisor)
    assert entry["phase"] == "Stopped"
    assert entry["exit"] == {"0": -signal.SIGKILL}


def test_stop_is_too_late_for_a_job_that_has_succeeded():
    run = make_run("signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n" + FOREVER)
    supervisor = supervise(run)
    wait_phase(run, "Running")
    rundir.write_json(run.stop, {"reason": "Enough."})
    assert end(run, supervisor)["phase"] == "Succeeded"


def test_sigterm_alone_stops_too():
    run = make_run(OBEYS)
    supervisor = supervise(run)
    wait_phase(run, "Running")
    supervisor.send_signal(signal.SIGTERM)
    entry = end(run, supervisor)
    assert entry["phase"] == "Stopped"
    assert "SIGTERM" in entry["reason"]


def test_timeout_counts_from_running():
    # the worker comes up later than the timeout allows from the start of the supervisor
    run = make_run("time.sleep(1.5)\n" + OBEYS, timeout=1.0)
    entry = end(run, supervise(run))
    assert entry["phase"] == "Failed"
    assert entry["reason"] == "It ran longer than its --timeout of 1 s."
    assert "Running" in phases(run)


def test_a_killed_worker_without_retries_fails_the_job():
    run = make_run("signal.signal(signal.SIGTERM, lambda *_: os._exit(75))\n" + FOREVER, nodes=2)
    supervisor = supervise(run)
    wait_phase(run, "Running")
    pids = pids_of(run)
    os.kill(pids[1], signal.SIGKILL)
    os.kill(pids[0], signal.SIGTERM)  # as its coordinator would
    entry = end(run, supervisor)
    assert entry["phase"] == "Failed"
    assert "Node 1: its worker was killed by SIGKILL" in entry["reason"]
    assert (entry["failure"]["node"], entry["failure"]["kind"]) == (1, "lost")


LOST_ONCE = (
    RUN
    + """
(folder / f"plan-{plan['attempt']}").write_text(json.dumps([plan["attempt"], plan["retries"]]))
if plan["attempt"] == 0:
    if node == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while (folder.parent / "1" / "state.json").exists() and not (folder / "seen").exists():
        time.sleep(0.2)
        (folder / "seen").touch()
    sys.exit(75)
time.sleep(0.5)
"""
)


def test_a_killed_worker_with_retries_starts_all_of_them_again():
    run = make_run(LOST_ONCE, nodes=2, retries=2)
    entry = end(run, supervise(run))
    assert (entry["phase"], entry["a"]) == ("Succeeded", 1)
    assert "Restarting" in phases(run)
    for node in (0, 1):
        assert json.loads((run.node(node) / "plan-0").read_text()) == [0, 2]
        assert json.loads((run.node(node) / "plan-1").read_text()) == [1, 1]
        assert run.node_log(node, 0).exists()
        assert run.node_log(node, 1).exists()


def test_retries_run_out():
    run = make_run(RUN + "os.kill(os.getpid(), signal.SIGKILL)\n", retries=1)
    entry = end(run, supervise(run))
    assert (entry["phase"], entry["a"]) == ("Failed", 1)
    assert "It was tried 2 times." in entry["reason"]


ORPHANS = """
# a process that has left its parents, its group and its session
subprocess.Popen([sys.executable, "-c", "import os, time\\nif os.fork() == 0:\\n os.setsid()\\n if os.fork() == 0:\\n"
                  "  open(%r, 'w').write(str(os.getpid()))\\n  time.sleep(600)"]).wait()
deadline = time.monotonic() + 60
while not pathlib.Path(%r).exists() and time.monotonic() < deadline: time.sleep(0.02)
"""


def test_nothing_is_left_of_a_worker_that_left_processes_behind(tmp_path):
    pid_file = tmp_path / "pid"
    run = make_run(RUN + ORPHANS % (str(pid_file), str(pid_file)))
    assert end(run, supervise(run))["phase"] == "Succeeded"
    pid = int(pid_file.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_supervisor_killed_is_a_lost_job_that_leaves_nothing():
    run = make_run(FOREVER, nodes=2)
    supervisor = supervise(run)
    wait_phase(run, "Running")
    pids = pids_of(run)
    assert len(pids) == 2
    supervisor.kill()
    supervisor.wait()
    entry = lost.present_phase(run)
    assert entry["phase"] == "Lost"
    assert f"pid {supervisor.pid}" in entry["reason"]
    assert "killed" in entry["reason"]
    assert last(run) == entry
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)
    assert not run.secret.exists()
    assert lost.present_phase(run) == entry  # said once


def test_what_does_not_end_by_its_lifeline_is_swept():
    # the thread that watches the lifeline is gone with exec
    stays = RUN + 'os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"])\n'
    run = make_run(stays)
    supervisor = supervise(run)
    wait_phase(run, "Running")
    (pid,) = pids_of(run)
    supervisor.kill()
    supervisor.wait()
    assert lost.present_phase(run)["phase"] == "Lost"
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_machine_that_was_restarted_is_said():
    run = make_run(FOREVER)
    rundir.append_phase(run, "Running", "")
    who = {"pid": 1, "started": 0.0, "host": os.uname().nodename, "boot": "an earlier one"}
    rundir.write_json(run.supervisor, who)
    entry = lost.present_phase(run)
    assert (entry["phase"], entry["reason"]) == ("Lost", "The machine was restarted while the job ran.")


def test_a_lock_that_a_fork_of_the_client_kept_is_no_sign_of_life():
    run = make_run(FOREVER)
    rundir.append_phase(run, "Running", "")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    rundir.write_json(run.supervisor, {**processes.here(), "pid": gone.pid})
    lock = rundir.take_lock(run.lock)
    try:
        assert lost.present_phase(run)["phase"] == "Lost"
    finally:
        os.close(lock)


def test_a_supervisor_that_cannot_start_is_said():
    run = make_run(FOREVER)
    run.plan.write_text("{}")
    assert supervise(run).wait(timeout=60) != 0
    entry = lost.present_phase(run)
    assert entry["phase"] == "Lost"
    assert "never came up" in entry["reason"]
    assert "KeyError" in entry["reason"]


def test_a_worker_that_cannot_be_started_fails_the_job():
    run = make_run(FOREVER)
    plan = json.loads(run.plan.read_text())
    rundir.write_json(run.plan, {**plan, "python": "/nowhere/python"})
    entry = end(run, supervise(run))
    assert entry["phase"] == "Failed"
    assert "/nowhere/python" in entry["reason"]
    assert entry["failure"]["kind"] == "internal"


def test_the_job_ends_with_the_process_that_it_was_to_end_with():
    kernel = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = psutil.Process(kernel.pid).create_time()
    run = make_run(OBEYS, until=[kernel.pid, started])
    supervisor = supervise(run)
    wait_phase(run, "Running")
    kernel.kill()  # not waited for: a zombie has ended, too
    try:
        entry = end(run, supervisor)
    finally:
        kernel.wait()
    assert entry["phase"] == "Stopped"
    assert f"pid {kernel.pid}" in entry["reason"]


def test_a_removed_run_directory_ends_the_job():
    run = make_run(OBEYS)
    supervisor = supervise(run)
    wait_phase(run, "Running")
    rundir.remove(run)
    supervisor.wait(timeout=60)  # no_orphans checks the rest


def test_two_jobs_of_one_name_at_once():
    runs = [make_run(RUN + "time.sleep(1)\n", name="same") for _ in range(2)]
    supervisors = [supervise(run) for run in runs]
    assert runs[0].id != runs[1].id
    assert [end(run, supervisor)["phase"] for run, supervisor in zip(runs, supervisors, strict=True)] == [
        "Succeeded"
    ] * 2


def test_the_supervisor_is_light():
    run = make_run(OBEYS)
    supervisor = supervise(run)
    wait_phase(run, "Running")
    memory = psutil.Process(supervisor.pid).memory_info().rss
    code = "import sys, kfnb.backends.local.supervisor as s; print(sorted({m.split('.')[0] for m in sys.modules}))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    supervisor.send_signal(signal.SIGTERM)
    end(run, supervisor)
    assert memory < 40 << 20, memory
    for heavy in ("pydantic", "asyncio", "numpy", "IPython"):
        assert f"'{heavy}'" not in modules


def test_the_lock_is_held_from_the_client_on():
    run = make_run(OBEYS)
    supervisor = supervise(run)
    assert lost.present_phase(run)["phase"] in ("Submitting", "Pending", "Running")
    assert rundir.is_locked(run.lock)
    wait_phase(run, "Running")
    (worker,) = pids_of(run)
    # the worker has not got the descriptor: killed supervisor, free lock
    held = [f.path for f in psutil.Process(worker).open_files()]
    assert str(run.lock) not in held
    supervisor.send_signal(signal.SIGTERM)
    end(run, supervisor)
    wait_for(lambda: not rundir.is_locked(run.lock), timeout=30, what="the lock to be free")
    assert time.time() - last(run)["t"] >= 0


def test_a_job_that_waits_for_gpus_says_for_whose_and_can_be_stopped():
    holder = Leases(rundir.open_home() / "gpus", "other-abcde")
    assert holder.take([Gpu("7", "7")], 1)
    run = make_run(OBEYS, gpus={"per_node": 1, "devices": [["7", "7"]]})
    supervisor = supervise(run)
    said = wait_for(lambda: "other-abcde" in last(run)["reason"] and last(run), timeout=60, what="the reason")
    assert said["phase"] == "Pending"
    assert said["reason"] == "waiting for 1 GPUs, 0 of 1 free: 7 is held by other-abcde"
    rundir.write_json(run.stop, {"reason": "Enough."})
    entry = end(run, supervisor)
    assert (entry["phase"], entry["reason"]) == ("Stopped", "Enough.")
    assert not (run.node(0) / "0.log").exists()
