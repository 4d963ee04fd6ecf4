"""What the ranks say over their channel and what they write as event files, as records of the log."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from kfnb_worker import wire
from kfnb_worker.keyframes import Picture
from kfnb_worker.loop import Loop, Timer
from kfnb_worker.relay import Output
from kfnb_worker.tailer import LogdirTailer, printable

MERGE_SECONDS = 0.1
MERGE_POINTS = 500
TAIL_SECONDS = 0.5
FINAL_SECONDS = 60.0  # for the event files that are left when all ranks have ended
KEYFRAME_BYTES = 4 << 20
STEP_LIMIT = 1 << 63
TEXT_LIMIT = 16 * 1024

Columns = Tuple[List[int], List[float], List[float]]


class Telemetry:
    """Scalars, progress, checkpoints, results and notes of this node's ranks, checked and bounded, into the output."""

    def __init__(
        self,
        loop: Loop,
        output: Output,
        logdir: str,
        rank_of_pid: Callable[[int], Optional[int]],
        attempt: int,
        leftovers: bool,
    ) -> None:
        self._loop, self._output, self._attempt = loop, output, attempt
        self._tailer = LogdirTailer(logdir, rank_of_pid, lambda: self._attempt, leftovers)
        self._picture = Picture()
        self._pictured = 0  # bytes of output at the last keyframe
        self._changed = False
        self._points: Dict[int, Dict[str, Columns]] = {}
        self._count = 0
        self._timer: Optional[Timer] = None
        self._progress: Dict[int, Dict[str, Any]] = {}  # by rank: told at the next turn
        self._takes = {
            "s": self._scalars,
            "progress": self._progressed,
            "checkpoint": self._checkpoint,
            "result": self._result,
            "note": self._note,
        }
        self._polls()

    def begin_attempt(self, attempt: int) -> None:
        """To be called before the ranks of a new attempt are started."""
        self._tell()
        self._poll(final=False)
        self._attempt = attempt

    def take(self, message: Dict[str, Any]) -> bool:
        """A message of a rank; whether it was one for here. Raises for one that is not well-formed."""
        take = self._takes.get(message["e"])
        if take is not None:
            take(message)
        return take is not None

    def _scalars(self, message: Dict[str, Any]) -> None:
        series = self._points.setdefault(int(message["r"]), {})
        for tag, columns in message["p"].items():
            steps, walls = list(map(int, columns[0])), list(map(float, columns[1]))
            values = wire.unpack_floats(columns[2])
            if not len(steps) == len(walls) == len(values) or not all(map(math.isfinite, walls)):
                raise ValueError("these are no points")
            if steps and not -STEP_LIMIT < min(steps) <= max(steps) < STEP_LIMIT:
                raise ValueError("a step is a whole number of at most 63 bits")
            column = series.setdefault(printable(tag), ([], [], []))
            column[0].extend(steps)
            column[1].extend(walls)
            column[2].extend(values)
            self._count += len(steps)
        if self._count >= MERGE_POINTS:
            self._tell()
        else:
            self._soon()

    def _progressed(self, message: Dict[str, Any]) -> None:
        rank, done, total = int(message["r"]), float(message["done"]), message.get("total")
        total = None if total is None else float(total)
        if not math.isfinite(done) or not math.isfinite(total or 0.0):
            raise ValueError("progress is not finite")
        unit = str(message.get("unit", ""))[:40]
        state: Dict[str, Any] = {"done": done, "total": total, "unit": unit, "t": float(message["t"])}
        for name in ("step", "wait"):
            if name in message:
                state[name] = float(message[name])
                if not math.isfinite(state[name]):
                    raise ValueError("a duration is not finite")
        self._progress[rank] = state
        self._soon()

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.after(MERGE_SECONDS, self._tell)

    def _tell(self) -> None:
        """What came together since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        points, self._points, self._count = self._points, {}, 0
        for rank, series in points.items():
            packed = {tag: [steps, walls, wire.pack_floats(values)] for tag, (steps, walls, values) in series.items()}
            self._record({"e": "s", "a": self._attempt, "r": rank, "d": ".", "src": "log", "p": packed})
        progress, self._progress = self._progress, {}
        for rank, state in progress.items():
            self._output.record({"e": "progress", "r": rank, "a": self._attempt, **state})

    def _record(self, record: Dict[str, Any]) -> None:
        self._output.record(record)
        self._picture.add(record)
        self._changed = True

    def _checkpoint(self, message: Dict[str, Any]) -> None:
        self._tell()
        step, path = int(message["step"]), str(message["path"])
        self._output.record({"e": "checkpoint", "a": self._attempt, "step": step, "path": path, "t": time.time()})

    def _result(self, message: Dict[str, Any]) -> None:
        names = [str(name) for name in message["names"]]
        errors = {str(name): str(why)[:TEXT_LIMIT] for name, why in message["errors"].items()}
        size = int(message["bytes"])
        self._output.record({"e": "result", "names": names, "errors": errors, "bytes": size, "t": time.time()})

    def _note(self, message: Dict[str, Any]) -> None:
        level = "warning" if message.get("level") == "warning" else "info"
        self.note(str(message["text"])[:TEXT_LIMIT], level)

    def note(self, text: str, level: str = "info") -> None:
        self._output.record({"e": "note", "level": level, "text": text, "t": time.time()})

    def _polls(self) -> None:
        self._poll(final=False)
        self._loop.after(0.0 if self._tailer.more else TAIL_SECONDS, self._polls)

    def _poll(self, final: bool) -> None:
        """New points in event files; a keyframe where enough was written since the last."""
        for record in self._tailer.poll(final):
            self._record(record)
        for text in self._tailer.take_notes():
            self.note(text, "warning")
        if self._output.written - self._pictured >= KEYFRAME_BYTES:
            self._keyframe()

    def _keyframe(self) -> None:
        self._pictured = self._output.written
        if self._changed:
            for record in self._picture.records():
                self._output.record(record)

    def finish(self) -> None:
        """All that is left, once the ranks are gone, and the last picture."""
        self._tell()
        deadline = time.monotonic() + FINAL_SECONDS
        self._poll(final=True)
        while self._tailer.more and time.monotonic() < deadline:
            self._poll(final=True)
        if self._tailer.more:
            self.note("event files below %s were not read to their end" % self._tailer.logdir, "warning")
        self._keyframe()
