"""What a process prints becomes lines: every byte of plain text, and progress bars as a terminal leaves them."""

from __future__ import annotations

import io
import itertools

from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from kfnb_worker import wire
from kfnb_worker.lines import Lines


class Reader:
    """Joins pieces as a reader of the log does."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.longest = 0
        self._part = b""
        self.folder = Lines(self._take)

    def _take(self, lines: list[bytes], more: bool) -> None:
        for line in lines:
            self._part += line
            if more:
                self.longest = max(self.longest, len(line))
            else:
                self.lines.append(self._part)
                self._part = b""


def fold(*chunks: bytes) -> list[bytes]:
    reader = Reader()
    for chunk in chunks:
        reader.folder.feed(chunk)
    reader.folder.end()
    return reader.lines


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:stop] for start, stop in itertools.pairwise(places)]


plain = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from([b"\n", b"text", b"\xc3", b"\xa9", b"\0", b"\x1b[31m"]), max_size=40).map(b"".join),
    st.integers(0, 3 * wire.PIECE).map(lambda size: b"x" * size + b"\nend\n"),
).map(lambda data: data.replace(b"\r", b"").replace(b"A", b"B"))


@given(plain, st.lists(st.integers(0, 1 << 16), max_size=8))
def test_plain_bytes_come_out_as_they_went_in(data: bytes, cuts: list[int]) -> None:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    assert fold(*chunked(data, cuts)) == lines


BITS = [b"\n", b"\r", b"\r\n", b"\x1b[A", b"\x1b[2A", b"ab", b" ", b"x" * (wire.PIECE + 1), b"\xff"]
noisy = st.lists(st.sampled_from(BITS), max_size=30).map(b"".join)


@given(noisy, st.lists(st.integers(0, 1 << 18), max_size=8))
def test_any_bytes_any_chunks_are_survived_within_bounds(data: bytes, cuts: list[int]) -> None:
    reader = Reader()
    for chunk in chunked(data, cuts):
        reader.folder.feed(chunk)
        state = reader.folder.tick(quiet=True)
        assert state is None or len(state) <= wire.PIECE
        assert reader.folder._state() == b"" or len(reader.folder._rows) <= 34
    reader.folder.end()
    assert reader.longest <= wire.PIECE
    assert len(b"".join(reader.lines)) <= len(data)


@given(st.lists(st.sampled_from([b"one", b"two three", b"", b"\xe4"]), max_size=10), st.lists(st.integers(0, 99)))
def test_carriage_return_newline_is_a_newline(lines: list[bytes], cuts: list[int]) -> None:
    assert fold(*chunked(b"".join(line + b"\r\n" for line in lines), cuts)) == lines


@given(st.lists(st.integers(0, 100_000), max_size=20))
def test_a_thousand_updates_of_a_bar_are_one_line(cuts: list[int]) -> None:
    updates = b"".join(b"\r%3d%%|###" % (step // 10) for step in range(1001))
    assert fold(*chunked(b"before\n" + updates + b"\nafter\n", cuts)) == [b"before", b"100%|###", b"after"]


def test_the_state_of_a_bar_is_told_once_a_change() -> None:
    folder = Reader().folder
    folder.feed(b"\r 10%")
    assert folder.unsettled
    assert folder.tick(quiet=False) == b" 10%"
    assert folder.tick(quiet=False) is None
    assert not folder.unsettled
    folder.feed(b"\r 20%")
    assert folder.tick(quiet=False) == b" 20%"


def test_a_plain_line_s_beginning_is_told_when_it_is_quiet() -> None:
    reader = Reader()
    reader.folder.feed(b"loading ... ")
    assert reader.folder.tick(quiet=False) is None
    assert reader.folder.tick(quiet=True) == b"loading ... "
    reader.folder.feed(b"done\n")
    assert reader.lines == [b"loading ... done"]


class Chunks(io.StringIO):
    """What tqdm writes, in the pieces in which it does."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[bytes] = []

    def write(self, text: str) -> int:
        self.chunks.append(text.encode())
        return len(text)


def test_nested_bars_of_tqdm() -> None:
    file = Chunks()
    for epoch in tqdm(range(3), file=file, desc="epochs", mininterval=0, ascii=True):
        for _ in tqdm(range(50), file=file, desc=f"epoch {epoch}", mininterval=0, ascii=True, leave=False):
            pass
    print("done", file=file)
    lines = fold(*file.chunks)
    assert len(lines) == 2
    assert lines[0].startswith(b"epochs: 100%")
    assert lines[1] == b"done"


def test_nested_bars_that_stay_and_text_between() -> None:
    file = Chunks()
    for epoch in tqdm(range(2), file=file, desc="epochs", mininterval=0, ascii=True):
        for _ in tqdm(range(50), file=file, desc=f"epoch {epoch}", mininterval=0, ascii=True, position=1):
            pass
        tqdm.write(f"loss {epoch}", file=file)
    print("done", file=file)
    lines = fold(*file.chunks)
    assert [line for line in lines if line.startswith(b"loss")] == [b"loss 0", b"loss 1"]
    assert sum(line.startswith(b"epochs: 100%") for line in lines) == 1
    assert lines[-1] == b"done"
    assert len(lines) < 10


def test_a_bar_that_is_cleared_leaves_nothing() -> None:
    assert fold(b"\r50%", b"\r   \r", b"text\n") == [b"text"]
    assert fold(b"\r50%", b"\r   \r") == []


def test_a_bar_s_line_does_not_wait_for_ever() -> None:
    reader = Reader()
    reader.folder.feed(b"\r 50%\r100%\n")
    while reader.folder.unsettled:
        reader.folder.tick(quiet=True)
    assert reader.lines == [b"100%"]


def test_bars_one_after_the_other_come_out_as_they_end() -> None:
    reader = Reader()
    for bar in range(3):
        reader.folder.feed(b"\rbar %d  50%%" % bar)
        reader.folder.feed(b"\rbar %d 100%%" % bar)
        assert reader.lines == [b"bar %d 100%%" % done for done in range(bar)]
        reader.folder.feed(b"\n")
    reader.folder.tick(quiet=False)
    reader.folder.tick(quiet=False)
    assert reader.lines == [b"bar %d 100%%" % done for done in range(3)]
