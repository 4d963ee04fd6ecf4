"""The newest part of a job whose logs are long: what a view shows at once, while it reads the whole."""

from __future__ import annotations

import heapq
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from kfnb.backends.local import rundir, stored
from kfnb.backends.local.follow import changed, ending
from kfnb.backends.local.rundir import RunDir
from kfnb.decode import Position, StreamDecoder
from kfnb.events import Gap, JobEvent, Points, Progress

#: Bytes of all logs together up to which a job is best read as a whole.
SHORT = 8 << 20

#: Bytes of log whose lines are decoded, shared out over the nodes, and the least that a node gets.
SHARE, LEAST = 4 << 20, 64 << 10

#: Bytes of one log, and of all of them, in which its last whole keyframe is looked for. A worker writes one every 4 MiB
#: and what it reads at once, of up to 2 MiB itself.
LOOK, LOOK_ALL = 16 << 20, 64 << 20

#: Bytes of a log's beginning, where its worker says what it is.
BEGINNING = 64 << 10

#: Bytes decoded at a time; what several nodes said is put in order by these.
CHUNK = 64 << 10

_RECORD = b'] {"e":"'
_KEYFRAME = b'] {"e":"k","i":%d,"n":'
_CLOCK = b'] {"e":"clock",'
_HEAD = re.compile(rb"\[kfnb:(\d{1,18})\+?\Z")
_COUNT = re.compile(rb"\d{1,6}")
_SEQUENCE = re.compile(rb"\[[^\]\s]{1,12}?[:!~](\d{1,18})\+?\]")
_WHOLE = re.compile(rb"(?:\[kfnb:\d+\+\] [^\n]*\n)*\[kfnb:\d+\] [^\n]*\n")


def recent(run: RunDir) -> list[JobEvent]:
    """The phases, and of each node's newest log its last lines and every series' whole extent; nothing of short logs.

    What is left out is no gap. Raises ``NotFound``, and ``BackendError`` where the job's record cannot be read.
    """
    first_line = stored.record(run).first_line
    logs = [(node, restart, path, _size(path)) for node, restart, path in run.logs()]
    if sum(size for *_, size in logs) <= SHORT:
        return []
    events: list[JobEvent] = []
    end: list[JobEvent] = []
    for entry, _ in rundir.read_phases(run):
        if entry["phase"] in rundir.TERMINAL:
            end = ending(entry, first_line)
            break
        events.append(changed(entry))
    newest = {log[0]: log for log in logs}
    share = max(SHARE // len(newest), LEAST)
    look = max(min(LOOK, LOOK_ALL // len(newest)), share)
    parts = [
        _Tail(path, size, share, look).events(node, restart, first_line, ended=bool(end))
        for node, restart, path, size in newest.values()
        if size
    ]
    for _, some in heapq.merge(*parts, key=lambda part: part[0]):
        events += some
    return events + end


def _size(path: Path) -> int:
    """0 for what is no file: whoever opens a pipe waits."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


class _Tail:
    """The end of a log of ``size`` bytes, at least ``share`` of it; and its beginning."""

    def __init__(self, path: Path, size: int, share: int, look: int) -> None:
        self._whole = size <= share
        try:
            with open(path, "rb", buffering=0) as file:
                self._beginning = file.read(min(BEGINNING, max(size - share, 0)))
                file.seek(max(size - look, 0))
                self._content = file.read(LOOK)
        except OSError:
            self._beginning = self._content = b""
        #: Where the lines that are shown begin.
        self._lines = 0 if self._whole else _line_after(self._content, max(len(self._content) - share, 0))

    def events(
        self, node: int, restart: int, first_line: int, *, ended: bool
    ) -> Iterator[tuple[float, list[JobEvent]]]:
        """The events in parts, each with the time that the log's clock showed after it."""
        seconds, sequence = 0.0, 0
        if not self._whole:
            first = StreamDecoder(node, restart, first_line=first_line)
            said = first.feed(_records(self._beginning))
            # of the others the newest are wanted, and the series' beginnings are in the keyframe
            yield seconds, [event for event in said if not isinstance(event, (Points, Progress, Gap))]
            before = StreamDecoder(node, restart, Position(time=first.position.time), first_line=first_line)
            drawn = before.feed(self._skipped())
            seconds = before.position.time
            yield seconds, [event for event in drawn if not isinstance(event, Gap)]
            shown = _SEQUENCE.match(self._content, self._lines)
            sequence = int(shown[1]) if shown else before.position.sequence
        decoder = StreamDecoder(node, restart, Position(0, 0, sequence, seconds), first_line=first_line)
        for start in range(self._lines, len(self._content), CHUNK):
            some = decoder.feed(self._content[start : start + CHUNK])
            yield decoder.position.time, some
        if ended and not self._content.endswith(b"\n"):  # the worker was killed in the middle of a line
            yield decoder.position.time, decoder.feed(b"\n")

    def _skipped(self) -> bytes:
        """Records from before the lines that are shown: a clock, and all from the last whole keyframe on."""
        start = _last_keyframe(self._content)
        if start is None or start > self._lines:
            start = self._lines
        clock = max(self._content.rfind(_CLOCK, 0, start), 0)
        line = self._content[self._content.rfind(b"\n", 0, clock) + 1 : self._content.find(b"\n", clock) + 1]
        return _records(line + self._content[start : self._lines])


def _line_after(content: bytes, start: int) -> int:
    """Where the first line after ``start`` begins that is not the rest of a record."""
    while (start := content.find(b"\n", start) + 1) > 0:
        if not content.startswith(b"[kfnb:", start) or content.startswith(_RECORD, content.find(b"]", start)):
            return start
    return len(content)


def _last_keyframe(content: bytes) -> int | None:
    """Where the last keyframe begins that is there with all of its records."""
    end, first = len(content), _KEYFRAME % 0
    while (found := content.rfind(first, 0, end)) >= 0:
        end = found
        start = content.rfind(b"\n", 0, found) + 1
        count = _COUNT.match(content, found + len(first))
        if count is None or not _HEAD.match(content, start, found):
            continue  # somebody printed the like of it
        last = content.find(_KEYFRAME % (int(count[0]) - 1) + count[0], found)
        if last >= 0 and _WHOLE.match(content, content.rfind(b"\n", 0, last) + 1):
            return start
    return None


def _records(content: bytes) -> bytes:
    """The lines of it that are the worker's records."""
    return b"".join(line for line in content.splitlines(keepends=True) if line.startswith(b"[kfnb:"))
