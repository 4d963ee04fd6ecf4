"""The newest part of a long log: the last lines, whole curves, and no word of what was skipped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfnb.backends.local import rundir
from kfnb.backends.local.follow import follow
from kfnb.backends.local.recent import SHARE, SHORT, recent
from kfnb.backends.local.rundir import RunDir
from kfnb.errors import BackendError
from kfnb.events import JobEvent, LogLine, Phase
from kfnb.series import SeriesKey
from kfnb.state import JobState
from kfnb_worker import wire
from kfnb_worker.keyframes import Picture
from tests.records import write_record

TAGS = [f"tag{number}" for number in range(3)]


class Worker:
    """Writes a node's log as a worker does: lines, points, clocks, and a keyframe every so many bytes."""

    def __init__(self, node: int = 0, nodes: int = 1, keyframe: int = 4 << 20) -> None:
        self.node, self.every = node, keyframe
        self.parts: list[bytes] = []
        self.size = self.sequence = self.pictured = self.step = 0
        self.picture = Picture()
        hello = {"e": "hello", "v": 1, "job": "j", "node": node, "nodes": nodes, "procs": 1, "incarnation": "0"}
        self.record({**hello, "python": "3.11", "host": "h", "bundle": "b", "a": 0, "t": 1000.0})
        self.record({"e": "rank", "r": node, "state": "running", "pid": 7, "code": None, "a": 0, "t": 1000.0})

    def add(self, lines: list[bytes]) -> None:
        self.sequence += len(lines)
        self.parts += lines
        self.size += sum(map(len, lines))

    def record(self, record: dict[str, Any]) -> None:
        self.add(wire.frame_record(self.sequence, record))

    def keyframe(self) -> None:
        for record in self.picture.records():
            self.record(record)
        self.pictured = self.size

    def train(self, steps: int, line: int = 4000) -> None:
        for _ in range(steps):
            self.step += 1
            if self.step % 50 == 0:
                self.record({"e": "clock", "t": 1000.0 + self.step})
            self.add(wire.frame(b"%d" % self.node, b":", self.sequence, b"step %d %b" % (self.step, b"x" * line)))
            points = {tag: [[self.step], [1000.0 + self.step], [float(self.step)]] for tag in TAGS}
            record = {"e": "s", "a": 0, "r": self.node, "d": ".", "src": "log", "p": points}
            self.record(record)
            self.picture.add(record)
            if self.size - self.pictured >= self.every:
                self.keyframe()

    def content(self) -> bytes:
        return b"".join(self.parts)


def make_run(path: Path, contents: dict[tuple[int, int], bytes], phases: tuple[str, ...] = ("Running",)) -> RunDir:
    path.mkdir(parents=True)
    run = RunDir(path)
    write_record(run, first_line=2)
    for (node, restart), content in contents.items():
        run.node(node).mkdir(parents=True, exist_ok=True)
        run.node_log(node, restart).write_bytes(content)
    for phase in phases:
        rundir.append_phase(run, phase, "")
    return run


def folded(events: list[JobEvent]) -> JobState:
    state = JobState()
    state.add(events)
    return state


@pytest.fixture(scope="module")
def long() -> Worker:
    """About 18 MiB, with the last keyframe within the last 4 MiB of it."""
    worker = Worker()
    worker.train(4300)
    return worker


def test_a_short_log_is_left_to_be_read(tmp_path: Path) -> None:
    worker = Worker()
    worker.train(100)
    assert recent(make_run(tmp_path / "job-aaaaa", {(0, 0): worker.content()})) == []


def test_the_last_lines_and_whole_curves_of_a_long_log(tmp_path: Path, long: Worker) -> None:
    run = make_run(tmp_path / "job-aaaaa", {(0, 0): long.content()}, ("Pending", "Running", "Succeeded"))
    state = folded(recent(run))
    assert (state.phase, state.nodes, state.procs, state.ranks[0].state) == (Phase.SUCCEEDED, 1, 1, "running")
    assert state.started is not None
    assert not state.gaps
    texts = [line.text.split()[1] for line in [*state.head, *state.tail]]
    assert texts == [str(step) for step in range(4300 - state.lines + 1, 4301)]
    assert state.lines * 4000 < SHARE * 1.1
    for tag in TAGS:
        series = state.series[SeriesKey(".", 0, tag)]
        assert (series.step[0], series.step[-1]) == (1, 4300)
        assert sorted(series.step) == list(series.step)
        # from the keyframe on, every point
        assert list(series.step[-100:]) == list(range(4201, 4301))
    assert state.head[0].time == 1000.0 + (4300 - state.lines + 1) // 50 * 50


def test_a_keyframe_before_the_lines_that_are_shown_is_looked_for(tmp_path: Path) -> None:
    worker = Worker(keyframe=1 << 40)
    worker.train(1000)
    worker.keyframe()
    worker.train(2200)
    state = folded(recent(make_run(tmp_path / "job-aaaaa", {(0, 0): worker.content()})))
    series = state.series[SeriesKey(".", 0, "tag0")]
    assert (series.step[0], series.step[-1]) == (1, 3200)
    assert list(series.step[-2200:]) == list(range(1001, 3201))  # also where the lines are not shown
    assert state.lines < 1200
    assert state.head[0].time >= 3000.0
    assert not state.gaps


def test_a_keyframe_that_is_still_being_written_is_not_the_last(tmp_path: Path, long: Worker) -> None:
    content = long.content()
    other = Worker()
    for number in range(200):  # many series, so that a keyframe is of many records
        points = {f"s{number}": [list(range(200)), [1.0] * 200, [0.5] * 200]}
        other.picture.add({"e": "s", "a": 0, "r": 0, "d": ".", "src": "log", "p": points})
    other.sequence = long.sequence
    other.parts = []
    other.keyframe()
    half = b"".join(other.parts)[: other.size // 2]
    state = folded(recent(make_run(tmp_path / "job-aaaaa", {(0, 0): content + half})))
    assert state.series[SeriesKey(".", 0, "tag0")].step[0] == 1
    assert not state.gaps


def test_what_a_rank_prints_is_no_keyframe(tmp_path: Path, long: Worker) -> None:
    fake = b'[0:%d] [kfnb:7] {"e":"k","i":0,"n":1,"series":[]}\n[0:%d] ] {"e":"k","i":0,"n":0,\n'
    content = long.content() + fake % (long.sequence, long.sequence + 1)
    state = folded(recent(make_run(tmp_path / "job-aaaaa", {(0, 0): content})))
    assert state.series[SeriesKey(".", 0, "tag0")].step[0] == 1


def test_the_nodes_of_a_job_are_mixed_as_they_spoke(tmp_path: Path) -> None:
    workers = [Worker(node, nodes=3) for node in range(3)]
    for worker in workers:
        worker.train(1500)
    earlier = Worker(0, nodes=3)
    contents = {(node, 1): worker.content() for node, worker in enumerate(workers)}
    state = folded(recent(make_run(tmp_path / "job-aaaaa", {(0, 0): earlier.content(), **contents})))
    assert {key.rank for key in state.series} == {0, 1, 2}
    assert all(state.series[key].step[0] == 1 for key in state.series)
    assert {line.rank for line in list(state.tail)[-300:]} == {0, 1, 2}
    assert sorted(state.ranks) == [0, 1, 2]
    assert not state.gaps


def test_a_node_that_said_little_is_told_whole(tmp_path: Path, long: Worker) -> None:
    small = Worker(1, nodes=2)
    small.train(3)
    run = make_run(tmp_path / "job-aaaaa", {(0, 0): long.content(), (1, 0): small.content()})
    events = recent(run)
    assert [event.text[:6] for event in events if isinstance(event, LogLine) and event.rank == 1] == [
        "step 1",
        "step 2",
        "step 3",
    ]


def test_a_gap_in_the_shown_part_is_told(tmp_path: Path, long: Worker) -> None:
    lost = [*long.parts[:-40], *long.parts[-30:]]
    state = folded(recent(make_run(tmp_path / "job-aaaaa", {(0, 0): b"".join(lost)})))
    assert sum(state.gaps.values()) == 10


def test_the_line_that_a_killed_worker_left_is_shown_once_the_job_has_ended(tmp_path: Path, long: Worker) -> None:
    content = long.content() + b"[0:%d] half a li" % long.sequence
    running = make_run(tmp_path / "job-aaaaa", {(0, 0): content})
    assert folded(recent(running)).tail[-1].text.startswith("step")
    rundir.append_phase(running, "Failed", "killed")
    assert folded(recent(running)).tail[-1].text == "half a li"


ODD = [
    b"\n",
    b"[kfnb:5] {",
    b'[kfnb:5+] {"e":"k","i":0,"n":2,\n',
    b'[kfnb:6] {"e":"k","i":1,"n":2,"series":[1]}\n',
    b'[kfnb:9] {"e":"clock","t":NaN}\n',
    b'[kfnb:9] {"e":"k","i":0,"n":0,\n',
    b'[kfnb:1] {"e":"hello","a":1e999}\n',
    b"[kfnb:" + b"[" * 3000 + b"\n",
    b"[0:" + b"9" * 30 + b"] x\n",
    b"[0:1+] ",
    b"[",
    b"]",
]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from(ODD),
        ),
        min_size=1,
    )
)
def test_no_content_makes_it_raise(pieces: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    some = b"".join(pieces)
    content = b"x\n" * 1000 + bytes(SHORT) + some * 50
    recent(make_run(tmp_path_factory.mktemp("home") / "job-aaaaa", {(0, 0): content, (1, 0): content[::-1]}))


def test_what_is_no_file_is_passed_over(tmp_path: Path, long: Worker) -> None:
    run = make_run(tmp_path / "job-aaaaa", {(0, 0): long.content()})
    for node in (1, 2):
        run.node(node).mkdir()
    os.mkfifo(run.node_log(1, 0))
    run.node_log(2, 0).mkdir()
    assert folded(recent(run)).lines
    run.record.write_text("{}")
    with pytest.raises(BackendError):
        recent(run)


async def test_a_reader_is_told_how_far_it_is(tmp_path: Path, long: Worker) -> None:
    run = make_run(tmp_path / "job-aaaaa", {(0, 0): long.content()}, ("Running", "Succeeded"))
    read = [batch.read async for batch in follow(run, None, to_end=True)]
    assert read[0] == 0.0
    assert read == sorted(read)
    assert read[len(read) // 2] == pytest.approx(0.5, abs=0.1)
    assert read[-1] == 1.0
