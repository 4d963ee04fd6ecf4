"""The stream out of a run directory: every line and phase once, whatever cuts the files and the reading."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfnb.backends.local import rundir
from kfnb.backends.local.follow import follow
from kfnb.backends.local.rundir import RunDir
from kfnb.decode import StreamDecoder
from kfnb.errors import NotFound
from kfnb.events import Batch, Cursor, Failure, Gap, LogLine, Phase, PhaseChanged
from kfnb_worker import wire
from tests.records import write_record


def make_run(path: Path) -> RunDir:
    path.mkdir(parents=True)
    run = RunDir(path)
    write_record(run, first_line=2)
    return run


def add(run: RunDir, node: int, restart: int, content: bytes) -> None:
    path = run.node_log(node, restart)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(content)


def log(lines: list[bytes]) -> bytes:
    """A worker's log: its hello, and lines of two ranks."""
    hello = {"e": "hello", "v": 1, "job": "j", "node": 0, "nodes": 1, "procs": 2, "incarnation": "0", "python": "3.11"}
    framed = wire.frame_record(0, {**hello, "host": "h", "bundle": "b", "a": 0, "t": 1.0})
    for index, line in enumerate(lines):
        framed += wire.frame(b"%d" % (index % 2), b":", len(framed), line)
    return b"".join(framed)


async def read(run: RunDir, cursor: Cursor | None = None, *, to_end: bool = False) -> list[Batch]:
    return [batch async for batch in follow(run, cursor, to_end=to_end)]


def events_of(batches: list[Batch]) -> list[object]:
    return [event for batch in batches for event in batch.events]


async def test_an_ended_job_is_read_to_its_end(tmp_path):
    run = make_run(tmp_path / "job-aaaaa")
    rundir.append_phase(run, "Running", "")
    add(run, 0, 0, log([b"one", b"two"]))
    add(run, 1, 0, log([b"three"]))
    rundir.append_phase(run, "Succeeded", "")
    events = events_of(batches := await read(run, to_end=True))
    assert sorted(event.text for event in events if isinstance(event, LogLine)) == ["one", "three", "two"]
    assert [event.phase for event in events if isinstance(event, PhaseChanged)] == [Phase.RUNNING, Phase.SUCCEEDED]
    assert isinstance(events[-1], PhaseChanged)
    # the cursor goes through JSON, and there is nothing after the end
    cursor = json.loads(json.dumps(batches[-1].cursor))
    assert await read(run, cursor, to_end=True) == []


async def test_the_supervisors_failure_is_an_event_and_a_rank_s_is_only_in_its_log(tmp_path):
    run = make_run(tmp_path / "job-aaaaa")
    failure = {"r": None, "node": 1, "a": 0, "kind": "lost", "type": "WorkerLost", "message": "gone", "t": 1.0}
    rundir.append_phase(run, "Failed", "gone", failure={**failure, "source": "supervisor"})
    events = events_of(await read(run))
    assert [type(event) for event in events] == [Failure, PhaseChanged]
    assert events[0].first_line == 2
    other = make_run(tmp_path / "job-bbbbb")
    rundir.append_phase(other, "Failed", "gone", failure=failure)
    assert [type(event) for event in events_of(await read(other))] == [PhaseChanged]


async def test_a_line_that_a_killed_worker_left_unfinished_is_shown(tmp_path):
    run = make_run(tmp_path / "job-aaaaa")
    add(run, 0, 0, log([b"whole"]) + b"[0:2] half of a li")
    # while the job runs, the rest may still come
    lock = rundir.take_lock(run.lock)
    rundir.append_phase(run, "Running", "")
    before = await read(run)
    assert [event.text for event in events_of(before) if isinstance(event, LogLine)] == ["whole"]
    rundir.append_phase(run, "Failed", "killed")
    os.close(lock)
    after = events_of(await read(run, before[-1].cursor))
    assert [event.text for event in after if isinstance(event, LogLine)] == ["half of a li"]


async def test_gaps_are_counted(tmp_path):
    run = make_run(tmp_path / "job-aaaaa")
    add(run, 0, 0, b"[0:0] a\n[0:7] b\n")
    rundir.append_phase(run, "Succeeded", "")
    assert [event.count for event in events_of(await read(run)) if isinstance(event, Gap)] == [6]


async def test_a_deleted_job_ends_the_stream_with_an_error(tmp_path):
    run = make_run(tmp_path / "job-aaaaa")
    lock = rundir.take_lock(run.lock)
    rundir.append_phase(run, "Running", "")
    stream = follow(run, None, to_end=True)
    assert (await anext(stream)).events
    rundir.remove(run)
    with pytest.raises(NotFound, match="deleted"):
        await anext(stream)
    os.close(lock)


async def test_a_job_whose_supervisor_is_gone_ends_as_lost(tmp_path):
    run = make_run(tmp_path / "job-aaaaa")
    rundir.append_phase(run, "Running", "")
    last = events_of(await read(run, to_end=True))[-1]
    assert last.phase is Phase.LOST
    assert last.reason


LINES = st.lists(
    st.one_of(
        st.sampled_from([b"", b"text", "caf\u00e9".encode(), b"\xe4", b"[0:3] looks like ours"]),
        st.sampled_from([8191, 8192, 8193, 20_000]).map(lambda size: b"x" * size),  # travels in pieces
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    logs=st.lists(LINES, min_size=1, max_size=3),
    cuts=st.lists(st.integers(2_000, 30_000), min_size=1, max_size=5),
    patience=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    chunk=st.sampled_from([500, 9000, 1 << 18]),
)
def test_any_cuts_of_the_files_and_of_the_reading_give_each_event_once(logs, cuts, patience, chunk, tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("home") / "job-aaaaa")
    contents = {(index // 2, index % 2): log(lines) for index, lines in enumerate(logs)}
    expected: Counter[object] = Counter()
    for (node, restart), content in contents.items():
        expected.update(StreamDecoder(node, restart, first_line=2).feed(content))
    seen: Counter[object] = Counter()
    cursor: Cursor | None = None

    async def some(limit: int) -> None:
        """Read on, and leave the stream after some batches, as a client that is killed does."""
        nonlocal cursor
        stream = follow(run, cursor, to_end=False, chunk=chunk)
        async for batch in stream:
            seen.update(batch.events)
            cursor = json.loads(json.dumps(batch.cursor))
            limit -= 1
            if limit == 0:
                break
        await stream.aclose()

    lock = rundir.take_lock(run.lock)
    try:
        steps = zip(itertools.cycle(cuts), itertools.cycle(patience))
        while any(contents.values()):
            cut, limit = next(steps)
            for key, content in contents.items():
                add(run, *key, content[:cut])
                contents[key] = content[cut:]
            rundir.append_phase(run, "Running", "")
            asyncio.run(some(limit))
        rundir.append_phase(run, "Succeeded", "")
        asyncio.run(some(1_000_000))
    finally:
        os.close(lock)
    phases = [event for event in seen if isinstance(event, PhaseChanged)]
    assert [event.phase for event in phases].count(Phase.SUCCEEDED) == 1
    assert set(seen.values()) == {1}
    assert {event for event in seen if not isinstance(event, PhaseChanged)} == set(expected)


async def test_many_lines_are_read_in_bounded_memory(tmp_path):
    run = make_run(tmp_path / "job-aaaaa")
    count = 200_000
    add(run, 0, 0, b"".join(b"[0:%d] %b\n" % (index, b"x" * 100) for index in range(count)))
    rundir.append_phase(run, "Succeeded", "")
    tracemalloc.start()
    try:
        lines = 0
        async for batch in follow(run, None, to_end=True):
            assert len(batch.events) < 10_000
            lines += sum(isinstance(event, LogLine) for event in batch.events)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lines == count
    assert peak < 12 << 20
