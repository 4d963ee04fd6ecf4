"""The worker's output: numbered, batched, and whole whatever the reader or the disk does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kfnb_worker import wire
from kfnb_worker.loop import Loop
from kfnb_worker.relay import HIGH, KEPT_BYTES, Output, Pipe


def parsed(log: bytes) -> list[tuple[bytes, bytes, int, bytes]]:
    assert not log or log.endswith(b"\n")
    lines = []
    for line in log.split(b"\n")[:-1]:
        match = re.fullmatch(wire.LINE, line, re.DOTALL)
        assert match, line
        who, separator, sequence, _, payload = match.groups()
        assert len(payload) <= wire.PIECE
        lines.append((who, separator, int(sequence), payload))
    return lines


def run_until(loop: Loop, done: Callable[[], bool], seconds: float = 20.0) -> None:
    def look() -> None:
        if done():
            loop.stop()
        else:
            loop.after(0.005, look)

    late = loop.after(seconds, loop.stop)
    look()
    loop.run()
    late.cancel()
    assert done()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b":", b"!"]),
            st.one_of(st.binary(max_size=50), st.integers(0, 20000).map(lambda size: b"y" * size)),
        ),
        max_size=40,
    )
)
def test_a_reader_gets_what_was_printed(prints: list[tuple[bytes, bytes]]) -> None:
    """Through real pipes: the bytes of each stream are the same, the numbers have no gap."""
    loop = Loop()
    log, name = tempfile.mkstemp()
    os.unlink(name)
    output = Output(loop, log)
    ends = {}
    pipes = []
    for separator in b":", b"!":
        read, ends[separator] = os.pipe()
        pipes.append(Pipe(loop, output, read, b"7", separator))
    for separator, text in prints:
        text = text.replace(b"\r", b"").replace(b"\x1b", b"") + b"\n"
        os.write(ends[separator], text)
    for end in ends.values():
        os.close(end)
    run_until(loop, lambda: all(pipe.closed for pipe in pipes))
    assert output.finish(5)
    loop.close()
    lines = parsed(os.pread(log, 1 << 24, 0))
    os.close(log)
    assert [sequence for _, _, sequence, _ in lines] == list(range(len(lines)))
    for separator in b":", b"!":
        printed = b"".join(
            text.replace(b"\r", b"").replace(b"\x1b", b"") for which, text in prints if which == separator
        ).replace(b"\n", b"")
        assert b"".join(payload for who, which, _, payload in lines if (who, which) == (b"7", separator)) == printed


def test_what_was_printed_before_a_traceback_comes_before_it(tmp_path: Path) -> None:
    loop = Loop()
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    output = Output(loop, log)
    (out_read, out), (err_read, err) = os.pipe(), os.pipe()
    first = Pipe(loop, output, out_read, b"0", b":")
    second = Pipe(loop, output, err_read, b"0", b"!", first=first)
    os.write(out, b"hi\n")
    run_until(loop, lambda: output.sequence > 0)  # the stream is now left alone for a moment
    os.write(out, b"0 0\n5 6\n")
    os.write(err, b"Traceback\n  File\n")
    os.close(out)
    os.close(err)
    run_until(loop, lambda: first.closed and second.closed)
    assert output.finish(5)
    loop.close()
    texts = [payload for who, _, _, payload in parsed(os.pread(log, 1 << 20, 0)) if who == b"0"]
    os.close(log)
    assert texts == [b"hi", b"0 0", b"5 6", b"Traceback", b"  File"]


def test_a_full_disk_loses_lines_and_says_how_many(tmp_path: Path) -> None:
    loop = Loop()
    log = os.open("/dev/full", os.O_WRONLY)
    output = Output(loop, log)
    total = 3 * KEPT_BYTES // 100
    for number in range(total):
        output.lines(b"0", b":", [b"%099d" % number])
        if number % 1000 == 0:
            output.flush()
    output.record({"e": "failure", "t": 1.0})
    output.record({"e": "s", "t": 1.0})
    output.flush()
    real = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    os.dup2(real, log)  # room again
    run_until(loop, lambda: not output._chunks)
    output.lines(b"0", b":", [b"after"])
    assert output.finish(5)
    loop.close()
    lines = parsed(os.pread(real, 1 << 24, 0))
    os.close(real)
    os.close(log)
    kept = [int(payload) for who, _, _, payload in lines if who == b"0" and payload != b"after"]
    assert kept == list(range(len(kept)))
    assert KEPT_BYTES // 120 < len(kept) < total
    records = [json.loads(payload) for who, _, _, payload in lines if who == b"kfnb"]
    [lost] = [record for record in records if record["e"] == "lost"]
    assert lost["count"] == total - len(kept) + 1  # and one record that does not matter
    assert "disk was full" in lost["why"]
    assert [record["e"] for record in records if record["e"] != "clock"] == ["lost", "failure"]
    sequences = [sequence for _, _, sequence, _ in lines]
    assert sequences == sorted(set(sequences))
    assert sequences[-1] + 1 == len(sequences) + lost["count"]
    assert lines[-1][3] == b"after"


def test_a_reader_that_does_not_read_stops_the_ranks_and_not_the_worker() -> None:
    loop = Loop()
    log_read, log_write = os.pipe()
    output = Output(loop, log_write)
    read, write = os.pipe()
    pipe = Pipe(loop, output, read, b"0", b":")
    os.set_blocking(write, False)
    line = b"z" * 999 + b"\n"
    sent = 0

    def print_on() -> bool:
        """As a rank does, as long as it can."""
        nonlocal sent
        try:
            while sent < 64 * HIGH:
                sent += os.write(write, line * 64)
        except BlockingIOError:
            pass
        return output._size > HIGH

    run_until(loop, print_on)
    still = -1

    def full() -> bool:
        nonlocal still
        before, still = still, sent
        print_on()
        return sent == before

    run_until(loop, full)
    assert output._size < 4 * HIGH
    os.close(write)
    os.set_blocking(log_read, False)
    got = bytearray()

    def read_all() -> bool:
        with contextlib.suppress(BlockingIOError):
            got.extend(os.read(log_read, 1 << 20))
        return pipe.closed and not output._chunks

    run_until(loop, read_all)
    while True:
        try:
            got.extend(os.read(log_read, 1 << 20))
        except BlockingIOError:
            break
    loop.close()
    for fd in log_read, log_write:
        os.close(fd)
    lines = parsed(bytes(got))
    assert [sequence for _, _, sequence, _ in lines] == list(range(len(lines)))
    torn = sent % len(line) != 0  # the last write did not fit whole: its line ends with the stream
    assert sum(len(payload) + 1 for who, _, _, payload in lines if who == b"0") == sent + torn


def test_where_there_is_no_room_in_the_end_what_matters_goes_first() -> None:
    loop = Loop()
    log_read, log_write = os.pipe()
    output = Output(loop, log_write)
    for number in range(10_000):
        output.lines(b"0", b":", [b"%099d" % number])
    output.record({"e": "failure", "message": "why", "t": 1.0})
    output.record({"e": "note", "text": "no matter", "t": 1.0})
    assert not output.finish(0.2)  # nobody reads
    output.record({"e": "end", "t": 2.0})
    got = bytearray()

    def read_all() -> None:
        for data in iter(lambda: os.read(log_read, 1 << 16), b""):
            got.extend(data)

    reading = threading.Thread(target=read_all)
    reading.start()
    assert output.finish(20)
    loop.close()
    os.close(log_write)
    reading.join()
    os.close(log_read)
    lines = parsed(bytes(got))
    kept = [int(payload) for who, _, _, payload in lines if who == b"0"]
    assert kept == list(range(len(kept)))
    records = [json.loads(payload) for who, _, _, payload in lines if who == b"kfnb"]
    assert [record["e"] for record in records if record["e"] != "clock"] == ["lost", "failure", "end"]
    assert 10_000 - len(kept) < records[-3]["count"] < 10_000 - len(kept) + 10  # the note, and clocks


def test_the_time_of_lines_is_told_before_them(tmp_path: Path) -> None:
    loop = Loop()
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    output = Output(loop, log)
    for _ in range(1000):
        output.lines(b"0", b":", [b"text"])
    assert output.finish(5)
    loop.close()
    lines = parsed(os.pread(log, 1 << 20, 0))
    os.close(log)
    assert json.loads(lines[0][3])["e"] == "clock"
    assert 1 <= sum(who == b"kfnb" for who, _, _, _ in lines) < 10


def test_long_records_travel_in_pieces(tmp_path: Path) -> None:
    loop = Loop()
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    output = Output(loop, log)
    record = {"e": "note", "text": "ä" * 10000, "t": 1.0}
    output.record(record)
    assert output.finish(5)
    loop.close()
    lines = parsed(os.pread(log, 1 << 20, 0))
    os.close(log)
    assert len(lines) > 1
    assert json.loads(b"".join(payload for _, _, _, payload in lines)) == record
