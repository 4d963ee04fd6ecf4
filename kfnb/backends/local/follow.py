"""A job's events out of its run directory: its phases and every node's log, by polling, resumable at any batch."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from kfnb.backends.local import lost, rundir, stored
from kfnb.backends.local.rundir import RunDir
from kfnb.decode import Position, StreamDecoder, failure_from_record
from kfnb.errors import NotFound
from kfnb.events import Batch, Cursor, Failure, JobEvent, Phase, PhaseChanged

#: Bytes of log that one batch is made from.
CHUNK = 256 * 1024

#: Seconds between looks: while something comes, and the most it grows to while nothing does.
_ACTIVE, _IDLE = 0.1, 0.5

#: Seconds between looks whether the job's supervisor still lives.
_LIVENESS = 1.0


async def follow(
    run: RunDir, cursor: Cursor | None, *, to_end: bool, chunk: int = CHUNK
) -> AsyncGenerator[Batch, None]:
    """The batches after ``cursor``; with ``to_end`` until the job has ended, else up to what there is now.

    A batch is made from about ``chunk`` bytes of log. Raises ``NotFound`` when the job is deleted meanwhile, and
    ``BackendError`` where its record cannot be read.
    """
    record = await asyncio.to_thread(stored.record, run)
    reader = _Reader(run, cursor or {}, record.first_line)
    present = await asyncio.to_thread(lost.present_phase, run)
    looked, pause = time.monotonic(), _ACTIVE
    while True:
        if not os.path.exists(run.record):
            raise NotFound(f"{run.id} was deleted.")
        # In this order: once the end is written down, nothing writes to the logs any more.
        events, end = reader.phases()
        if end is None and not reader.at_end and present["phase"] in rundir.TERMINAL:
            end = [changed(present)]  # which could not be written down
        logs = reader.logs()
        idle = not events
        size = 0
        if events:
            yield Batch(events, reader.cursor(), reader.read())
        events = []
        while logs:
            for log in list(logs):  # a chunk of each in turn, so that a replay mixes the nodes as they were
                content = log.read(chunk)
                if not content:
                    logs.remove(log)
                    continue
                idle = False
                events += log.decoder.feed(content)
                size += len(content)
                if size >= chunk:
                    yield Batch(events, reader.cursor(), reader.read())
                    events, size = [], 0
                    await asyncio.sleep(0)  # others on this loop get their turn
        if end is not None:
            for log in reader.logs():
                events += log.finish()
            yield Batch(events + end, reader.ended())
            return
        if events:
            yield Batch(events, reader.cursor())
        if not to_end or reader.at_end:
            return
        if time.monotonic() - looked > _LIVENESS:
            present = await asyncio.to_thread(lost.present_phase, run)
            looked = time.monotonic()
        pause = min(pause * 1.5, _IDLE) if idle else _ACTIVE
        await asyncio.sleep(pause)


class _Log:
    """The log of one worker process, read from a position on."""

    def __init__(self, path: Path, decoder: StreamDecoder) -> None:
        self._path = path
        self._offset = decoder.position.offset
        self._torn = False
        #: Bytes that there were at the last look.
        self.size = 0
        self.decoder = decoder

    @property
    def left(self) -> int:
        """Bytes of these that are still to be read."""
        return max(self.size - self._offset, 0)

    def look(self) -> None:
        try:
            self.size = self._path.stat().st_size
        except OSError:
            self.size = self._offset

    def read(self, most: int) -> bytes:
        """The next bytes, at most so many; empty where there are none now."""
        self.look()
        if not self.left:
            return b""
        try:
            with open(self._path, "rb", buffering=0) as file:
                file.seek(self._offset)
                content = file.read(most)
        except OSError:
            self.size = self._offset  # nothing of it can be read
            return b""
        self._offset += len(content)
        self._torn = not content.endswith(b"\n")
        return content

    def finish(self) -> list[JobEvent]:
        """What a line holds that the worker was killed in the middle of."""
        if not self._torn:
            return []
        self._torn = False
        return self.decoder.feed(b"\n")


class _Reader:
    """Where a client stands in a run directory."""

    def __init__(self, run: RunDir, cursor: Cursor, first_line: int) -> None:
        self._run = run
        self._phases = int(cursor.get("phases", 0))
        self._positions: dict[str, Any] = dict(cursor.get("logs", {}))
        self._logs: dict[str, _Log] = {}
        self._first_line = first_line
        self._end_offset = self._phases
        self._size = -1
        #: Whether the cursor was already behind the job's end.
        self.at_end = False

    def phases(self) -> tuple[list[JobEvent], list[JobEvent] | None]:
        """(new phases that are not the last, the events of the job's end once that is written down)."""
        try:
            size = self._run.phases.stat().st_size
        except OSError:
            return [], None
        if size == self._size:
            return [], None
        self._size = size
        events: list[JobEvent] = []
        for entry, offset in rundir.read_phases(self._run):
            terminal = entry["phase"] in rundir.TERMINAL
            if offset <= self._phases:
                self.at_end = self.at_end or terminal
                continue
            if terminal:
                self._end_offset = offset
                return events, ending(entry, self._first_line)
            self._phases = offset
            events.append(changed(entry))
        return events, None

    def logs(self) -> list[_Log]:
        for node, restart, path in self._run.logs():
            key = f"{node}/{restart}"
            if key not in self._logs:
                given = self._positions.get(key)
                position = Position.from_json(given) if given else None
                log = _Log(path, StreamDecoder(node, restart, position, first_line=self._first_line))
                log.look()
                self._logs[key] = log
        return list(self._logs.values())

    def read(self) -> float:
        """How much of the logs has been read."""
        size = sum(log.size for log in self._logs.values())
        return 1.0 - sum(log.left for log in self._logs.values()) / size if size else 1.0

    def cursor(self) -> Cursor:
        for key, log in self._logs.items():
            self._positions[key] = log.decoder.position.to_json()
        return {"phases": self._phases, "logs": dict(self._positions)}

    def ended(self) -> Cursor:
        self._phases = self._end_offset
        return self.cursor()


def changed(entry: dict[str, Any], failure: Failure | None = None) -> PhaseChanged:
    """A phase as ``rundir.read_phases`` gives it, as an event."""
    return PhaseChanged(Phase(entry["phase"]), entry["reason"], entry["t"], entry["a"], failure)


def ending(entry: dict[str, Any], first_line: int) -> list[JobEvent]:
    """The terminal phase, after the failure behind it where that is in no log."""
    told: dict[str, Any] = entry.get("failure") or {}
    try:
        failure = failure_from_record(told, first_line=first_line)
    except (ValueError, KeyError, TypeError, OverflowError):  # none, or none that can be read
        return [changed(entry)]
    event = changed(entry, failure)
    return [failure, event] if told.get("source") == "supervisor" else [event]
