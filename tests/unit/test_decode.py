"""A node's log read back: any bytes, any chunks, any place to resume from, each event once and every gap counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.decode import LINE_LIMIT, Position, StreamDecoder
from kfnb.events import Gap, JobEvent, LogLine, NodeStarted, Note, Points, Progress
from kfnb_worker import wire


def log_of(entries: list[tuple[bytes, bytes, bytes]]) -> bytes:
    """A log with the (who, separator, payload) entries, as a worker writes it."""
    sequence, out = 0, []
    for who, separator, payload in entries:
        lines = wire.frame(who, separator, sequence, payload)
        sequence += len(lines)
        out += lines
    return b"".join(out)


def decode(log: bytes, chunks: list[int] | None = None, position: Position | None = None) -> list[JobEvent]:
    decoder = StreamDecoder(0, position=position)
    start = position.offset if position else 0
    events: list[JobEvent] = []
    for cut in [*(chunks or []), len(log)]:
        if cut > start:
            events += decoder.feed(log[start:cut])
            start = cut
    return events


payloads = st.one_of(
    st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")),
    st.integers(wire.PIECE - 2, 3 * wire.PIECE + 2).map(lambda n: bytes(n).replace(b"\0", b"x")),
)
output = st.tuples(st.sampled_from([b"0", b"3", b"n"]), st.sampled_from([b":", b"!", b"~"]), payloads)
scalar = st.builds(
    lambda value, step: (
        b"kfnb",
        b":",
        wire.dump(
            {
                "e": "s",
                "a": 0,
                "r": 1,
                "d": ".",
                "src": "log",
                "p": {"loss": [[step], [1.0], wire.pack_floats([value])]},
            }
        ),
    ),
    st.floats(),
    st.integers(0, 1 << 40),
)
clock = st.floats(1, 2e9).map(lambda t: (b"kfnb", b":", wire.dump({"e": "clock", "t": t})))


@given(st.lists(st.one_of(output, scalar, clock), max_size=12), st.lists(st.integers(0, 100_000), max_size=4))
def test_any_chunking_gives_the_same_events(entries: list[tuple[bytes, bytes, bytes]], cuts: list[int]) -> None:
    log = log_of(entries)
    whole = decode(log)
    assert repr(decode(log, sorted(cuts))) == repr(whole)
    texts = [event.text for event in whole if isinstance(event, LogLine)]
    assert texts == [p.decode("utf-8", "replace") for who, _, p in entries if who != b"kfnb"]
    assert not any(isinstance(event, Gap) for event in whole)


@given(st.lists(st.one_of(output, scalar, clock), max_size=12), st.integers(0, 100_000), st.integers(0, 100_000))
def test_resuming_anywhere_gives_each_event_once(entries: list[tuple[bytes, bytes, bytes]], a: int, b: int) -> None:
    log = log_of(entries)
    first_cut, second_cut = sorted((min(a, len(log)), min(b, len(log))))
    events: list[JobEvent] = []
    position = Position()
    for end in (first_cut, second_cut, len(log)):
        decoder = StreamDecoder(0, position=Position.from_json(position.to_json()))
        events += decoder.feed(log[position.offset : end])
        position = decoder.position
    assert repr(events) == repr(decode(log))


@given(st.binary(max_size=400))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    StreamDecoder(0).feed(data + b"\n[kfnb:3] " + data + b"\n")


def test_a_character_split_between_pieces_is_whole() -> None:
    text = "x" * (wire.PIECE - 1) + "é" * 10
    (line,) = decode(log_of([(b"0", b":", text.encode())]))
    assert isinstance(line, LogLine)
    assert line.text == text


def test_bytes_that_are_no_text_are_replaced() -> None:
    first, second = decode(log_of([(b"0", b":", b"caf\xc3\xa9"), (b"0", b":", b"\xe4 x")]))
    assert isinstance(first, LogLine)
    assert isinstance(second, LogLine)
    assert (first.text, second.text) == ("café", "\ufffd x")


def test_missing_lines_are_counted() -> None:
    lines = log_of([(b"0", b":", str(i).encode()) for i in range(10)]).splitlines(keepends=True)
    events = decode(b"".join(lines[:3] + lines[7:]))
    assert [event.count for event in events if isinstance(event, Gap)] == [4]
    assert [event.text for event in events if isinstance(event, LogLine)] == ["0", "1", "2", "7", "8", "9"]


def test_lines_that_the_worker_lost_are_counted_once_with_its_reason() -> None:
    lines = log_of([(b"0", b":", str(i).encode()) for i in range(5)]).splitlines(keepends=True)
    lost = wire.frame_record(5, {"e": "lost", "count": 3, "bytes": 99, "why": "the disk is full", "t": 5.0})
    events = decode(b"".join(lines[:2] + lost))
    assert [(event.count, event.why) for event in events if isinstance(event, Gap)] == [(3, "the disk is full")]


def test_a_huge_line_is_cut_with_its_size_said() -> None:
    payload = b"y" * (LINE_LIMIT + 5000)
    (line,) = decode(log_of([(b"0", b":", payload)]))
    assert isinstance(line, LogLine)
    assert line.text.endswith("(5000 more bytes are in the log)")
    assert len(line.text) < LINE_LIMIT + 100


def test_a_line_that_no_worker_framed_is_the_nodes_own() -> None:
    (line,) = decode(b"python3: can't open file 'worker.zip'\n")
    assert isinstance(line, LogLine)
    assert (line.rank, line.stream) == (None, "stderr")


@pytest.mark.parametrize("head", [b"[0:%b]", b"[%b:0]", b"[kfnb:%b]"])
def test_numbers_that_no_worker_counts_to_are_no_frame(head: bytes) -> None:
    log = head % (b"9" * 5000) + b" x"
    (line,) = decode(log + b"\n")
    assert isinstance(line, LogLine)
    assert (line.rank, line.text) == (None, log.decode())


def test_records_become_events_with_their_time() -> None:
    hello = {
        "e": "hello", "v": 1, "job": "x-abcde", "node": 0, "nodes": 2, "procs": 2, "incarnation": "ff",
        "python": "3.11.7", "host": "h", "bundle": "aa", "a": 0, "t": 100.0,
    }  # fmt: skip
    points = {"e": "s", "a": 0, "r": 1, "d": "train", "src": "file", "p": {"loss": [[1, 2], [3.0, 4.0], [0.5, "nan"]]}}
    started, line, series = decode(
        log_of([(b"kfnb", b":", wire.dump(hello)), (b"0", b":", b"hi"), (b"kfnb", b":", wire.dump(points))])
    )
    assert isinstance(started, NodeStarted)
    assert (started.nodes, started.time) == (2, 100.0)
    assert isinstance(line, LogLine)
    assert line.time == 100.0
    assert isinstance(series, Points)
    assert (series.run, series.rank, series.source, series.steps) == ("train", 1, "file", [1, 2])
    assert math.isnan(series.values[1])


def test_progress_has_the_pace_that_the_job_told() -> None:
    record = {"e": "progress", "r": 0, "a": 0, "done": 3, "total": 10, "unit": "step", "t": 5.0}
    more: list[dict[str, object]] = [
        {"step": 0.5, "wait": 0},
        {},
        {"step": "0.5", "wait": -1.0},
        {"step": True, "wait": [1]},
    ]
    events = decode(log_of([(b"kfnb", b":", wire.dump({**record, **one})) for one in more]))
    paces = [(event.step, event.wait) for event in events if isinstance(event, Progress)]
    assert paces == [(0.5, 0.0), (None, None), (None, None), (None, None)]


@pytest.mark.parametrize("field", [b'"done":NaN', b'"total":1e999', b'"t":NaN', b'"t":-1', b'"t":1e300', b'"t":1e999'])
def test_progress_that_no_view_could_show_is_a_counted_gap(field: bytes) -> None:
    record = b'{"e":"progress","r":0,"a":0,"done":1,"total":2,"unit":"","t":5.0,%b}' % field
    assert [type(event) for event in decode(log_of([(b"kfnb", b":", record)]))] == [Gap]


def test_a_broken_record_is_a_counted_gap() -> None:
    log = b'[kfnb:0] {"e":"s","a":0}\n[kfnb:1] {"e":"s","a":0,"r":0,"d":".","p":{"x":[[1],[1.0],[]]}}\n[kfnb:2] {nope\n'
    events = decode(log)
    assert [type(event) for event in events] == [Gap, Gap, Gap]


def test_a_step_that_no_series_can_hold_is_a_counted_gap() -> None:
    record = {"e": "s", "a": 0, "r": 0, "d": ".", "src": "log", "p": {"x": [[1 << 64], [1.0], [1.0]]}}
    (gap,) = decode(log_of([(b"kfnb", b":", wire.dump(record))]))
    assert isinstance(gap, Gap)


@given(
    st.lists(st.one_of(output, scalar, clock), max_size=12),
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 20)), max_size=4),
)
def test_resuming_by_number_gives_each_event_once_from_wherever_it_is_read_again(
    entries: list[tuple[bytes, bytes, bytes]], breaks: list[tuple[int, int]]
) -> None:
    log = log_of(entries)
    events: list[JobEvent] = []
    decoder = StreamDecoder(0)
    start = 0
    for cut, back in sorted(breaks):
        events += decoder.feed(log[start : max(start, min(cut, len(log)))])
        stood = start + decoder.position.offset
        lines = [0, *(at + 1 for at, byte in enumerate(log[:stood]) if byte == 10)]
        start = lines[max(0, len(lines) - 1 - back)]  # a whole line, at or before where it stood
        decoder = decoder.resumed()
    events += decoder.feed(log[start:])
    assert repr(events) == repr(decode(log))


def test_lines_that_a_rotation_took_are_counted_when_resumed() -> None:
    log = log_of([(b"0", b":", b"line %d" % index) for index in range(10)])
    lines = log.splitlines(keepends=True)
    decoder = StreamDecoder(0)
    decoder.feed(b"".join(lines[:3]))
    events = decoder.resumed().feed(b"".join(lines[6:]))
    assert events[0] == Gap(0, 3, "they are missing in the log", 0.0)
    assert [event.text for event in events[1:] if isinstance(event, LogLine)] == [f"line {n}" for n in range(6, 10)]


@pytest.mark.parametrize("half", ["\ud800", "a\udfff", "\ud800b\udc01c"])
def test_half_a_character_becomes_text_that_can_be_shown(half: str) -> None:
    records = [
        {"e": "failure", "r": 0, "node": 0, "kind": "exception", "type": half, "message": half, "traceback": half},
        {"e": "note", "text": half, "t": 1.0},
        {"e": "progress", "r": 0, "a": 0, "done": 1, "total": 2, "unit": half, "t": 1.0},
        {"e": "s", "a": 0, "r": 0, "d": half, "src": "log", "p": {half: [[1], [1.0], [1.0]]}},
    ]
    events = decode(log_of([(b"kfnb", b":", wire.dump(record)) for record in records]))
    assert len(events) == 4
    str(events).encode()
    whole = "\U0001f600"
    (note,) = decode(log_of([(b"kfnb", b":", wire.dump({"e": "note", "text": whole, "t": 1.0}))]))
    assert isinstance(note, Note)
    assert note.text == whole
