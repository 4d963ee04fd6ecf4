"""From the bytes of one worker process's log to events, resumable at any line.

The log's content is untrusted: it is parsed defensively, bounded, and only ever becomes text and numbers.
"""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kfnb.events import (
    AttemptStarted,
    Checkpoint,
    Failure,
    Gap,
    JobEvent,
    LogLine,
    NodeStarted,
    Note,
    Points,
    Progress,
    RankState,
    Result,
    ResultPiece,
    Stacks,
)
from kfnb_worker import wire

#: Longest line that is kept whole, in bytes. The log itself keeps every byte.
LINE_LIMIT = 1 << 20

_LINE = re.compile(wire.LINE, re.DOTALL)
#: Where a record may hold half a character: an escape of a surrogate, or its bytes.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_new_line = partial(tuple.__new__, LogLine)  # what LogLine(...) comes to, in half the time
_STREAMS = {b":": "stdout", b"!": "stderr", b"~": "stdout"}


@dataclass
class _Pieces:
    """A long line whose end has not come yet; ``offset`` is where its first piece begins."""

    offset: int
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    cut: int = 0

    def add(self, part: bytes) -> None:
        room = LINE_LIMIT - self.size
        self.parts.append(part[:room])
        self.size += len(part[:room])
        self.cut += len(part[room:])


@dataclass(frozen=True)
class Position:
    """Where a decoder stands in a log: read again from ``offset``, emit from ``end`` (bytes) and ``sequence`` on.

    ``loose`` is how many lines without a number came after the last that has one, ``incarnation`` what the worker
    process calls itself in its first record ("": not seen).
    """

    offset: int = 0
    end: int = 0
    sequence: int = 0
    time: float = 0.0
    loose: int = 0
    incarnation: str = ""

    def to_json(self) -> list[Any]:
        return [self.offset, self.end, self.sequence, self.time, self.loose, self.incarnation]

    @classmethod
    def from_json(cls, value: list[Any]) -> Position:
        offset, end, sequence, seconds, *more = value
        loose, incarnation = more or (0, "")  # a cursor of an earlier version has neither
        return cls(int(offset), int(end), int(sequence), float(seconds), int(loose), str(incarnation))


class StreamDecoder:
    """Decodes the log of the ``restart``-th worker process of ``node``.

    Feed it the log's bytes from ``position.offset`` on, in chunks of any size; ``position`` afterwards is where another
    decoder goes on with each event once. ``first_line`` is the line of the cell that main.py's first line is.

    Where offsets mean nothing (a log that is rotated, and read over the network), take ``resumed``: it is fed from
    anywhere at or before where the other one stood.
    """

    def __init__(self, node: int, restart: int = 0, position: Position | None = None, *, first_line: int = 1) -> None:
        self.node, self.restart = node, restart
        start = position or Position()
        self._first_line = first_line
        self._offset = start.offset  # of the next line to parse
        self._skip_end, self._skip_sequence = start.end, start.sequence
        self._sequence = start.sequence  # the next one expected
        self._time = self._skip_time = start.time
        self._loose, self._skip_loose = start.loose, 0
        self._incarnation = start.incarnation
        self._by_number = False
        #: Whether what is fed is the log of another process, which has taken this one's place; it is not decoded.
        self.foreign = False
        #: Whether the process has said its last.
        self.ended = False
        self._caught_up = True  # whether lines without a number are new
        self._tail = b""
        self._pieces: dict[tuple[bytes, bytes], _Pieces] = {}
        self._attempt = 0
        self._records: dict[str, Callable[[dict[str, Any]], list[JobEvent]]] = {
            "hello": self._hello,
            "attempt": self._attempted,
            "rank": self._rank,
            "s": self._scalars,
            "progress": self._progress,
            "failure": self._failure,
            "checkpoint": self._checkpoint,
            "result": self._result,
            "file": self._file,
            "note": self._note,
            "stacks": self._stacks,
            "k": self._keyframe,
            "lost": self._lost,
            "end": self._end,
        }

    def resumed(self) -> StreamDecoder:
        """One that goes on after the last line of this one by the lines' numbers alone."""
        position = self.position
        after = replace(position, offset=0, end=0)
        decoder = StreamDecoder(self.node, self.restart, after, first_line=self._first_line)
        decoder._by_number, decoder._skip_loose, decoder.ended = True, position.loose, self.ended
        decoder._caught_up = position.sequence == 0
        return decoder

    @property
    def position(self) -> Position:
        offset = min((pieces.offset for pieces in self._pieces.values()), default=self._offset)
        end = max(self._offset, self._skip_end)
        sequence = max(self._sequence, self._skip_sequence)
        seconds = self._time if self._caught_up else self._skip_time
        return Position(offset, end, sequence, seconds, self._loose, self._incarnation)

    def feed(self, data: bytes) -> list[JobEvent]:
        """Events of the whole lines in ``data`` and what was left of the chunk before."""
        events: list[JobEvent] = []
        lines = (self._tail + (b"" if self.foreign else data)).split(b"\n")
        self._tail = lines.pop()
        match_line, append, pieces = _LINE.fullmatch, events.append, self._pieces
        node, restart, skip = self.node, self.restart, self._skip_sequence
        offset, expected, seconds = self._offset, self._sequence, self._time
        for line in lines:
            start = offset
            offset += len(line) + 1
            match = match_line(line)
            if match is None:
                if line and start >= self._skip_end and self._caught_up:
                    if self._skip_loose:
                        self._skip_loose -= 1
                    else:
                        self._loose += 1
                        append(self._line(b"n", b"!", -1, line))
                continue
            who, separator, digits, more, payload = match.groups()
            sequence = int(digits)
            if not self._caught_up:
                self._caught_up = sequence >= skip - 1
            if self._loose and sequence >= skip:
                self._loose = self._skip_loose = 0
            if sequence == expected:
                expected += 1
            elif sequence > expected:
                if b'"e":"lost"' not in payload[:12]:
                    append(Gap(node, sequence - expected, "they are missing in the log", seconds))
                expected = sequence + 1
            if more or pieces:
                payload = self._joined((who, separator), start, more, payload)
                if payload is None:
                    continue
            if who == b"kfnb":
                decoded = self._record(payload)
                if self.foreign:
                    return events
                seconds = self._time
                if sequence >= skip:
                    events += decoded
            elif sequence >= skip:
                if separator == b":" and who != b"n":  # the hot path: most lines of most jobs
                    text = payload.decode("utf-8", "replace")
                    append(_new_line((node, int(who), sequence, text, seconds, "stdout", False, restart)))
                else:
                    append(self._line(who, separator, sequence, payload))
        self._offset, self._sequence = offset, expected
        return events

    def _joined(self, key: tuple[bytes, bytes], start: int, more: bytes, payload: bytes) -> bytes | None:
        """The payload of a line, with the pieces that came before; None while the rest is to come."""
        if not more and key not in self._pieces:
            return payload
        pieces = self._pieces.setdefault(key, _Pieces(start))
        pieces.add(payload)
        if more:
            return None
        del self._pieces[key]
        whole = b"".join(pieces.parts)
        return whole + b" ... (%d more bytes are in the log)" % pieces.cut if pieces.cut else whole

    def _line(self, who: bytes, separator: bytes, sequence: int, payload: bytes) -> LogLine:
        return LogLine(
            self.node,
            None if who == b"n" else int(who),
            sequence,
            payload.decode("utf-8", "replace"),
            self._time,
            _STREAMS[separator] if separator != b"!" else "stderr",
            separator == wire.TRANSIENT,
            self.restart,
        )

    def _record(self, payload: bytes) -> list[JobEvent]:
        try:
            record = json.loads(payload)
            if _HALF.search(payload):
                record = _whole(record)
            self._time = _time(record.get("t", self._time))
            make = self._records.get(record["e"])
            return make(record) if make else []
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return [Gap(self.node, 1, "a record of the worker cannot be read", self._time or time.time())]

    def _hello(self, record: dict[str, Any]) -> list[JobEvent]:
        incarnation = str(record.get("incarnation", ""))
        if self._by_number and self._incarnation not in ("", incarnation):
            self.foreign = True
            return []
        self._incarnation = incarnation
        self._attempt = int(record["a"])
        started = NodeStarted(
            self.node,
            self.restart,
            int(record["nodes"]),
            int(record["procs"]),
            str(record["python"]),
            str(record["host"]),
            str(record["bundle"]),
            self._time,
            self._attempt,
        )
        return [started]

    def _attempted(self, record: dict[str, Any]) -> list[JobEvent]:
        return [AttemptStarted(self.node, int(record["a"]), str(record["why"]), self._time)]

    def _rank(self, record: dict[str, Any]) -> list[JobEvent]:
        state = RankState(
            self.node,
            int(record["r"]),
            str(record["state"]),
            _int(record.get("pid")),
            _int(record.get("code")),
            self._time,
            int(record["a"]),
        )
        return [state]

    def _scalars(self, record: dict[str, Any]) -> list[JobEvent]:
        rank, run, attempt = _int(record["r"]), str(record["d"]), int(record["a"])
        source = "file" if record.get("src") == "file" else "log"
        return [
            Points(run, rank, tag, attempt, *_columns(columns), source=source) for tag, columns in record["p"].items()
        ]

    def _keyframe(self, record: dict[str, Any]) -> list[JobEvent]:
        return [
            Points(
                str(series["d"]),
                _int(series["r"]),
                str(series["tag"]),
                int(series["a"]),
                *_columns(series["p"]),
                source="file" if series.get("src") == "file" else "log",
                keyframe=True,
                total=int(series["total"]),
            )
            for series in record["series"]
        ]

    def _progress(self, record: dict[str, Any]) -> list[JobEvent]:
        done, total = float(record["done"]), record.get("total")
        total = None if total is None else float(total)
        if not math.isfinite(done) or not math.isfinite(total or 0.0):
            raise ValueError("progress is not finite")
        progress = Progress(
            _int(record["r"]),
            done,
            total,
            str(record.get("unit", "")),
            self._time,
            int(record["a"]),
            _seconds(record.get("step")),
            _seconds(record.get("wait")),
        )
        return [progress]

    def _failure(self, record: dict[str, Any]) -> list[JobEvent]:
        return [failure_from_record(record, first_line=self._first_line)]

    def _checkpoint(self, record: dict[str, Any]) -> list[JobEvent]:
        return [Checkpoint(int(record["step"]), str(record["path"]), int(record["a"]), self._time)]

    def _result(self, record: dict[str, Any]) -> list[JobEvent]:
        errors = {str(name): str(why) for name, why in record.get("errors", {}).items()}
        return [Result(tuple(map(str, record["names"])), errors, int(record["bytes"]), self._time)]

    def _file(self, record: dict[str, Any]) -> list[JobEvent]:
        data = base64.b64decode(record["data"], validate=True)
        return [ResultPiece(str(record["name"]), int(record["i"]), int(record["n"]), data)]

    def _note(self, record: dict[str, Any]) -> list[JobEvent]:
        return [Note(str(record["text"]), str(record.get("level", "info")), self._time, self.node)]

    def _stacks(self, record: dict[str, Any]) -> list[JobEvent]:
        return [Stacks(int(record["r"]), str(record["request"]), str(record["text"]), self._time)]

    def _end(self, record: dict[str, Any]) -> list[JobEvent]:
        self.ended = True
        return []

    def _lost(self, record: dict[str, Any]) -> list[JobEvent]:
        return [Gap(self.node, int(record["count"]), str(record["why"]), self._time)]


def failure_from_record(record: dict[str, Any], *, first_line: int = 1) -> Failure:
    """A ``Failure`` from a worker's failure record or termination file.

    Raises ``ValueError``, ``KeyError``, ``TypeError``.
    """
    return Failure(
        _int(record.get("node")),
        _int(record.get("r")),
        int(record.get("a", 0)),
        str(record["kind"]),
        _whole(str(record.get("type", ""))),
        _whole(str(record.get("message", ""))),
        _whole(str(record.get("traceback", ""))),
        _int(record.get("line")),
        float(record.get("t", 0.0)),
        first_line,
    )


def _whole(value: Any) -> Any:
    """The value with lone halves of a character replaced, which no UTF-8 can hold and Python's JSON lets through."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _time(value: Any) -> float:
    """A time in Unix seconds that calendars know."""
    seconds = float(value)
    if not 0 <= seconds < 1e11:
        raise ValueError("this is no time")
    return seconds


def _seconds(value: Any) -> float | None:
    """A duration; None for anything else."""
    return float(value) if type(value) in (int, float) and 0 <= value < 1e12 else None


def _columns(columns: list[list[Any]]) -> tuple[list[int], list[float], list[float]]:
    steps, walls, values = columns
    if not len(steps) == len(walls) == len(values):
        raise ValueError("columns of a series differ in length")
    if set(map(type, steps)) != {int}:
        steps = list(map(int, steps))
    if steps and not -(1 << 63) <= min(steps) <= max(steps) < 1 << 63:
        raise ValueError("a step does not fit into 64 bits")
    return steps, list(map(float, walls)), wire.unpack_floats(values)
