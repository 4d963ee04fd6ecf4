"""What is told of a job: its folded state and its log, and the parts of a message that are made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kfnb.events import JobEvent, LogLine, Points, Progress
from kfnb.failures import cell_traceback, explain
from kfnb.series import SeriesKey
from kfnb.state import JobState
from kfnb.views.feed.place import Placer
from kfnb.views.feed.store import LogStore

#: Characters of a rank's last line, of any other text, and of a traceback.
LAST_LINE, TEXT, TRACEBACK = 300, 2_000, 64 << 10

#: Kinds of gaps that are named.
GAPS = 100


@dataclass(frozen=True)
class Facts:
    """What does not change about a job."""

    id: str
    name: str
    backend: str
    first_line: int | None = None
    notebook: str | None = None


@dataclass
class Source:
    """Add the stream's events; ``read`` is how much of the job's log has been read (None: all that there is)."""

    facts: Facts
    state: JobState = field(default_factory=JobState)
    log: LogStore = field(default_factory=LogStore)
    read: float | None = None
    placer: Placer = field(default_factory=Placer)
    _sids: dict[SeriesKey, int] = field(default_factory=dict)

    def add(self, events: Sequence[JobEvent]) -> News:
        self.state.add(events)
        self.log.append(self.placer.lines(events))
        news = News()
        for event in [event for event in events if type(event) is not LogLine]:
            if isinstance(event, Points):
                news.curves[SeriesKey(event.run, event.rank, event.tag)] = None
            elif not isinstance(event, Progress):
                news.others = True
        return news

    def all_read(self) -> None:
        """From now on the events are those that happen."""
        self.read = None
        self.placer.reading = False
        self.log.append(self.placer.release())

    def sid(self, key: SeriesKey) -> str:
        return str(self._sids.setdefault(key, len(self._sids)))

    def series(self, sid: str) -> SeriesKey | None:
        """The series that was told with this id."""
        key = next((key for key, number in self._sids.items() if str(number) == sid), None)
        return key if key in self.state.series else None

    def head(self, now: float) -> dict[str, Any]:
        state, facts = self.state, self.facts
        progress, pace = state.progress(now), state.pace(now)
        return {
            "id": facts.id,
            "name": facts.name,
            "backend": facts.backend,
            "phase": str(state.phase),
            "reason": state.reason[:TEXT],
            "phase_time": state.phase_time,
            "started": state.started,
            "ended": state.ended,
            "now": now,
            "attempt": state.attempt,
            "nodes": state.nodes,
            "procs": state.procs,
            "lines": state.lines,
            "points": state.points,
            "reading": self.read,
            "first_line": facts.first_line,
            "notebook": facts.notebook,
            "progress": None if progress is None else {**vars(progress), "unit": progress.unit[:TEXT]},
            "pace": None if pace is None else vars(pace),
            "restarts": [{"attempt": e.attempt, "why": e.why[:TEXT], "time": e.time} for e in state.restarts],
            "checkpoint": self._checkpoint(),
            "non_finite": self._non_finite(),
            "failure": self._failure(),
            "gaps": [
                {"node": node, "count": count, "why": why} for (node, why), count in list(state.gaps.items())[:GAPS]
            ],
            "notes": [{"level": note.level, "text": note.text[:TEXT], "time": note.time} for note in state.notes],
            "result": self._result(),
        }

    def ranks(self) -> dict[int, dict[str, Any]]:
        last, done = self.state.last_lines, self._done()
        return {
            number: {
                "rank": number,
                "node": rank.node,
                "state": rank.state,
                "pid": rank.pid,
                "code": rank.code,
                "line": last[number].text[:LAST_LINE] if number in last else None,
                "done": done.get(number),
            }
            for number, rank in self.state.ranks.items()
        }

    def going(self) -> list[dict[str, Any]]:
        return [{"rank": rank, "text": line.text} for rank, line in sorted(self.state.transient.items())]

    def _done(self) -> dict[int | None, float | None]:
        return {
            rank: min(max(told.done / told.total, 0.0), 1.0) if told.total else None
            for rank, told in self.state.rank_progress().items()
            if told.attempt == self.state.attempt
        }

    def _checkpoint(self) -> dict[str, Any] | None:
        made = self.state.checkpoint
        return None if made is None else {"step": made.step, "path": made.path[:TEXT], "time": made.time}

    def _non_finite(self) -> dict[str, Any] | None:
        point = self.state.non_finite
        if point is None:
            return None
        key = point.key
        return {
            "run": key.run[:TEXT],
            "tag": key.tag[:TEXT],
            "rank": key.rank,
            "step": point.step,
            "value": str(float(point.value)),
        }

    def _failure(self) -> dict[str, Any] | None:
        failure = self.state.failure
        if failure is None:
            return None
        line = failure.line
        return {
            "text": explain(failure)[:TEXT],
            "node": failure.node,
            "rank": failure.rank,
            "kind": failure.kind[:TEXT],
            "traceback": cell_traceback(failure)[-TRACEBACK:],
            "line": line,
            "cell_line": None if line is None else line + failure.first_line - 1,
        }

    def _result(self) -> dict[str, Any] | None:
        result = self.state.result
        if result is None:
            return None
        errors = [why[:TEXT] for why in result.errors.values()]
        return {"names": [name[:TEXT] for name in result.names], "bytes": result.bytes, "errors": errors}


@dataclass
class News:
    """What some events changed: ``curves``, in order, and whether something else came than lines, points, progress."""

    curves: dict[SeriesKey, None] = field(default_factory=dict)
    others: bool = False
