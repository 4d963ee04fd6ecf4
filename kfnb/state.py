"""What a view shows of a job: a pure fold of its events, bounded in memory however long the job runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from kfnb.events import (
    AttemptStarted,
    Batch,
    Checkpoint,
    Cursor,
    Failure,
    Gap,
    JobEvent,
    LogLine,
    NodeStarted,
    Note,
    Phase,
    PhaseChanged,
    Points,
    Progress,
    RankState,
    Result,
)
from kfnb.failures import Failures
from kfnb.series import SeriesKey, SeriesStore

#: Lines kept from the beginning and from the end; those between are counted.
HEAD_LINES, TAIL_LINES = 200, 2_000

#: Characters kept of a line; the log itself has all of them.
LINE_LIMIT = 2_000

#: Notes kept, and samples of a rank's progress that its rate is taken from.
NOTES, SAMPLES = 50, 32

#: A rank stands out that takes this many times as long as the fastest one.
UNEVEN = 1.2


@dataclass
class Rank:
    """A rank as it was last heard of. ``state`` is "starting", "running" or "exited"."""

    node: int
    state: str
    pid: int | None = None
    code: int | None = None


@dataclass(frozen=True)
class NonFinite:
    """The first point of a series that is no finite number."""

    key: SeriesKey
    step: int
    value: float


@dataclass
class _Pace:
    """A rank's progress, and the samples that say how fast it is."""

    latest: Progress
    samples: deque[Progress] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def add(self, progress: Progress) -> None:
        before = self.latest
        if (progress.attempt, progress.total, progress.unit) != (before.attempt, before.total, before.unit) or (
            progress.done < before.done
        ):
            self.samples.clear()
        self.latest = progress
        self.samples.append(progress)

    @property
    def fraction(self) -> float:
        total = self.latest.total
        return min(self.latest.done / total, 1.0) if total else 0.0

    @property
    def gained(self) -> float:
        """Units done between the first and the last sample."""
        return self.samples[-1].done - self.samples[0].done

    @property
    def span(self) -> float:
        """Seconds between them."""
        return self.samples[-1].time - self.samples[0].time

    def silent(self, now: float) -> float | None:
        """For how many seconds nothing was heard, where that is unusual."""
        since = max(now - self.samples[-1].time, 0.0)
        usual = 3 * self.span / (len(self.samples) - 1) if len(self.samples) > 1 else math.inf
        return since if since > max(usual, 30.0) else None

    def seconds(self) -> tuple[float, float | None] | None:
        """(seconds that a unit takes, those of them that it waits for data); None where that cannot be known."""
        if self.latest.step is None:
            return (self.span / self.gained, None) if self.gained > 0 and self.span > 0 else None
        before = self.samples[0].done  # how many units the first sample stands for is not known: it hardly counts
        weights = steps = waits = 0.0
        for sample in self.samples:
            weight = max(sample.done - before, 1e-9)
            before = sample.done
            if sample.step is not None:
                weights, steps = weights + weight, steps + weight * sample.step
                waits += weight * (sample.wait or 0.0)
        if not math.isfinite(steps + waits):
            return None
        return steps / weights, None if self.latest.wait is None else waits / weights


@dataclass(frozen=True)
class Overall:
    """The job's progress: that of its slowest rank, since ranks wait for each other.

    Seconds: ``eta`` is None where it cannot be known; ``silent`` is how long nothing was heard, where that is unusual.
    """

    done: float
    total: float | None
    unit: str
    eta: float | None
    silent: float | None = None


@dataclass(frozen=True)
class Pace:
    """``step`` is the seconds that a unit takes, ``wait`` the share of them (0 to 1) spent waiting for data, if told.

    Both are those of the rank that holds up the others: the slowest one, or where all take as long since they wait for
    each other, the one that waits longest for its data. ``rank`` names it where it stands out.
    """

    step: float
    wait: float | None = None
    rank: int | None = None


class JobState:
    """Feed it batches with ``fold``; everything else is to be read. Times in Unix seconds."""

    def __init__(self) -> None:
        self.phase, self.reason, self.phase_time = Phase.SUBMITTING, "", 0.0
        self.started: float | None = None
        self.ended: float | None = None
        self.attempt = 0
        self.restarts: list[AttemptStarted] = []
        self.nodes = self.procs = 0
        self.ranks: dict[int, Rank] = {}
        self.series = SeriesStore()
        self.points = 0
        self.non_finites: dict[SeriesKey, NonFinite] = {}
        self.head: list[LogLine] = []
        self.tail: deque[LogLine] = deque(maxlen=TAIL_LINES)
        self.lines = 0
        self.last_lines: dict[int, LogLine] = {}
        self.transient: dict[int, LogLine] = {}
        self.gaps: dict[tuple[int, str], int] = {}
        self.notes: deque[Note] = deque(maxlen=NOTES)
        self._failures = Failures()
        self.checkpoint: Checkpoint | None = None
        self.result: Result | None = None
        self.cursor: Cursor | None = None
        self._paces: dict[int | None, _Pace] = {}
        self._fold: dict[type, Callable[[Any], None]] = {
            PhaseChanged: self._phase,
            Points: self._points,
            Progress: self._progress,
            RankState: self._rank,
            AttemptStarted: self._attempted,
            Failure: self._failed,
            Checkpoint: self._checkpointed,
            Result: self._finished,
            Note: self._noted,
            Gap: self._gap,
            NodeStarted: self._node,
        }

    @property
    def failure(self) -> Failure | None:
        """The failure that counts (see ``kfnb.failures.Failures``)."""
        return self._failures.first

    @property
    def non_finite(self) -> NonFinite | None:
        """The first point of all that is no finite number."""
        return next(iter(self.non_finites.values()), None)

    @property
    def omitted(self) -> int:
        """Lines between ``head`` and ``tail`` that are no longer here."""
        return self.lines - len(self.head) - len(self.tail)

    def fold(self, batch: Batch) -> None:
        self.add(batch.events)
        self.cursor = batch.cursor

    def add(self, events: Iterable[JobEvent]) -> None:
        head, tail, last, transient = self.head, self.tail, self.last_lines, self.transient
        for event in events:
            if type(event) is LogLine:  # by far the most frequent
                rank = event.rank if event.rank is not None else -1 - event.node
                if len(event.text) > LINE_LIMIT:
                    event = cut(event)
                if event.transient:
                    transient[rank] = event
                    continue
                if transient:
                    transient.pop(rank, None)
                last[rank] = event
                self.lines += 1
                if len(head) < HEAD_LINES:
                    head.append(event)
                else:
                    tail.append(event)
                continue
            fold = self._fold.get(type(event))
            if fold is not None:
                fold(event)

    def elapsed(self, now: float) -> float | None:
        """Seconds from the first Running to the end, or until ``now``; None before the start."""
        if self.started is None:
            return None
        return max((self.ended if self.ended is not None else now) - self.started, 0.0)

    def progress(self, now: float) -> Overall | None:
        """The progress of the newest attempt, with what is left by the pace of the last samples."""
        slowest = self._slowest()
        if slowest is None:
            return None
        latest = slowest.latest
        overall = Overall(latest.done, latest.total, latest.unit, None)
        if self.ended is not None:
            return overall
        silent = slowest.silent(now)
        if silent is not None or latest.total is None or slowest.span <= 0 or slowest.gained <= 0:
            return replace(overall, silent=silent)
        left = (latest.total - latest.done) * slowest.span / slowest.gained
        return replace(overall, eta=max(left - max(now - latest.time, 0.0), 0.0) if math.isfinite(left) else None)

    def pace(self, now: float) -> Pace | None:
        """How long a unit of ``progress`` takes, by the last samples of the newest attempt; None while it is silent."""
        slowest = self._slowest()
        if slowest is None or (self.ended is None and slowest.silent(now) is not None):
            return None
        found: dict[int | None, tuple[float, float | None]] = {}
        for rank, pace in self._paces.items():
            seconds = pace.seconds()
            if seconds and (pace.latest.attempt, pace.latest.unit) == (self.attempt, slowest.latest.unit):
                found[rank] = seconds
        if not found:
            return None
        steps = {rank: step for rank, (step, _) in found.items()}
        shares = {rank: min(wait / step, 1.0) for rank, (step, wait) in found.items() if wait is not None and step > 0}
        rank = max(steps, key=lambda rank: steps[rank])
        stands_out = steps[rank] > UNEVEN * min(steps.values())
        if not stands_out and shares:
            rank = max(shares, key=lambda rank: shares[rank])
            stands_out = len(shares) > 1 and shares[rank] - min(shares.values()) > UNEVEN - 1
        return Pace(steps[rank], shares.get(rank), rank if stands_out else None)

    def _slowest(self) -> _Pace | None:
        paces = [pace for pace in self._paces.values() if pace.latest.attempt == self.attempt]
        return min(
            paces, key=lambda pace: (pace.latest.total is not None, pace.fraction, pace.latest.done), default=None
        )

    def rank_progress(self) -> dict[int | None, Progress]:
        return {rank: pace.latest for rank, pace in self._paces.items()}

    # -- one event each ----------------------------------------------------------------------------------------

    def _phase(self, event: PhaseChanged) -> None:
        self.phase, self.reason, self.phase_time = event.phase, event.reason, event.time
        self._failures.add(event)
        self.attempt = max(self.attempt, event.attempt)
        if event.phase is Phase.RUNNING and self.started is None:
            self.started = event.time
        self.ended = event.time if event.phase.terminal else None
        if event.phase.terminal:
            self.transient.clear()

    def _points(self, event: Points) -> None:
        self.series.add(event)
        if not event.keyframe:
            self.points += len(event.values)
        if not math.isfinite(sum(event.values)):
            key = SeriesKey(event.run, event.rank, event.tag)
            if key not in self.non_finites:
                for step, value in zip(event.steps, event.values, strict=True):
                    if not math.isfinite(value):
                        self.non_finites[key] = NonFinite(key, step, value)
                        break

    def _progress(self, event: Progress) -> None:
        self._paces.setdefault(event.rank, _Pace(event)).add(event)
        self.attempt = max(self.attempt, event.attempt)

    def _rank(self, event: RankState) -> None:
        self.ranks[event.rank] = Rank(event.node, event.state, event.pid, event.code)
        self.attempt = max(self.attempt, event.attempt)

    def _attempted(self, event: AttemptStarted) -> None:
        # every node says so, once is enough
        if not self.restarts or event.attempt > self.restarts[-1].attempt:
            self.restarts = [*self.restarts[-NOTES:], event]
        self.attempt = max(self.attempt, event.attempt)

    def _failed(self, event: Failure) -> None:
        self._failures.add(event)

    def _checkpointed(self, event: Checkpoint) -> None:
        self.checkpoint = event

    def _finished(self, event: Result) -> None:
        self.result = event

    def _noted(self, event: Note) -> None:
        self.notes.append(event)

    def _gap(self, event: Gap) -> None:
        key = (event.node, event.why[:LINE_LIMIT])
        self.gaps[key] = self.gaps.get(key, 0) + event.count

    def _node(self, event: NodeStarted) -> None:
        self.nodes, self.procs = event.nodes, event.procs


def cut(line: LogLine) -> LogLine:
    """The line with at most ``LINE_LIMIT`` characters, and how many are not there."""
    if len(line.text) <= LINE_LIMIT:
        return line
    more = len(line.text) - LINE_LIMIT
    return line._replace(text=f"{line.text[:LINE_LIMIT]} ... ({more:,} more characters are in the log)")
