"""How fast a real job is and what it waits for, and the newest part of what a talkative one said."""

from __future__ import annotations

import kfnb
from kfnb import portal
from kfnb.events import LogLine
from kfnb.state import JobState
from kfnb.views import words

TRACKED = """\
import time
import kfnb_worker as kf

def loader():
    for item in range(15):
        time.sleep(0.08 if kf.rank() == 1 else 0.01)  # a disk
        yield item

for batch in kf.track(loader(), total=15, unit="batch"):
    time.sleep(0.01)  # a step
"""

TALKATIVE = """\
import kfnb_worker as kf

for step in range(6000):
    print(f"step {step} " + "x" * 1000)
    kf.log(step, loss=float(step), rank=kf.rank())
"""


def folded(job: kfnb.Job) -> JobState:
    state = JobState()
    for batch in job.events():
        state.fold(batch)
    return state


def test_a_tracked_loop_says_its_pace_and_which_rank_waits_for_data() -> None:
    job = kfnb.train(TRACKED, framework="python", nodes=2, detach=True).wait(120)
    state = folded(job)
    assert {rank: (told.done, told.total) for rank, told in state.rank_progress().items()} == {0: (15, 15), 1: (15, 15)}
    pace = state.pace(0.0)
    assert pace is not None
    assert pace.rank == 1
    assert pace.step >= 0.09
    assert pace.wait is not None
    assert pace.wait > 0.5
    progress = next(line.text for line in words.sentences(state, job.id, 0.0) if line.kind == "progress")
    assert "a batch" in progress
    assert "waiting for data (rank 1, the slowest)" in progress


def test_the_newest_part_of_a_long_log_is_what_the_whole_ends_with() -> None:
    job = kfnb.train(TALKATIVE, framework="python", nodes=2, detach=True).wait(120)
    whole, recent = folded(job), JobState()
    assert whole.started is not None
    events = portal.call(job.arecent())
    recent.add(events)
    assert (recent.phase, recent.nodes, recent.procs, recent.ranks) == (
        whole.phase,
        whole.nodes,
        whole.procs,
        whole.ranks,
    )
    assert (recent.started, recent.ended, recent.gaps) == (whole.started, whole.ended, {})
    assert 0 < recent.lines < whole.lines == 12_000
    for rank in range(2):
        shown = [event for event in events if isinstance(event, LogLine) and event.rank == rank]
        last = list(job.logs(rank, tail=len(shown)))
        assert [(line.sequence, line.text) for line in shown] == [(line.sequence, line.text) for line in last]
        assert all(whole.started - 60 < line.time <= last[-1].time for line in shown)
    assert set(recent.series) == set(whole.series)
    for key in whole.series:
        series, thinned = whole.series[key], recent.series[key]
        assert (thinned.step[0], thinned.step[-1], thinned.total) == (0, 5999, 6000)
        assert set(thinned.step) <= set(series.step)
