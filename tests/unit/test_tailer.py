"""What the tailer says of a logdir: whose points, of which attempt, each once, whatever the tree looks like."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfnb_worker import tailer as tailing
from kfnb_worker import wire
from kfnb_worker.tailer import FOREIGN, LogdirTailer, writer_of
from tests.unit.eventfiles import event_file, scalar, version

HOST = os.uname().nodename
PIDS = {100: 0, 101: 1, 200: -1}

Found = list[tuple[str, int | None, int, str, int, float]]  # run, rank, attempt, tag, step, value


def name(pid: int, started: float | None = None, number: int = 0, host: str = HOST) -> str:
    return f"events.out.tfevents.{int(time.time() if started is None else started)}.{host}.{pid}.{number}"


def tailer(path: Path, leftovers: bool = True, attempt: int = 0) -> LogdirTailer:
    return LogdirTailer(str(path), PIDS.get, lambda: attempt, leftovers)


def flat(records: list[dict[str, Any]]) -> Found:
    return [
        (record["d"], record["r"], record["a"], tag, step, value)
        for record in records
        for tag, (steps, _, values) in record["p"].items()
        for step, value in zip(steps, wire.unpack_floats(values), strict=True)
    ]


def drain(tail: LogdirTailer) -> list[dict[str, Any]]:
    """All that is there, as at the end of a job."""
    records = tail.poll(final=True)
    while tail.more:
        records += tail.poll(final=True)
    for record in records:
        assert len(json.dumps(record, allow_nan=False)) < 15 * 1024
    return records


@pytest.mark.parametrize(
    ("file", "writer"),
    [
        ("events.out.tfevents.1700000000.here.42.0", (1700000000, "here", 42)),
        ("events.out.tfevents.1700000000.here.42.0.v2", (1700000000, "here", 42)),
        ("events.out.tfevents.1700000000.here.42.0_suffix", (1700000000, "here", 42)),
        ("events.out.tfevents.1700000000.a.b.c.42.7.v2", (1700000000, "a.b.c", 42)),
        ("events.out.tfevents.1700000000.10.0.0.1.42.0", (1700000000, "10.0.0.1", 42)),
        ("events.out.tfevents.1700000000.here", (1700000000, None, None)),
        ("events.out.tfevents.1700000000", (1700000000, None, None)),
        ("my.tfevents", (None, None, None)),
    ],
)
def test_a_name_says_who_writes(file: str, writer: tuple[object, ...]) -> None:
    assert tuple(writer_of(file, "here")) == writer


def test_real_writers_and_the_ranks_that_own_them(tmp_path: Path) -> None:
    code = """
import sys
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter(sys.argv[1]) as writer:
    writer.add_scalar("loss", 0.5, 1)
    writer.add_scalars("both", {"train": 1.0, "val": 2.0}, 1)
"""
    other = LogdirTailer(str(tmp_path), lambda pid: None, lambda: 3)
    ranks: dict[int, int] = {}
    tail = LogdirTailer(str(tmp_path), ranks.get, lambda: 3)
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    ranks[process.pid] = 5
    assert process.wait(120) == 0
    expected: Found = [
        (".", 5, 3, "loss", 1, 0.5),
        ("both_train", 5, 3, "both", 1, 1.0),
        ("both_val", 5, 3, "both", 1, 2.0),
    ]
    assert sorted(flat(drain(tail))) == expected
    assert {rank for _, rank, *_ in flat(drain(other))} == {None}


def test_several_writers_of_a_directory_and_of_several(tmp_path: Path) -> None:
    tail = tailer(tmp_path)
    event_file(tmp_path, name(100), [("loss", 1, 1.0, 1.0)], time.time())
    event_file(tmp_path, name(100, number=1), [("loss", 2, 2.0, 2.0)], time.time())
    event_file(tmp_path, name(101), [("loss", 1, 1.0, 3.0)], time.time())
    event_file(tmp_path / "validation", name(100, number=2), [("loss", 1, 1.0, 4.0)], time.time())
    assert sorted(flat(drain(tail))) == [
        (".", 0, 0, "loss", 1, 1.0),
        (".", 0, 0, "loss", 2, 2.0),
        (".", 1, 0, "loss", 1, 3.0),
        ("validation", 0, 0, "loss", 1, 4.0),
    ]


def test_all_files_of_a_directory_go_on_to_be_read(tmp_path: Path) -> None:
    tail = tailer(tmp_path)
    paths = [event_file(tmp_path, name(100, number=number), [], time.time()) for number in range(3)]
    drain(tail)
    for step, path in enumerate([*paths, *reversed(paths)], 1):
        with path.open("ab") as out:
            out.write(scalar("loss", step, 1.0, step))
        assert flat(drain(tail)) == [(".", 0, 0, "loss", step, step)]
    assert drain(tail) == []


def test_directories_that_come_later(tmp_path: Path) -> None:
    tail = tailer(tmp_path / "logdir")
    assert drain(tail) == []
    event_file(tmp_path / "logdir", name(100), [("loss", 1, 1.0, 1.0)], time.time())
    assert flat(drain(tail)) == [(".", 0, 0, "loss", 1, 1.0)]
    (tmp_path / "logdir" / "a").mkdir()
    assert drain(tail) == []
    event_file(tmp_path / "logdir" / "a" / "b" / "c", name(100), [("loss", 1, 1.0, 2.0)], time.time())
    assert flat(drain(tail)) == [("a/b/c", 0, 0, "loss", 1, 2.0)]


def test_a_directory_that_is_deleted_and_made_anew(tmp_path: Path) -> None:
    import shutil

    tail = tailer(tmp_path)
    for turn in range(3):
        began = time.time()
        event_file(tmp_path / "trial", name(100, number=turn), [("loss", 1, 1.0, turn)], began)
        assert flat(drain(tail)) == [("trial", 0, 0, "loss", 1, turn)]
        shutil.rmtree(tmp_path / "trial")
        assert drain(tail) == []


def test_files_from_before_the_job_come_first_and_count_down(tmp_path: Path) -> None:
    now = time.time()
    event_file(tmp_path, name(100, now - 500), [("loss", 1, 1.0, 1.0)], now - 500)
    event_file(tmp_path, name(101, now - 9000), [("loss", 1, 1.0, 2.0)], now - 9000)
    event_file(tmp_path / "old", name(7, now - 9000), [("loss", 1, 1.0, 3.0)], now - 9000)
    tail = tailer(tmp_path)
    event_file(tmp_path, name(100), [("loss", 1, 1.0, 4.0)], time.time())
    found = flat(drain(tail))
    assert found == [
        (".", None, -2, "loss", 1, 2.0),
        (".", None, -1, "loss", 1, 1.0),
        (".", 0, 0, "loss", 1, 4.0),
    ]
    # another job's, until a rank of this one goes on there
    event_file(tmp_path / "old", name(101), [("loss", 2, 2.0, 5.0)], time.time())
    assert flat(drain(tail)) == [("old", None, -1, "loss", 1, 3.0), ("old", 1, 0, "loss", 2, 5.0)]


def test_a_running_jobs_files_are_its_own(tmp_path: Path) -> None:
    """Two jobs with one logdir: one began before, one begins later, and both go on."""
    now = time.time()
    earlier = event_file(tmp_path, name(7, now - 500), [("loss", 1, 1.0, 1.0)], now - 500)
    tail = LogdirTailer(str(tmp_path), lambda pid: PIDS.get(pid, FOREIGN), lambda: 0)
    began = tail._attempts[0][0]
    os.utime(earlier, (began + 1, began + 1))
    event_file(tmp_path, name(300), [("loss", 1, 1.0, 2.0)], time.time())
    event_file(tmp_path, name(100), [("loss", 1, 1.0, 3.0)], time.time())
    assert flat(drain(tail)) == [(".", 0, 0, "loss", 1, 3.0)]


def test_a_file_from_before_is_left_alone_once_somebody_writes_to_it(tmp_path: Path) -> None:
    now = time.time()
    earlier = event_file(tmp_path, name(7, now - 500), [("loss", 1, 1.0, 1.0)], now - 500)
    tail = tailer(tmp_path)
    os.utime(earlier, (now - 400, now - 400))
    event_file(tmp_path, name(100), [("loss", 2, 1.0, 2.0)], time.time())
    assert [value for *_, value in flat(drain(tail))] == [1.0, 2.0]
    with earlier.open("ab") as out:
        out.write(scalar("loss", 2, 2.0, 3.0))
    os.utime(earlier, (now + 400, now + 400))
    assert flat(drain(tail)) == []


def test_an_attempt_is_that_in_which_a_file_was_made(tmp_path: Path) -> None:
    attempt = [0]
    tail = LogdirTailer(str(tmp_path), PIDS.get, lambda: attempt[0])
    first = event_file(tmp_path, name(100), [("loss", 1, 1.0, 1.0)], time.time())
    assert flat(drain(tail)) == [(".", 0, 0, "loss", 1, 1.0)]
    attempt[0] = 1
    event_file(tmp_path, name(101), [("loss", 1, 1.0, 2.0)], time.time())
    with first.open("ab") as out:
        out.write(scalar("loss", 2, 2.0, 2.5))
    assert flat(drain(tail)) == [(".", 0, 0, "loss", 2, 2.5), (".", 1, 1, "loss", 1, 2.0)]


def test_what_other_workers_report_is_left_to_them(tmp_path: Path) -> None:
    now = time.time()
    event_file(tmp_path, name(7, now - 500), [("loss", 1, 1.0, 1.0)], now - 500)
    tails = {leftovers: tailer(tmp_path, leftovers) for leftovers in (True, False)}
    event_file(tmp_path, name(200), [("loss", 1, 1.0, 2.0)], time.time())  # of another worker here
    event_file(tmp_path, name(100, host="elsewhere"), [("loss", 1, 1.0, 3.0)], time.time())  # of another machine
    event_file(tmp_path, name(300), [("loss", 1, 1.0, 4.0)], time.time())  # of no rank
    event_file(tmp_path, name(100), [("loss", 1, 1.0, 5.0)], time.time())
    assert sorted(value for *_, value in flat(drain(tails[True]))) == [1.0, 4.0, 5.0]
    assert flat(drain(tails[False])) == [(".", 0, 0, "loss", 1, 5.0)]


def test_a_file_that_takes_the_place_of_an_old_one_is_of_the_job(tmp_path: Path) -> None:
    old = name(100, time.time() - 500)
    event_file(tmp_path, old, [("loss", 1, 1.0, 1.0)], time.time() - 500)
    tail = tailer(tmp_path)
    assert flat(drain(tail)) == []
    event_file(tmp_path, old, [("loss", 1, 1.0, 1.0), ("loss", 2, 2.0, 2.0)], time.time())
    assert flat(drain(tail)) == [(".", 0, 0, "loss", 1, 1.0), (".", 0, 0, "loss", 2, 2.0)]


def test_links_that_loop_lead_inside_or_lead_out(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "logdir"
    tail = tailer(inside)
    event_file(outside / "deep", name(100), [("loss", 1, 1.0, 1.0)], time.time())
    event_file(inside / "run", name(100), [("loss", 1, 1.0, 2.0)], time.time())
    (inside / "again").symlink_to(outside)
    (inside / "latest").symlink_to("run")
    (inside / "out").symlink_to(outside)
    (inside / "run" / "up").symlink_to("..")
    (outside / "deep" / "loop").symlink_to(outside)
    (inside / "dangling").symlink_to("nowhere")
    (inside / name(101)).symlink_to(inside / "run" / name(100))
    found = flat(drain(tail))
    assert sorted(value for *_, value in found) == [1.0, 2.0]
    assert {run for run, *_ in found} in ({"out/deep", "run"}, {"again/deep", "run"})


def test_what_cannot_be_read_is_said_once_and_the_rest_is_read(tmp_path: Path) -> None:
    tail = tailer(tmp_path)
    (tmp_path / name(101)).mkdir()  # a directory by the name of a file
    event_file(tmp_path, name(100), [("loss", 1, 1.0, 1.0)], time.time())
    damaged = event_file(tmp_path, name(100, number=1), [("lr", 1, 1.0, 1.0)], time.time())
    with damaged.open("r+b") as out:
        out.seek(-6, os.SEEK_END)
        out.write(b"\xff")
    os.mkfifo(tmp_path / name(100, number=2))
    assert flat(drain(tail)) == [(".", 0, 0, "loss", 1, 1.0)]
    (note,) = tail.take_notes()
    assert damaged.name in note
    assert "damaged" in note
    drain(tail)
    assert tail.take_notes() == []


def test_a_file_that_vanishes_between_looking_and_reading(tmp_path: Path) -> None:
    tail = tailer(tmp_path)
    path = event_file(tmp_path, name(100), [("loss", 1, 1.0, 1.0)], time.time())
    drain(tail)
    whole = path.read_bytes()
    path.unlink()
    assert drain(tail) == []
    assert tail.take_notes() == []
    path.write_bytes(whole + scalar("loss", 2, 2.0, 2.0))
    assert flat(drain(tail)) == [(".", 0, 0, "loss", 2, 2.0)]


def test_a_backlog_is_read_in_bounded_polls(tmp_path: Path) -> None:
    tail = tailer(tmp_path)
    points = [("loss", step, float(step), step % 100) for step in range(1, 60_001)]
    event_file(tmp_path, name(100), points, time.time())
    found: Found = []
    polls = 0
    while True:
        came = flat(tail.poll())
        assert len(came) < 20_000
        found, polls = found + came, polls + 1
        if not tail.more:
            break
    assert polls > 3
    assert [each[4] for each in found] == list(range(1, 60_001))


def test_a_huge_tree_is_looked_at_in_bounded_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailing, "POLL_WORK", 1000)
    tail = tailer(tmp_path)
    for number in range(300):
        (tmp_path / f"{number:03}").mkdir()
    event_file(tmp_path / "299", name(100), [("loss", 1, 1.0, 1.0)], time.time())
    records = tail.poll()
    assert tail.more
    while tail.more:
        records += tail.poll()
    assert flat(records) == [("299", 0, 0, "loss", 1, 1.0)]
    assert tail.poll() == []
    assert not tail.more
    with next((tmp_path / "299").iterdir()).open("ab") as out:
        out.write(scalar("loss", 2, 2.0, 2.0))
    assert flat(drain(tail)) == [("299", 0, 0, "loss", 2, 2.0)]


def test_too_many_directories_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailing, "DIRECTORIES", 5)
    monkeypatch.setattr(tailing, "FILES", 2)
    tail = tailer(tmp_path)
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        event_file(tmp_path, name(100, number=number), [("loss", 1, 1.0, 1.0)], time.time())
    assert len(flat(drain(tail))) == 2
    assert ["directories" in note or "event files" in note for note in tail.take_notes()] == [True, True]


def test_points_that_are_not_finite_are_points(tmp_path: Path) -> None:
    tail = tailer(tmp_path)
    path = tmp_path / name(100)
    values = [math.nan, math.inf, -math.inf]
    path.write_bytes(version(time.time()) + b"".join(scalar("loss", 1, math.nan, value) for value in values))
    (record,) = drain(tail)
    assert record["p"]["loss"] == [[1, 1, 1], ["nan"] * 3, ["nan", "inf", "-inf"]]


def test_names_of_any_length_and_bytes_fit_a_record(tmp_path: Path) -> None:
    tail = tailer(tmp_path)
    folder = tmp_path
    for number in range(6):
        folder = folder / (str(number) + "\x01" * 200)
    folder.mkdir(parents=True)
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    os.mkdir(odd)
    tags = [b"\xff" * 5000, b"\x01" * 5000, "🙂".encode() * 2000, b"\x01" * 5001]
    content = version(time.time()) + b"".join(scalar(tag, n + 1, 1.0, 1.0) for tag in tags for n in range(300))
    (folder / name(100)).write_bytes(content)
    (Path(odd) / name(100)).write_bytes(content)
    found = Counter((run, tag) for run, _, _, tag, *_ in flat(drain(tail)))
    assert set(found.values()) == {300}
    assert len(found) == 8
    assert {run for run, _ in found if run.startswith("caf")} == {"caf\\xe9"}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.booleans()), max_size=12))
def test_each_point_comes_once_and_in_order(turns: list[tuple[int, int, bool]]) -> None:
    """Three files grow by turns, sometimes in mid-record, with a poll now and then."""
    with tempfile.TemporaryDirectory() as folder:
        tail = tailer(Path(folder))
        paths = [event_file(Path(folder) / str(n), name(100, number=n), [], time.time()) for n in range(3)]
        expected: dict[str, list[int]] = {}
        found: dict[str, list[int]] = {}
        pending = dict.fromkeys(paths, b"")
        step = 0
        for index, count, cut in turns:
            for _ in range(count):
                step += 1
                pending[paths[index]] += scalar("loss", step, float(step), step)
                expected.setdefault(str(index), []).append(step)
            stop = -7 if cut else None
            with paths[index].open("ab") as out:
                out.write(pending[paths[index]][:stop])
            pending[paths[index]] = pending[paths[index]][-7:] if cut else b""
            for run, _, _, _, at, _ in flat(drain(tail)):
                found.setdefault(run, []).append(at)
        for path, rest in pending.items():
            with path.open("ab") as out:
                out.write(rest)
        for run, _, _, _, at, _ in flat(drain(tail)):
            found.setdefault(run, []).append(at)
    assert found == expected
