"""Feeds of real jobs: what a view sees of them while they run, when it comes late, and what it can ask for."""

from __future__ import annotations

import numpy as np
import pytest

import kfnb
from kfnb import portal
from kfnb.errors import NotFound
from kfnb.events import Phase
from kfnb.views.feed import open_feed
from tests.local.jobs import detached
from tests.unit.scripted import Page
from tests.waiting import wait_for

#: Two ranks that go on once the file `go` is there.
STEPS = """
import os, pathlib, time
from tensorboard.summary import Writer
rank = int(os.environ["RANK"])
writer = Writer(os.path.join(os.environ["KFNB_LOGDIR"], f"rank{rank}"))
for step in range(200):
    print(f"rank {rank} step {step} " + "." * 80, flush=True)
    writer.add_scalar("loss", 1 / (step + 1), step)
    if step == 99:
        writer.flush()
        while not pathlib.Path("{go}").exists():
            time.sleep(0.05)
writer.close()
print("x" * 5_000)
"""
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def own_lines(page: Page) -> list[str]:
    return [text for text in page.lines if text.startswith("rank ")]


def points(page: Page) -> int:
    return sum(map(len, page.curves.values()))


def test_a_view_sees_every_line_and_point_once_whenever_it_comes(tmp_path):
    job = detached(STEPS.replace("{go}", str(tmp_path / "go")), procs_per_node=2, framework="python")
    feed = open_feed(job)
    page = Page(feed, "early")
    page.hello()
    wait_for(lambda: len(own_lines(page)) == 200 and points(page) > 0, timeout=90, what="half of the lines")
    late = Page(feed, "late")
    late.hello()
    late.until_heard("snapshot")
    assert len(own_lines(late)) == 200
    (tmp_path / "go").touch()
    assert portal.call(feed.wait()).phase is Phase.SUCCEEDED
    for view in (page, late):
        wait_for(lambda view=view: view.head["phase"] == "Succeeded", timeout=10, what="the end")
        for rank in range(2):
            mine = [text.split(" .")[0] for text in own_lines(view) if text.startswith(f"rank {rank}")]
            assert mine == [f"rank {rank} step {step}" for step in range(200)]
        assert view.lines[-1] == "Succeeded"
        assert view.head["lines"] == feed.state.lines
        assert {rank["state"] for rank in view.ranks.values()} == {"exited"}
    assert page.lines == late.lines
    series = [entry for entry in late.heard("snapshot")[0]["series"] if entry["tag"] == "loss"]
    assert {entry["run"] for entry in series} == {"rank0", "rank1"}

    # what is asked afterwards, of the job as it ended
    [cut, _] = [index for index, text in page.log.items() if text.startswith("xxx")]
    reply, buffers = page.call("lines", indices=[cut], whole=True)
    assert (reply["result"]["indices"], len(buffers[0])) == ([cut], 5_000)
    reply, buffers = page.call("scan", text="STEP 150 ", ranks=[1], since=0)
    [found] = np.frombuffer(buffers[0], "<u4")
    assert page.log[found].startswith("rank 1 step 150 ")
    reply, buffers = page.call("curve", sid=series[0]["sid"], x="step", **{"from": 10, "to": 19, "points": 500})
    assert np.frombuffer(buffers[0]).tolist() == list(range(10, 20))
    assert np.frombuffer(buffers[2]).tolist() == pytest.approx([1 / (step + 1) for step in range(10, 20)])
    assert "rank {rank} step {step}" in page.call("script")[0]["result"]["text"]
    assert "has ended" in page.call("stacks")[0]["error"]["what"]
    for view in (page, late):
        view.subscriber.close()


def test_a_view_can_stop_a_job_and_run_it_again():
    job = detached(SLEEP, framework="python", grace=2)
    feed = open_feed(job)
    page = Page(feed)
    page.hello()
    wait_for(lambda: "up" in page.lines, timeout=90, what="the rank to be up")
    assert 'File "main.py", line 3' in page.call("stacks")[0]["result"]["stacks"]["0"]
    assert page.call("stop")[0]["result"]["phase"] in ("Stopping", "Stopped")
    wait_for(lambda: page.head["phase"] == "Stopped", timeout=30, what="the job to be stopped")
    again = kfnb.attach(page.call("again")[0]["result"]["id"])
    assert again.record.again == job.id
    again.stop()
    page.subscriber.close()


def test_points_of_a_restarted_rank_are_those_of_its_last_attempt():
    job = detached(
        """
import os
from tensorboard.summary import Writer
attempt = int(os.environ.get("KFNB_ATTEMPT", "0"))
writer = Writer(os.environ["KFNB_LOGDIR"])
for step in range(5):
    writer.add_scalar("loss", step + attempt / 10, step)
writer.close()
print("attempt", attempt, flush=True)
if attempt == 0:
    raise RuntimeError("once")
""",
        framework="python",
        retries=1,
    )
    feed = open_feed(job)
    page = Page(feed)
    page.hello()
    portal.call(feed.wait())
    wait_for(lambda: page.head["phase"] == "Succeeded", timeout=10, what="the end")
    assert page.curves["loss"] == pytest.approx([step + 0.1 for step in range(5)])
    assert any(text.startswith("Attempt 2: started again") for text in page.lines)
    assert page.head["restarts"][0]["attempt"] == 1
    page.subscriber.close()


def test_a_job_that_is_deleted_is_gone():
    job = detached("print('x')", framework="python")
    job.wait()
    feed = open_feed(job)
    job.delete()
    page = Page(feed)
    page.hello()
    assert job.id in page.until_heard("gone")["what"]
    with pytest.raises(NotFound):
        portal.call(feed.wait())
    page.subscriber.close()


def test_a_long_log_is_previewed_and_then_there_as_a_whole():
    job = detached("for n in range(120_000): print(f'line {n} ' + '.' * 80)", framework="python")
    job.wait()
    page = Page(open_feed(job))
    page.hello()
    assert page.until_heard("snapshot")["preview"]
    assert page.lines[-1] == "Succeeded"
    assert page.lines[-2].startswith("line 119999 ")
    whole = page.until_heard("snapshot", 2)
    assert not whole["preview"]
    assert page.total > 120_000
    assert [batch["head"]["reading"] for batch in page.heard("batch")] == sorted(
        batch["head"]["reading"] for batch in page.heard("batch")
    )
    _, buffers = page.call("scan", text="line 77 ", ranks=None, since=0)
    [index] = np.frombuffer(buffers[0], "<u4").tolist()
    assert page.call("lines", first=index, count=1)[1][0].startswith(b"line 77 ")
    page.subscriber.close()
