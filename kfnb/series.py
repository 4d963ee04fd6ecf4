"""The scalars of a job, by series."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kfnb.events import Points

if TYPE_CHECKING:
    import numpy as np


class SeriesKey(NamedTuple):
    """Which curve: ``run`` is the event file's directory relative to the logdir, ``rank`` the writer."""

    run: str
    rank: int | None
    tag: str


def rank_order(key: SeriesKey) -> int:
    """Sorts series by rank; one whose writer is not known comes first."""
    return -1 if key.rank is None else key.rank


@dataclass(frozen=True, repr=False)
class Series:
    """One curve: ``step`` int64, ``wall_time`` float64 (Unix seconds) and ``value`` float64, all of shape (points,).

    Non-finite values are points. ``total`` is larger than the number of points where only a bounded picture of a part
    survived (a log that was rotated away).
    """

    key: SeriesKey
    step: np.ndarray[Any, Any]
    wall_time: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]
    total: int

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        last = f", last {self.value[-1]:g} at step {self.step[-1]}" if len(self) else ""
        return f"Series({self.key.tag!r}, run={self.key.run!r}, rank={self.key.rank}, {len(self)} points{last})"

    def to_pandas(self) -> Any:
        """A ``DataFrame`` with columns step, wall_time (UTC) and value.

        Raises ``ImportError`` where pandas is missing.
        """
        import pandas

        wall = pandas.to_datetime(self.wall_time, unit="s", utc=True)
        return pandas.DataFrame({"step": self.step, "wall_time": wall, "value": self.value})


class Extent(NamedTuple):
    """How far a curve is, for who has followed it: while ``version`` is the same, points were only added at the end."""

    version: int
    points: int
    total: int


class Columns(NamedTuple):
    """Points of a curve as they are kept."""

    steps: array[int]
    walls: array[float]
    values: array[float]


class _Curve:
    """Points in the order they were written; those of an attempt begin at ``_start`` and share its first source."""

    def __init__(self) -> None:
        self.steps, self.walls, self.values = array("q"), array("d"), array("d")
        self.version = 0
        self.attempt: int | None = None
        self.total = 0
        self._start = 0
        self._source: str | None = None
        self._seen: set[int] | None = None

    def extend(self, points: Points) -> None:
        """Append points of an attempt; a newer one first removes what it repeats: points from its first step on."""
        if not points.steps:
            return
        if self.attempt is not None and points.attempt < self.attempt:
            return  # a straggler of an attempt that has been replaced
        if points.attempt != self.attempt:
            self._truncate(points.steps[0])
            self.attempt, self._start, self._source, self._seen = points.attempt, len(self.steps), points.source, None
        if points.source == self._source and self._seen is None:
            self.steps.extend(points.steps)
            self.walls.extend(points.walls)
            self.values.extend(points.values)
        else:
            self._extend_from_two_sources(points)
        self.total = max(self.total, len(self.steps))

    def _extend_from_two_sources(self, points: Points) -> None:
        # the same points written both to the log and to event files are told by their step
        if self._seen is None:
            self._seen = set(self.steps[self._start :])
        for step, wall, value in zip(points.steps, points.walls, points.values, strict=True):
            if step not in self._seen:
                self._seen.add(step)
                self.steps.append(step)
                self.walls.append(wall)
                self.values.append(value)

    def _truncate(self, step: int) -> None:
        keep = next((index for index, have in enumerate(self.steps) if have >= step), len(self.steps))
        removed = len(self.steps) - keep
        if removed:
            self.version += 1
            self.total -= removed
        del self.steps[keep:], self.walls[keep:], self.values[keep:]

    def fill(self, points: Points) -> None:
        """Insert what is missing before the first known step: a keyframe stands in for points whose lines are gone."""
        self.total = max(self.total, points.total)
        if self.steps and (self.attempt is None or points.attempt < self.attempt):
            return
        first = self.steps[0] if self.steps else None
        cut = len(points.steps) if first is None else bisect_left(points.steps, first)
        if not cut:
            return
        if first is not None:
            self.version += 1
        self.steps = array("q", points.steps[:cut]) + self.steps
        self.walls = array("d", points.walls[:cut]) + self.walls
        self.values = array("d", points.values[:cut]) + self.values
        if first is None:
            self.attempt, self._source = points.attempt, points.source
        self._seen = None


class SeriesStore(Mapping[SeriesKey, Series]):
    """All curves of a job, fed by ``Points`` events in any number of batches.

    A restart or resume replaces the points at and after its first step. Indexing gives numpy arrays; ``find`` takes a
    tag.
    """

    def __init__(self) -> None:
        self._curves: dict[SeriesKey, _Curve] = {}
        #: How many series got another key: their writer's rank became known.
        self.renamed = 0

    def add(self, points: Points) -> None:
        key = SeriesKey(points.run, points.rank, points.tag)
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = self._earlier(key) or _Curve()
        if points.keyframe:
            curve.fill(points)
        else:
            curve.extend(points)

    def _earlier(self, key: SeriesKey) -> _Curve | None:
        # an earlier job's points lie in files whose writer's rank is no longer known: the first rank goes on with them
        nameless = key._replace(rank=None)
        curve = self._curves.get(nameless)
        if curve is None or curve.attempt is None or curve.attempt >= 0:
            return None
        self.renamed += 1
        return self._curves.pop(nameless)

    def __getitem__(self, key: SeriesKey) -> Series:
        import numpy as np

        curve = self._curves[key]
        return Series(
            key,
            np.array(curve.steps, dtype=np.int64),
            np.array(curve.walls, dtype=np.float64),
            np.array(curve.values, dtype=np.float64),
            curve.total,
        )

    def __iter__(self) -> Iterator[SeriesKey]:
        return iter(self._curves)

    def __len__(self) -> int:
        return len(self._curves)

    def last(self, key: SeriesKey) -> tuple[int, float]:
        """(step, value) of the newest point, without making arrays."""
        curve = self._curves[key]
        return curve.steps[-1], curve.values[-1]

    def find(self, tag: str, *, run: str | None = None, rank: int | None = None) -> Series:
        """The series with this tag; of those that several ranks write the lowest rank's, unless ``rank`` says another.

        Raises ``KeyError`` naming what there is where no series fits, or those of several runs do.
        """
        keys = [key for key in self if key.tag == tag and run in (None, key.run) and (rank is None or key.rank == rank)]
        if not keys:
            raise KeyError(f"no series {tag!r}; there are: {', '.join(sorted({key.tag for key in self})) or 'none'}")
        runs = sorted({key.run for key in keys})
        if len(runs) > 1:
            raise KeyError(f"{tag!r} is in several runs; choose one: " + ", ".join(f"run={name!r}" for name in runs))
        return self[min(keys, key=rank_order)]

    def __repr__(self) -> str:
        rows = [f"{key.tag} (run {key.run}, rank {key.rank}): {self.count(key)} points" for key in self]
        return "\n".join([f"SeriesStore of {len(self)} series", *rows[:50], *(["..."] if len(rows) > 50 else [])])

    def count(self, key: SeriesKey) -> int:
        """How many points the series has, without making arrays."""
        return len(self._curves[key].steps)

    def extent(self, key: SeriesKey) -> Extent:
        """How far the series is, without making arrays."""
        curve = self._curves[key]
        return Extent(curve.version, len(curve.steps), curve.total)

    def since(self, key: SeriesKey, start: int) -> Columns:
        """The points from the ``start``-th on."""
        curve = self._curves[key]
        return Columns(curve.steps[start:], curve.walls[start:], curve.values[start:])

    def to_pandas(self) -> Any:
        """A long ``DataFrame`` with columns run, rank, tag, step, wall_time and value."""
        import pandas

        frames = [self[key].to_pandas().assign(run=key.run, rank=key.rank, tag=key.tag) for key in self._curves]
        columns = ["run", "rank", "tag", "step", "wall_time", "value"]
        return pandas.concat(frames, ignore_index=True)[columns] if frames else pandas.DataFrame(columns=columns)
