"""What a subscriber has been told of a job, so that it is told the rest and nothing twice."""

from __future__ import annotations

from array import array
from typing import Any

from kfnb.series import Columns, Extent, SeriesKey
from kfnb.views.feed.curves import thin
from kfnb.views.feed.source import TEXT, News, Source

#: Points of a series that are told at once, those of all series in a batch and in a snapshot, and the fewest of each.
POINTS, BATCH_POINTS, SNAPSHOT_POINTS, FEWEST = 4_000, 100_000, 400_000, 50

#: Seconds between two heads and two looks at the ranks' last lines, where nothing but lines and points came.
HEAD, RANKS = 0.5, 1.0

#: A message's parts and its buffers.
Parts = tuple[dict[str, Any], list[bytes]]


class Told:
    """``whole`` begins anew; ``rest`` is what is to be told after it. To be called with the feed's lock."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lines = 0
        self._curves: dict[SeriesKey, Extent] = {}
        self._changed: dict[SeriesKey, None] = {}  # in the order in which they began
        self._renamed = 0
        self._ranks: dict[int, dict[str, Any]] = {}
        self._going: list[dict[str, Any]] = []
        self._pending = False
        self._head_stale = self._ranks_stale = False
        self._head_time = self._ranks_time = -1e9

    def add(self, news: News) -> None:
        """Something happened."""
        self._changed.update(news.curves)
        self._pending = self._head_stale = self._ranks_stale = True
        if news.others:
            self._head_time = self._ranks_time = -1e9

    @property
    def outdated(self) -> bool:
        """Whether only ``whole`` can say how it is."""
        return self._renamed != self._source.state.series.renamed

    @property
    def complete(self) -> bool:
        """Whether every curve has been told as far as it goes: a large gain takes more than one message."""
        return not self._changed

    def due(self, now: float) -> float | None:
        """The seconds until there is something to tell; None where there is nothing. ``now``: ``time.monotonic()``."""
        if self._pending:
            return 0.0
        waits = [self._head_time + HEAD - now] if self._head_stale else []
        waits += [self._ranks_time + RANKS - now] if self._ranks_stale else []
        return max(min(waits), 0.0) if waits else None

    def whole(self, now: float, clock: float) -> Parts:
        """Everything, as far as one message goes. ``clock``: Unix seconds."""
        source = self._source
        self._curves, self._changed = {}, dict.fromkeys(source.state.series)
        self._renamed = source.state.series.renamed
        most = min(max(SNAPSHOT_POINTS // max(len(self._changed), 1), FEWEST), POINTS)
        self._ranks, self._going = source.ranks(), source.going()
        self._pending = self._head_stale = self._ranks_stale = False
        self._head_time = self._ranks_time = now
        parts = {"head": source.head(clock), "ranks": list(self._ranks.values()), "going": self._going}
        self._lines = 0
        log, buffers = self._log()
        series, columns = self._series(most, most * len(self._changed) + 1)
        return {**parts, "log": log, "series": series}, buffers + columns

    def rest(self, now: float, clock: float, *, head: bool = False) -> Parts:
        """What has changed; the ``head`` in any case where it is asked for."""
        source = self._source
        parts: dict[str, Any] = {}
        buffers: list[bytes] = []
        if head or (self._head_stale and now >= self._head_time + HEAD):
            self._head_stale, self._head_time = False, now
            parts["head"] = source.head(clock)
        if self._ranks_stale and now >= self._ranks_time + RANKS:
            self._ranks_stale, self._ranks_time = False, now
            ranks = source.ranks()
            changed = [told for number, told in ranks.items() if told != self._ranks.get(number)]
            self._ranks = ranks
            if changed:
                parts["ranks"] = changed
        going = source.going()
        if going != self._going:
            self._going = parts["going"] = going
        if source.log.total > self._lines:
            parts["log"], buffers = self._log()
        if self._changed:
            series, columns = self._series(POINTS, BATCH_POINTS)
            if series:
                parts["series"] = series
                buffers = buffers + columns
        self._pending = bool(self._changed)
        return parts, buffers

    def _log(self) -> Parts:
        log = self._source.log
        newest = log.newest(self._lines)
        self._lines = log.total
        return {"total": log.total, "first": log.total - newest.count, "count": newest.count}, newest.buffers

    def _series(self, most: int, room: int) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The changed series, with at most ``most`` points each; what does not find ``room`` is told next time."""
        series = self._source.state.series
        entries = []
        steps, walls, values = array("d"), array("d"), array("d")
        for key in list(self._changed):
            if room <= 0:
                break
            del self._changed[key]
            if key not in series:
                continue
            extent, before = series.extent(key), self._curves.get(key)
            add = before is not None and before.version == extent.version
            if add and before == extent:
                continue
            columns = series.since(key, before.points if add and before is not None else 0)
            count = len(columns.values)
            if count > most:
                columns = _thinned(columns, most)
            self._curves[key] = extent
            room -= len(columns.values)
            steps.extend(columns.steps.tolist())
            walls.extend(columns.walls)
            values.extend(columns.values)
            entries.append(
                {
                    "sid": self._source.sid(key),
                    "run": key.run[:TEXT],
                    "rank": key.rank,
                    "tag": key.tag[:TEXT],
                    "mode": "add" if add else "set",
                    "count": len(columns.values),
                    "total": extent.total,
                    "thinned": len(columns.values) < count,
                }
            )
        return entries, [steps.tobytes(), walls.tobytes(), values.tobytes()]


def _thinned(columns: Columns, points: int) -> Columns:
    import numpy as np

    places = thin(np.array(columns.values), points)
    steps, walls, values = (np.array(column)[places] for column in columns)
    return Columns(array("q", steps.tobytes()), array("d", walls.tobytes()), array("d", values.tobytes()))
