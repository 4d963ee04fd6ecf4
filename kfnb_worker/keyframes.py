"""A bounded picture of all series, repeated in the log now and then, so that curves survive a log that is rotated."""

from __future__ import annotations

import math
from array import array
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from kfnb_worker import wire

POINTS = 200  # of a series, at most
PICTURE_POINTS = 40_000  # of all series together, about 2 MB of log
SERIES = 1_000
ROOM = 15_000  # bytes of a record
BUCKETS = 64  # even; with the open one, of three points each, and the first and last point these are 197 points

_Key = Tuple[Optional[int], str, str, str]


class _Point(NamedTuple):
    number: int  # in the order in which they came
    step: int
    wall: float
    value: float


class _Buckets:
    """Consecutive points in buckets, of each of which only the extremes are kept."""

    __slots__ = ("counts", "ends", "steps", "values", "walls")

    def __init__(self) -> None:
        self.steps, self.walls, self.values = array("q"), array("d"), array("d")
        self.ends = array("H")  # index after each bucket's last kept point
        self.counts = array("q")  # points that each bucket stands for

    def append(self, points: Sequence[_Point], count: int) -> None:
        for point in points:
            self.steps.append(point.step)
            self.walls.append(point.wall)
            self.values.append(point.value)
        self.ends.append(len(self.steps))
        self.counts.append(count)

    def halved(self) -> _Buckets:
        """Pairs of buckets made one."""
        half = _Buckets()
        start = 0
        for pair in range(0, len(self.ends), 2):
            counts = self.counts[pair : pair + 2]
            end = self.ends[pair + len(counts) - 1]
            points = [_Point(i, self.steps[i], self.walls[i], self.values[i]) for i in range(start, end)]
            extremes = _Extremes()
            for point in points:
                extremes.add(point)
            kept = extremes.points()
            if start == 0 and points[0] not in kept:
                kept.insert(0, points[0])
            half.append(kept, sum(counts))
            start = end
        return half

    def cut(self, step: int) -> None:
        """Removes the first point at or after ``step``, and all that follow."""
        keep = next((index for index, have in enumerate(self.steps) if have >= step), len(self.steps))
        del self.steps[keep:], self.walls[keep:], self.values[keep:]
        whole = sum(1 for end in self.ends if end <= keep)
        start = self.ends[whole - 1] if whole else 0
        if start < keep:  # a part of a bucket stays, and as large a part of its count
            self.counts[whole] = max(self.counts[whole] * (keep - start) // (self.ends[whole] - start), keep - start)
            self.ends[whole] = keep
            whole += 1
        del self.ends[whole:], self.counts[whole:]


class _Extremes:
    """The lowest, the highest and the first non-finite point of a bucket."""

    __slots__ = ("highest", "lowest", "odd")

    def __init__(self) -> None:
        self.lowest: Optional[_Point] = None
        self.highest: Optional[_Point] = None
        self.odd: Optional[_Point] = None

    def add(self, point: _Point) -> None:
        value = point.value
        if self.lowest is None or self.highest is None:
            if math.isfinite(value):
                self.lowest = self.highest = point
            elif self.odd is None:
                self.odd = point
        elif value < self.lowest.value and value != -math.inf:
            self.lowest = point
        elif value > self.highest.value and value != math.inf:
            self.highest = point
        elif self.odd is None and not math.isfinite(value):
            self.odd = point

    def points(self) -> List[_Point]:
        """In the order in which they came."""
        found = {point.number: point for point in (self.lowest, self.highest, self.odd) if point}
        return [found[number] for number in sorted(found)]


class _Curve:
    """A series, thinned evenly however long it grows: the more points, the more of them a bucket stands for.

    First and last point, lowest and highest, and the first non-finite one are always among those kept.
    """

    __slots__ = ("attempt", "closed", "filled", "last", "open", "stride")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.closed = _Buckets()
        self.open = _Extremes()
        self.stride = 1  # points of a full bucket; 1 for the first one, so that the first point is kept
        self.filled = 0  # points in the open one
        self.last: Optional[_Point] = None  # the last point in the open one

    @property
    def total(self) -> int:
        return sum(self.closed.counts) + self.filled

    def add(self, steps: Sequence[int], walls: Sequence[float], values: Sequence[float]) -> None:
        for step, wall, value in zip(steps, walls, values):
            if self.filled >= self.stride:
                self._close(self.open.points())
            self.filled += 1
            self.last = _Point(self.filled, step, wall, value)
            self.open.add(self.last)

    def _close(self, points: List[_Point]) -> None:
        self.closed.append(points, self.filled)
        self.open, self.filled, self.last = _Extremes(), 0, None
        if len(self.closed.ends) >= BUCKETS:
            self.closed = self.closed.halved()
            self.stride *= 2

    def _opened(self) -> List[_Point]:
        """The points of the open bucket that are worth keeping, the last one among them."""
        points = self.open.points()
        return [*points, self.last] if self.last and self.last not in points else points

    def restart(self, attempt: int, step: int) -> None:
        """A newer attempt begins at ``step``: it replaces the points from there on."""
        self.attempt = attempt
        self._close(self._opened())
        self.closed.cut(step)
        if not self.closed.steps:
            self.stride = 1

    def picture(self, limit: int) -> Tuple[List[int], List[float], List[float]]:
        """At most ``limit`` points (but nine are always allowed) as columns."""
        buckets, rest = self.closed, self._opened()
        while len(buckets.steps) + len(rest) > limit and len(buckets.ends) > 1:
            buckets = buckets.halved()
        steps, walls, values = buckets.steps.tolist(), buckets.walls.tolist(), buckets.values.tolist()
        steps.extend(point.step for point in rest)
        walls.extend(point.wall for point in rest)
        values.extend(point.value for point in rest)
        return steps, walls, values


class Picture:
    """What all series look like, in bounded memory: at most 1,000 series of at most 200 points.

    Attributes:
        left_out: points of further series, which are in no picture.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._curves: Dict[_Key, _Curve] = {}

    def add(self, record: Dict[str, Any]) -> None:
        """Takes the points of an `s` record. Raises ``ValueError`` where a value is no number."""
        attempt = record["a"]
        for tag, (steps, walls, values) in record["p"].items():
            if not steps:
                continue
            key = (record["r"], record["d"], record["src"], tag)
            curve = self._curves.get(key)
            if curve is None:
                if len(self._curves) >= SERIES:
                    self.left_out += len(steps)
                    continue
                curve = self._curves[key] = _Curve(attempt)
            elif attempt < curve.attempt:
                continue  # a straggler of an attempt that has been replaced
            elif attempt > curve.attempt:
                curve.restart(attempt, steps[0])
            curve.add(steps, wire.unpack_floats(walls), wire.unpack_floats(values))

    def records(self) -> List[Dict[str, Any]]:
        """The picture as `k` records of less than 15 KiB each; the first and last point, the lowest and highest and the
        first non-finite one of a series are in it."""
        parts: List[List[Dict[str, Any]]] = []
        limit = min(POINTS, PICTURE_POINTS // max(len(self._curves), 1))
        room = 0
        for key, curve in self._curves.items():
            entry, size = self._entry(key, curve, limit)
            if size > room:
                parts.append([])
                room = ROOM - 60  # for what is around the series
            parts[-1].append(entry)
            room -= size + 1
        records: List[Dict[str, Any]] = []
        for index, series in enumerate(parts):
            records.append({"e": "k", "i": index, "n": len(parts), "series": series})
        return records

    def _entry(self, key: _Key, curve: _Curve, limit: int) -> Tuple[Dict[str, Any], int]:
        rank, directory, source, tag = key
        entry: Dict[str, Any] = {"r": rank, "d": directory, "src": source, "a": curve.attempt, "tag": tag}
        entry["total"] = curve.total
        while True:
            steps, walls, values = curve.picture(limit)
            entry["p"] = [steps, wire.pack_floats(walls), wire.pack_floats(values)]
            size = len(wire.dump(entry))
            if size <= ROOM - 60 or limit <= 9:
                return entry, size
            limit = limit * 3 // 4
