"""Real workers with real ranks: what they run, relay, coordinate and end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.local.nodes import TIMEOUT, Nodes
from tests.waiting import wait_for

Make = Callable[..., Nodes]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Nodes] = []

    def make_nodes(body: str, nodes: int = 1, procs: int = 2, **plan: object) -> Nodes:
        made.append(Nodes(tmp_path / "job", body, nodes, procs, **plan))
        return made[-1]

    yield make_nodes
    for nodes in made:
        nodes.close()


def test_two_nodes_all_reduce(make: Make) -> None:
    body = """
import os
import kfnb_worker as kf
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(kf.rank())])
dist.all_reduce(total)
print("total", total.item(), "of", kf.world_size(), "local", kf.local_rank(), "node", kf.node_rank())
kf.log(1, loss=torch.tensor(0.5), nothing=float("nan"))
answer = total
dist.destroy_process_group()
"""
    job = make(body, 2, 2, framework="torch")
    assert job.run() == {0: 0, 1: 0}
    assert job.output(3) == ["total 6.0 of 4 local 1 node 1"]
    assert [record["outcome"] for record in job.records("end")] == ["succeeded", "succeeded"]
    points = {record["r"]: record["p"] for record in job.records("s")}
    assert sorted(points) == [0, 1, 2, 3]
    assert points[2]["loss"][0] == [1]
    assert points[2]["loss"][2] == [0.5]
    assert points[2]["nothing"][2] == ["nan"]
    [result] = job.records("result")
    assert result["names"] == ["answer"]
    states = [(record["r"], record["state"]) for record in job.records("rank", node=1)]
    assert {state for rank, state in states if rank == 2} == {"starting", "running", "exited"}
    assert json.loads((job.path / "nodes/1/state.json").read_text())["state"] == "ended"
    assert job.termination(0) == {"outcome": "succeeded"}


def test_what_a_rank_finds_around_it(make: Make) -> None:
    body = """
import json, os, sys
print(json.dumps({"env": dict(os.environ), "argv": sys.argv[1:], "cwd": os.getcwd(), "tty": sys.stdin.read()}))
print("to stderr", file=sys.stderr)
"""
    job = make(body, framework="torch", args=["--lr", "0.1 2"], devices={"0": ["4", "GPU-7"]}, precision="bf16")
    assert job.run() == {0: 0}
    found = json.loads(job.output(1)[0])
    env = found["env"]
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("1", "1", "2", "2")
    assert (env["NODE_RANK"], env["GROUP_RANK"]) == ("0", "0")
    assert env["MASTER_ADDR"] == "127.0.0.1"
    assert env["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert 15000 <= int(env["MASTER_PORT"]) < 32768
    assert env["CUDA_VISIBLE_DEVICES"] == "4,GPU-7"
    assert (env["FROM_PLAN"], env["FROM_SECRET"]) == ("said", "whisper")
    assert env["KFNB_PRECISION"] == "bf16"
    assert found["argv"] == ["--lr", "0.1 2"]
    assert found["cwd"] == str(job.path)
    assert found["tty"] == ""
    assert job.output(0, "!") == ["to stderr"]


def test_files_that_lie_about_do_not_replace_modules(make: Make) -> None:
    job = make("import json, sys\nprint(json.dumps(sys.path[0]))", 1, 1)
    for name in ("json", "socket", "typing", "signal", "kfnb_worker"):
        (job.path / f"{name}.py").write_text("raise SystemExit('this is not the standard library')")
    assert job.run() == {0: 0}
    assert job.output(0)[0].endswith('nodes/0/code"')


def test_the_first_failure_ends_all_at_once(make: Make) -> None:
    body = """
import kfnb_worker as kf
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if kf.rank() == 3:
    raise ValueError("only here")
dist.all_reduce(torch.ones(1))
"""
    job = make(body, 2, 2, framework="torch")
    assert job.run() == {0: 1, 1: 1}
    first = min(job.records("failure"), key=lambda failure: failure["t"])
    assert (first["r"], first["node"], first["kind"], first["type"]) == (3, 1, "exception", "ValueError")
    assert first["message"] == "only here"
    assert first["line"] == 8
    assert "kfnb_worker" not in first["traceback"]
    for node in 0, 1:
        told = job.termination(node)
        assert (told["r"], told["type"], told["outcome"]) == (3, "ValueError", "failed")
    assert job.output(3, "!")[-1].endswith("ValueError: only here")
    assert not job.records("note")


HANG_IN_ALL_REDUCE = """
import os
import kfnb_worker as kf
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
print("ready", os.environ["KFNB_ATTEMPT"])
if os.environ["KFNB_ATTEMPT"] == "0":
    if kf.rank() == 2:
        import time
        time.sleep(1000)
    dist.all_reduce(torch.ones(1))
print("through")
"""


def test_a_killed_rank_is_the_failure_and_not_who_lost_it(make: Make) -> None:
    job = make(HANG_IN_ALL_REDUCE, 2, 2, framework="torch").start()
    job.wait_for_output("ready 0")
    job.kill_rank(2)
    assert job.wait() == {0: 1, 1: 1}
    first = min(job.records("failure"), key=lambda failure: failure["t"])
    assert (first["r"], first["kind"], first["type"]) == (2, "signal", "SIGKILL")
    assert "memory" in first["message"]
    assert job.termination(0)["r"] == 2


def test_retries_start_all_again_together(make: Make) -> None:
    job = make(HANG_IN_ALL_REDUCE, 2, 2, framework="torch", retries=1).start()
    job.wait_for_output("ready 0")
    job.kill_rank(2)
    assert job.wait() == {0: 0, 1: 0}
    assert [line for line in job.all_output() if line == "through"] == ["through"] * 4
    attempts = job.records("attempt")
    assert [attempt["a"] for attempt in attempts] == [1, 1]
    assert "rank 2" in attempts[0]["why"]
    assert [record["a"] for record in job.records("end")] == [1, 1]


SLEEP = """
import subprocess, sys, time
import kfnb_worker as kf
print("sleeping")
time.sleep(1000)
"""


@pytest.mark.parametrize("killed", [0, 1])
def test_a_worker_that_is_killed_takes_its_ranks_along(make: Make, killed: int) -> None:
    body = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); print('child', flush=True); time.sleep(1000)"])
time.sleep(1000)
"""
    job = make(body, 2, 1).start()
    job.wait_for_output("child")
    job.signal(signal.SIGKILL, node=killed)
    assert job.wait() == {killed: -signal.SIGKILL, 1 - killed: 75}
    lost = job.records("failure", node=1 - killed)
    assert [failure["kind"] for failure in lost] == ["lost"]
    assert f"node {killed}" in lost[0]["message"]
    # that no process is left is seen by the fixture no_orphans


def test_the_end_of_the_lifeline_is_the_end(make: Make) -> None:
    job = make(SLEEP, 2, 1).start()
    job.wait_for_output("sleeping")
    for worker in job.workers.values():
        assert worker.stdin is not None
        worker.stdin.close()
    assert set(job.wait().values()) <= {143, 75}


def test_sigterm_stops_all_and_code_that_asks_leaves_by_itself(make: Make) -> None:
    body = """
import time
import kfnb_worker as kf
step = 0
kf.stopping()
print("running")
while not kf.stopping():
    time.sleep(0.01)
    step += 1
print("saved")
answer = step
"""
    job = make(body, 2, 2).start()
    job.wait_for_output("running")
    job.signal(signal.SIGTERM, node=1)
    assert job.wait() == {0: 143, 1: 143}
    assert job.all_output().count("saved") == 4
    assert [record["outcome"] for record in job.records("end")] == ["stopped", "stopped"]
    assert [record["code"] for record in job.records("rank") if record["state"] == "exited"] == [0] * 4


def test_ranks_that_wait_for_each_other_leave_at_the_same_step(make: Make) -> None:
    body = """
import time
import kfnb_worker as kf
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
step = 0
while not kf.stopping():
    dist.all_reduce(torch.ones(1))
    time.sleep(0.001 * kf.rank())
    step += 1
    if step == 10:
        print("running")
(kf.checkpoint_dir(step) / str(kf.rank())).write_text("saved")
kf.commit(step)
print("left at", step)
"""
    job = make(body, 2, 2, framework="torch", grace=60).start()
    job.wait_for_output("running")
    job.signal(signal.SIGTERM, node=1)
    assert job.wait() == {0: 143, 1: 143}
    left = {line for line in job.all_output() if line.startswith("left")}
    assert len(left) == 1
    assert [record["step"] for record in job.records("checkpoint")] == [int(left.pop().split()[2])]
    assert [record["code"] for record in job.records("rank") if record["state"] == "exited"] == [0] * 4


def test_sigterm_raises_system_exit_in_code_that_does_not_ask(make: Make) -> None:
    body = """
import atexit, time
atexit.register(print, "at exit")
print("running")
try:
    time.sleep(1000)
finally:
    print("finally")
"""
    job = make(body).start()
    job.wait_for_output("running")
    assert job.ask(op="stop", token="the token") == {"ok": True}
    assert job.wait() == {0: 143}
    assert job.output(0) == ["running", "finally", "at exit"]
    assert not job.records("failure")


def test_who_ignores_sigterm_is_killed_after_the_grace(make: Make) -> None:
    body = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("running")
time.sleep(1000)
"""
    job = make(body, grace=0.5).start()
    job.wait_for_output("running")
    job.signal(signal.SIGTERM)
    assert job.wait() == {0: 143}
    assert {record["code"] for record in job.records("rank") if record["state"] == "exited"} == {-signal.SIGKILL}


def test_what_ranks_leave_behind_is_ended(make: Make) -> None:
    body = """
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import os, time; print('there', flush=True); time.sleep(1000)"],
    start_new_session=True, env={}, stdout=subprocess.PIPE,
)
child.stdout.readline()
print(child.pid)
"""
    job = make(body)
    assert job.run() == {0: 0}
    for rank in 0, 1:
        assert not psutil.pid_exists(int(job.output(rank)[0]))


def test_spawned_and_forked_children_log_too(make: Make) -> None:
    body = """
import multiprocessing
import kfnb_worker as kf

def tell(step):
    kf.log(step, child=step * 1.5)
    print("child of rank", kf.rank())

kf.log(0, child=0.0)
if __name__ == "__main__":
    for step, method in enumerate(["spawn", "fork"], 1):
        child = multiprocessing.get_context(method).Process(target=tell, args=(step,))
        child.start()
        child.join()
        assert child.exitcode == 0
"""
    job = make(body, 1, 1)
    assert job.run() == {0: 0}
    points = sorted(point for record in job.records("s") for point in zip(*record["p"]["child"], strict=True))
    assert [(step, value) for step, _, value in points] == [(0, 0.0), (1, 1.5), (2, 3.0)]
    assert job.output(0) == ["child of rank 0"] * 2


def test_the_stacks_of_a_rank_that_hangs(make: Make) -> None:
    body = """
import socket

def wait_for_nobody():
    one, other = socket.socketpair()
    print("hanging")
    one.recv(1)

wait_for_nobody()
"""
    job = make(body).start()
    job.wait_for_output("hanging")
    for count, request in enumerate(["first", "second"], 1):
        assert job.ask(op="stacks", token="the token", request=request) == {"ok": True}
        wait_for(
            lambda count=count: len(job.records("stacks")) == 2 * count,
            timeout=TIMEOUT,
            what="the stacks of both ranks",
        )
        assert {record["request"] for record in job.records("stacks")[-2:]} == {request}
    for record in job.records("stacks"):
        assert 'main.py", line 7 in wait_for_nobody' in record["text"]
        assert record["text"].count("wait_for_nobody") == 1
    job.signal(signal.SIGTERM)
    job.wait()


def test_strangers_are_refused(make: Make) -> None:
    job = make(SLEEP, 1, 1).start()
    job.wait_for_output("sleeping")
    for token in "", "another", None:
        answer = job.ask(op="stop", token=token)
        assert "token" in answer["error"]
    assert "no operation" in job.ask(op="dance", token="the token")["error"]
    assert job.workers[0].poll() is None
    job.signal(signal.SIGTERM)
    assert job.wait() == {0: 143}


def test_a_node_that_does_not_come_is_named(make: Make) -> None:
    job = make(SLEEP, 3, 1, join_seconds=1.0).start(0, 2)
    assert job.wait() == {0: 75, 2: 75}
    [failure] = job.records("failure", node=2)
    assert "2 of 3 nodes" in failure["message"]
    assert "node 1 did not" in failure["message"]


def test_a_coordinator_that_does_not_come_is_said(make: Make) -> None:
    job = make(SLEEP, 2, 1, join_seconds=0.5).start(1)
    assert job.wait() == {1: 75}
    [failure] = job.records("failure", node=1)
    assert "node 0 could not be reached" in failure["message"]


def test_a_bundle_that_was_changed_is_not_run(make: Make) -> None:
    job = make("print('never')", 2, 1, bundle_sha256="0" * 64)
    assert job.run() == {0: 1, 1: 1}
    failure = job.records("failure")[0]
    assert failure["kind"] == "bundle"
    assert "sha256" in failure["message"]
    assert job.all_output() == []


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("raise SystemExit(3)", "exit", "exit code 3"),
        ("raise SystemExit('words')", "exit", "exit code 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", "signal", "/dev/shm"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal", "SIGSEGV"),
        ("import os; os._exit(137)", "signal", "exit code 137"),
        ("def f(:", "exception", "invalid syntax"),
    ],
)
def test_every_end_is_explained(make: Make, body: str, kind: str, says: str) -> None:
    job = make(body, 1, 1)
    assert job.run() == {0: 1}
    [failure] = job.records("failure")
    assert failure["kind"] == kind
    assert says in failure["message"]


def test_system_exit_zero_is_a_success(make: Make) -> None:
    job = make("import sys\nanswer = 42\nsys.exit(0)", 1, 1)
    assert job.run() == {0: 0}
    assert job.records("result")[0]["names"] == ["answer"]


def test_an_interpreter_that_is_not_there(make: Make) -> None:
    job = make("", 1, 1, python="/no/such/python")
    assert job.run() == {0: 1}
    assert "/no/such/python" in job.records("failure")[0]["message"]


def test_output_arrives_whole_and_in_order(make: Make) -> None:
    body = """
import os, sys
for number in range(20000):
    print("line", number)
sys.stdout.buffer.write(b"caf\\xc3")
sys.stdout.flush()
sys.stdout.buffer.write(b"\\xa9\\n")
print("x" * 30000)
for step in range(1000):
    print("\\r%d%%" % (step // 10), end="")
print()
print("no newline", end="")
"""
    job = make(body)
    assert job.run() == {0: 0}
    for rank in 0, 1:
        lines = job.output(rank)
        assert lines[:20000] == [f"line {number}" for number in range(20000)]
        assert lines[20000:] == ["café", "x" * 30000, "99%", "no newline"]
    sequences = [sequence for _, _, sequence, _ in job._lines(0)]
    assert sequences == sorted(set(sequences))


def test_checkpoints_of_all_ranks(make: Make) -> None:
    body = """
import os, time
import kfnb_worker as kf

start = 0 if kf.latest() is None else int((kf.latest() / "0").read_text()) + 1
print("from", start)
for step in range(start, 5):
    folder = kf.checkpoint_dir(step)
    (folder / str(kf.rank())).write_text(str(step))
    if step == 3 and os.environ["KFNB_ATTEMPT"] == "0":
        print("wrote")
        time.sleep(1000)
    assert kf.commit(step).name == f"step-{step}"
    assert sorted(path.name for path in kf.latest().iterdir()) == [".complete", "0", "1", "2", "3"]
"""
    job = make(body, 2, 2, retries=1).start()
    job.wait_for_output("wrote")
    job.kill_rank(1)
    assert job.wait() == {0: 0, 1: 0}
    assert job.all_output().count("from 0") == 4
    assert job.all_output().count("from 3") == 4
    assert [record["step"] for record in job.records("checkpoint")] == [0, 1, 2, 3, 4]
    assert sorted(os.listdir(job.path / "checkpoints")) == ["step-3", "step-4"]
