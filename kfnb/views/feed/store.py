"""A job's log as views page through it and search it: the newest lines in memory, all others in a file."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfnb.events import LogLine
from kfnb.views.feed.spill import Spill
from kfnb.views.words import ESCAPES

if TYPE_CHECKING:
    import numpy as np

#: Flags of a line: from stderr, cut, a sentence about lines that are missing here, another sentence of our own.
STDERR, CUT, GAP, NOTE = 1, 2, 4, 8

#: Characters of a line that are sent unless the whole is asked for, and those of a whole one.
SHOWN, WHOLE = 2_000, 1 << 20

#: Lines and bytes of text that a message has at most, and that are in memory at least.
NEWEST, NEWEST_BYTES = 1_000, 256 << 10

#: Lines that one search finds at most: the newest.
MATCHES = 200_000

#: Lines or bytes of text from which on a block is written to the file.
_BLOCK, _BLOCK_BYTES = 512, 256 << 10

_FLAGS = {"stdout": 0, "stderr": STDERR, "gap": GAP, "note": NOTE}

# the bytes of what ``ESCAPES`` removes, but for those between U+0080 and U+009F, which begin with 0xC2
_CONTROLS = bytes(code for code in range(0x20) if code not in b"\t\n") + b"\x7f"


@dataclass(frozen=True)
class Lines:
    """Lines in the form in which they travel: UTF-8 joined by newlines, int32 ranks, float64 times, uint8 flags.

    A line of node N itself has rank -1 - N.
    """

    count: int
    text: bytes
    ranks: bytes
    times: bytes
    flags: bytes

    @property
    def buffers(self) -> list[bytes]:
        return [self.text, self.ranks, self.times, self.flags]

    def texts(self) -> list[bytes]:
        return self.text.split(b"\n") if self.count else []

    def pick(self, places: Sequence[int]) -> Lines:
        """Those lines of it."""
        texts, flags = self.texts(), self.flags
        ranks, times = memoryview(self.ranks).cast("i"), memoryview(self.times).cast("d")
        return Lines(
            len(places),
            b"\n".join([texts[place] for place in places]),
            array("i", [ranks[place] for place in places]).tobytes(),
            array("d", [times[place] for place in places]).tobytes(),
            bytes([flags[place] for place in places]),
        )

    def limited(self, limit: int) -> Lines:
        """With at most so many characters a line, and the flag CUT where that leaves something out."""
        if not any(flag & CUT for flag in self.flags):
            return self
        texts, flags = self.texts(), bytearray(self.flags)
        for place, flag in enumerate(flags):
            if flag & CUT:
                text = texts[place].decode()
                texts[place] = text[:limit].encode()
                flags[place] = flag if len(text) > limit else flag & ~CUT
        return Lines(self.count, b"\n".join(texts), self.ranks, self.times, bytes(flags))


NO_LINES = Lines(0, b"", b"", b"", b"")


def joined(parts: Sequence[Lines]) -> Lines:
    if len(parts) == 1:
        return parts[0]
    parts = [part for part in parts if part.count]
    return Lines(
        sum(part.count for part in parts),
        b"\n".join([part.text for part in parts]),
        b"".join([part.ranks for part in parts]),
        b"".join([part.times for part in parts]),
        b"".join([part.flags for part in parts]),
    )


@dataclass(frozen=True)
class Matches:
    """Ascending indices (uint32) of the lines that match; ``truncated`` where older ones do too.

    ``upto`` is how many lines there were.
    """

    indices: np.ndarray[Any, Any]
    truncated: bool
    upto: int


class LogStore:
    """Append lines; they get the indices 0, 1, 2, ... A few bytes of memory stand for a block of hundreds of them.

    ``view()`` is what other threads read, while lines are appended.
    """

    def __init__(self, spill: Spill | None = None) -> None:
        self.total = 0
        self._spill = spill or Spill()
        self._recent: deque[tuple[Lines, Lines]] = deque()  # (whole, as shown)
        self._recent_lines = self._recent_bytes = 0
        self._blocks = _Blocks()

    def append(self, lines: Sequence[LogLine]) -> None:
        """``stream`` may also be "gap" or "note", for a sentence in place."""
        if not lines:
            return
        columns: Any = zip(*lines, strict=True)
        nodes, ranks, _, texts, times, streams, _, _ = columns
        if None in ranks:
            ranks = [-1 - node if rank is None else rank for node, rank in zip(nodes, ranks, strict=True)]
        text = "\n".join(texts)
        if text.count("\n") != len(texts) - 1:
            texts = [text.replace("\n", " ") for text in texts]
            text = "\n".join(texts)
        plain = streams.count("stdout") == len(streams)
        flags = bytes(len(streams)) if plain else bytes(map(_FLAGS.__getitem__, streams))
        long = max(map(len, texts)) > SHOWN
        if long:
            flags = bytes(flag | CUT if len(text) > SHOWN else flag for flag, text in zip(flags, texts, strict=True))
        whole = Lines(
            len(lines), text.encode("utf-8", "replace"), array("i", ranks).tobytes(), array("d", times).tobytes(), flags
        )
        self._recent.append((whole, whole.limited(SHOWN) if long else whole))
        self.total += len(lines)
        self._recent_lines += len(lines)
        self._recent_bytes += len(whole.text)
        self._spill_the_oldest()

    def newest(self, since: int) -> Lines:
        """The last lines as they are shown, those from the index ``since`` on, and no more than a message has."""
        found: list[Lines] = []
        missing, room = min(self.total - since, NEWEST), NEWEST_BYTES
        for _, shown in reversed(self._recent):
            if missing <= 0:
                break
            if shown.count > missing or len(shown.text) > room:
                shown = _end_of(shown, missing, room)
                missing = 0
            if shown.count:
                found.append(shown)
            # the pieces are joined by newlines
            missing, room = missing - shown.count, room - len(shown.text) - 1
        return joined(found[::-1]) if found else NO_LINES

    def view(self) -> LogView:
        recent = [whole for whole, _ in self._recent]
        return LogView(self._spill, self._blocks, len(self._blocks), recent, self.total)

    def close(self) -> None:
        """The file is gone, and with it all lines but the last."""
        self._spill.close()

    def _spill_the_oldest(self) -> None:
        while self._recent_lines >= NEWEST + _BLOCK or self._recent_bytes >= NEWEST_BYTES + _BLOCK_BYTES:
            lines = size = pieces = 0
            for whole, _ in self._recent:
                lines, size, pieces = lines + whole.count, size + len(whole.text), pieces + 1
                if lines >= _BLOCK or size >= _BLOCK_BYTES:
                    break
            if self._recent_lines - lines < NEWEST and self._recent_bytes - size < NEWEST_BYTES:
                return  # all of it in a few large pieces
            block = joined([self._recent.popleft()[0] for _ in range(pieces)])
            self._recent_lines -= lines
            self._recent_bytes -= size
            try:
                offset = self._spill.add(b"".join(block.buffers))
            except OSError as problem:
                self._blocks.lost(block.count, problem.strerror or str(problem))
            else:
                self._blocks.add(block.count, offset, len(block.text))


class _Blocks:
    """Where the blocks of lines lie in the file."""

    def __init__(self) -> None:
        self.ends = array("Q")  # the index after each block's last line
        self.offsets = array("q")  # -1 where it could not be kept
        self.sizes = array("Q")
        self.why = ""

    def __len__(self) -> int:
        return len(self.sizes)

    def add(self, count: int, offset: int, size: int) -> None:
        self.ends.append(self.first(len(self.ends)) + count)
        self.offsets.append(offset)
        self.sizes.append(size)  # last: whoever reads meanwhile counts by it

    def lost(self, count: int, why: str) -> None:
        self.why = why
        self.add(count, -1, 0)

    def first(self, block: int) -> int:
        return self.ends[block - 1] if block else 0


@dataclass(frozen=True)
class LogView:
    """The log as it was at a time, for any thread."""

    _spill: Spill
    _blocks: _Blocks
    _count: int
    _recent: list[Lines]
    total: int

    def range(self, first: int, count: int) -> Lines:
        """As they are shown; fewer where there are not so many."""
        first = min(first, self.total)
        return self.pick(range(first, min(first + count, self.total)))

    def pick(self, indices: Sequence[int], *, limit: int = SHOWN) -> Lines:
        """The lines with these indices, which ascend; ``limit``: characters of each."""
        found: list[Lines] = []
        position = 0
        for first, end, load in self._parts(indices[0] if indices else self.total):
            if position == len(indices):
                break
            places = []
            while position < len(indices) and indices[position] < end:
                places.append(indices[position] - first)
                position += 1
            if places:
                lines = load()
                found.append((lines if len(places) == lines.count else lines.pick(places)).limited(limit))
        return joined(found) if found else NO_LINES

    def scan(self, text: str, ranks: Sequence[int] | None, since: int) -> Matches:
        """The lines from the index ``since`` on that hold ``text``, in any case and without escape codes, of ``ranks``.

        At most ``MATCHES``, the newest. It takes its time: seconds for a log of some GB.
        """
        import numpy as np

        needle = text.casefold()
        found: list[np.ndarray[Any, Any]] = []
        count = 0
        for first, _, load in reversed(list(self._parts(since))):
            places = _matching(load(), needle, ranks)
            indices = places[places >= since - first] + first
            found.append(indices)
            count += len(indices)
            if count > MATCHES or (count == MATCHES and first <= since):
                break
        all_of_them = np.concatenate(found[::-1]) if found else np.empty(0)
        return Matches(all_of_them[-MATCHES:].astype(np.uint32), count > MATCHES, self.total)

    def _parts(self, since: int) -> Iterator[tuple[int, int, Callable[[], Lines]]]:
        """(first index, the one after the last, how to get the lines) from the line ``since`` on, in order."""
        blocks = self._blocks
        for block in range(bisect_right(blocks.ends, since, hi=self._count), self._count):
            yield blocks.first(block), blocks.ends[block], lambda block=block: self._block(block)  # type: ignore[misc]
        first = blocks.first(self._count)
        for lines in self._recent:
            if first + lines.count > since:
                yield first, first + lines.count, lambda lines=lines: lines  # type: ignore[misc]
            first += lines.count

    def _block(self, block: int) -> Lines:
        count = self._blocks.ends[block] - self._blocks.first(block)
        offset, size = self._blocks.offsets[block], self._blocks.sizes[block]
        why = self._blocks.why
        if offset >= 0:
            try:
                content = self._spill.read(offset, size + 13 * count)
            except OSError as problem:
                why = problem.strerror or str(problem)
            else:
                ranks, times, flags = size, size + 4 * count, size + 12 * count
                return Lines(count, content[:size], content[ranks:times], content[times:flags], content[flags:])
        sentence = f"(This line could not be kept by the view: {why}. It is in the job's log.)".encode()
        ranks_of_node_0 = array("i", [-1] * count).tobytes()
        return Lines(count, b"\n".join([sentence] * count), ranks_of_node_0, bytes(8 * count), bytes([GAP]) * count)


def _end_of(lines: Lines, count: int, room: int) -> Lines:
    """The last ``count`` of the lines, and at most ``room`` bytes of text."""
    texts = lines.texts()[-count:]
    kept = 0
    for text in reversed(texts):
        room -= len(text) + 1
        if room < 0:
            break
        kept += 1
    return lines.pick(range(lines.count - kept, lines.count))


def _matching(lines: Lines, needle: str, ranks: Sequence[int] | None) -> np.ndarray[Any, Any]:
    """Where in ``lines`` those are that match, in order."""
    import numpy as np

    if ranks is None:
        places = np.arange(lines.count)
    else:
        places = np.flatnonzero(np.isin(np.frombuffer(lines.ranks, np.int32), np.array(ranks, np.int32)))
    if not needle or not len(places):
        return places
    text = lines.text.decode()
    if b"\xc2" in lines.text or len(lines.text.translate(None, _CONTROLS)) < len(lines.text):
        texts = [ESCAPES.sub("", line).casefold() for line in text.split("\n")]
    else:
        text = text.casefold()
        if needle not in text:
            return places[:0]
        texts = text.split("\n")
    return np.array([place for place in places.tolist() if needle in texts[place]], places.dtype)
