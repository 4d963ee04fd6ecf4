"""The log that a feed keeps: every line, whatever is in it, by its index and by what it says."""

from __future__ import annotations

import errno
import os
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfnb.events import LogLine
from kfnb.views.feed import store as store_module
from kfnb.views.feed.spill import Spill
from kfnb.views.feed.store import CUT, GAP, NEWEST, NEWEST_BYTES, NOTE, SHOWN, STDERR, Lines, LogStore

TEXTS = [
    "",
    "step 1 loss 0.5",
    "Größe 3 \u00a0 µm",
    "\x1b[31mStep\x1b[0m 2",
    "st\x1b[1mep 3",
    "tab\tand \x07 bell",
    "x" * (SHOWN + 1) + " step at the end",
    "é" * SHOWN,
    "two\nlines",
    "lone \ud800 surrogate",
]
STREAMS = {"stdout": 0, "stderr": STDERR, "gap": GAP, "note": NOTE}


def line(text: str, rank: int | None = 0, *, node: int = 0, time: float = 0.0, stream: str = "stdout") -> LogLine:
    return LogLine(node, rank, 0, text, time, stream)


def told(lines: Lines) -> list[tuple[str, int, float, int]]:
    """(text, rank, time, flags) as a page reads them out of the buffers."""
    texts = lines.text.decode().split("\n") if lines.count else []
    ranks, times = np.frombuffer(lines.ranks, "<i4").tolist(), np.frombuffer(lines.times, "<f8").tolist()
    assert len(texts) == len(ranks) == len(times) == len(lines.flags) == lines.count
    return list(zip(texts, ranks, times, lines.flags, strict=True))


def expected(one: LogLine, limit: int = SHOWN) -> tuple[str, int, float, int]:
    text = one.text.replace("\n", " ").encode("utf-8", "replace").decode()
    flags = STREAMS[one.stream] | (CUT if len(text) > limit else 0)
    return text[:limit], -1 - one.node if one.rank is None else one.rank, one.time, flags


made_lines = st.builds(
    LogLine,
    st.integers(0, 3),
    st.none() | st.integers(0, 7),
    st.just(0),
    st.sampled_from(TEXTS),
    st.floats(0, 1e10),
    st.sampled_from(list(STREAMS)),
)
#: What is appended at once: some lines, repeated.
pieces = st.tuples(st.lists(made_lines, min_size=1, max_size=5), st.integers(1, 300)).map(
    lambda made: made[0] * made[1]
)


@settings(max_examples=30, deadline=None)
@given(st.lists(pieces, max_size=8), st.data())
def test_every_line_is_there_by_its_index(appended: list[list[LogLine]], data: st.DataObject) -> None:
    store, model = LogStore(), [one for piece in appended for one in piece]
    for piece in appended:
        store.append(piece)
        newest = store.newest(0)
        end = store.total - newest.count
        assert told(newest) == [expected(one) for one in model[end : store.total]]
        assert newest.count > 0
        assert newest.count <= NEWEST
        assert len(newest.text) <= NEWEST_BYTES
    assert store.total == len(model)
    view = store.view()
    first, count = data.draw(st.integers(0, len(model) + 5)), data.draw(st.integers(0, 2_000))
    assert told(view.range(first, count)) == [expected(one) for one in model[first : first + count]]
    if model:
        indices = sorted(data.draw(st.sets(st.integers(0, len(model) - 1), max_size=40)))
        assert told(view.pick(indices)) == [expected(model[index]) for index in indices]
        assert told(view.pick(indices, limit=1 << 20)) == [expected(model[index], 1 << 20) for index in indices]
    store.close()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(pieces, max_size=6),
    st.sampled_from(["", "step", "STEP", "größe", "[31m", "at the end", "two lines", "absent", "\n"]),
    st.none() | st.lists(st.integers(-4, 7), max_size=4),
    st.integers(0, 3_000),
)
def test_a_search_finds_what_a_reader_would(
    appended: list[list[LogLine]], text: str, ranks: list[int] | None, since: int
) -> None:
    store, model = LogStore(), [expected(one, 1 << 20) for piece in appended for one in piece]
    for piece in appended:
        store.append(piece)
    found = store.view().scan(text, ranks, since)
    plain = [re.sub(r"\x1b\[[0-9;]*m|[\x00-\x08\x0a-\x1f]", "", one[0]).casefold() for one in model]
    assert found.indices.tolist() == [
        index
        for index, one in enumerate(model)
        if index >= since and text.casefold() in plain[index] and (ranks is None or one[1] in ranks)
    ]
    assert (found.truncated, found.upto) == (False, len(model))
    store.close()


def test_a_search_stops_at_the_newest_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MATCHES", 100)
    store = LogStore()
    for _ in range(40):
        store.append([line("match"), line("other")] * 50)
    found = store.view().scan("match", None, 0)
    assert found.indices.tolist() == list(range(3_800, 4_000, 2))
    assert found.truncated
    assert not store.view().scan("match", None, 3_800).truncated


def test_a_view_is_the_log_of_its_time_while_lines_are_appended() -> None:
    store = LogStore()
    store.append([line(f"{number}") for number in range(1_400)])
    view = store.view()
    for _ in range(10):
        store.append([line("later")] * 600)
    assert view.total == 1_400
    assert [text for text, *_ in told(view.range(0, 5_000))] == [f"{number}" for number in range(1_400)]
    assert view.scan("later", None, 0).indices.tolist() == []


def test_a_message_has_the_newest_lines_and_no_more_than_its_room() -> None:
    store = LogStore()
    store.append([line("y" * 1_000) for _ in range(300)])
    newest = store.newest(0)
    assert newest.count == NEWEST_BYTES // 1_001
    assert store.newest(298).count == 2
    assert store.newest(300).count == 0


class FullDisk(Spill):
    """A disk that has room only now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.full = True

    def add(self, content: bytes) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().add(content)


def test_lines_that_could_not_be_kept_say_so_and_later_ones_are_kept() -> None:
    disk = FullDisk()
    store = LogStore(disk)
    store.append([line("lost")] * 600)
    store.append([line("second")] * 1_000)
    disk.full = False
    store.append([line("third")] * 1_000)
    store.append([line("fourth")] * 1_000)
    lines = told(store.view().range(0, 5_000))
    assert len(lines) == 3_600
    assert set(lines[:600]) == {
        ("(This line could not be kept by the view: No space left on device. It is in the job's log.)", -1, 0.0, GAP)
    }
    assert {text for text, *_ in lines[600:]} == {"second", "third", "fourth"}
    assert store.view().scan("lost", None, 0).indices.tolist() == []


def test_a_log_that_was_let_go_of_answers_with_a_sentence() -> None:
    store = LogStore()
    for _ in range(3):
        store.append([line("x")] * 1_000)
    view = store.view()
    store.close()
    assert told(view.range(0, 1))[0][0].startswith("(This line could not be kept by the view")
    assert told(view.range(2_999, 1))[0][0] == "x"


def test_a_whole_line_has_a_limit_too() -> None:
    store = LogStore()
    store.append([line("z" * 5_000)])
    assert told(store.view().pick([0], limit=4_000)) == [("z" * 4_000, 0, 0.0, CUT)]
    assert told(store.view().pick([0], limit=5_000)) == [("z" * 5_000, 0, 0.0, 0)]


def test_memory_does_not_grow_with_the_log() -> None:
    store = LogStore()
    for _ in range(100):
        store.append([line("w" * 100)] * 1_000)
    view = store.view()
    assert len(view._recent) <= 4
    assert view._count >= 90  # blocks, each of which costs three numbers
    assert told(view.range(50_000, 1)) == [("w" * 100, 0, 0.0, 0)]


def test_the_newest_lines_of_many_pieces_are_within_a_message() -> None:
    """The newlines that join the pieces are counted too, whatever is left of the room."""
    for length in range(500, 530):
        store = LogStore()
        for _ in range(NEWEST_BYTES // length + 1):
            store.append([line("x" * length)])
        newest = store.newest(0)
        assert 0 <= NEWEST_BYTES - len(newest.text) <= length
        assert newest.text.count(b"\n") == newest.count - 1
