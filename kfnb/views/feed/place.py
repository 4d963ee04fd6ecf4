"""From events to the lines of the log: those that were printed, and sentences where something else happened."""

from __future__ import annotations

from collections.abc import Sequence

from kfnb.events import AttemptStarted, Gap, JobEvent, LogLine, Phase, PhaseChanged
from kfnb.views.words import plural


class Placer:
    """Lines in the order of the stream.

    While an old log is read, phases are known before the lines: a sentence of theirs is held back until a line that is
    as late comes, or ``release`` is called.
    """

    def __init__(self) -> None:
        self.reading = True
        self._attempt = 0
        self._held: list[LogLine] = []

    def lines(self, events: Sequence[JobEvent]) -> list[LogLine]:
        lines = [event for event in events if type(event) is LogLine and not event.transient]
        if len(lines) == len(events) and not self._held:  # as it is most often
            return lines
        lines = []
        for event in events:
            if isinstance(event, LogLine):
                if self._held and event.time >= self._held[0].time:
                    lines += self._until(event.time)
                if not event.transient:
                    lines.append(event)
            elif isinstance(event, PhaseChanged):
                self._held += _phase(event)
                if not self.reading:
                    lines += self.release()
            elif isinstance(event, AttemptStarted):
                if event.attempt > self._attempt:  # every node says so, once is enough
                    self._attempt = event.attempt
                    text = f"Attempt {event.attempt + 1}: started again, {event.why}"
                    lines.append(_sentence("note", text, event.time, event.node))
            elif isinstance(event, Gap):
                verb = "is" if event.count == 1 else "are"
                text = f"{plural(event.count, 'line')} of node {event.node} {verb} gone ({event.why})"
                lines.append(_sentence("gap", text, event.time, event.node))
        return lines

    def release(self) -> list[LogLine]:
        """What was held back and has its place now."""
        held, self._held = self._held, []
        return held

    def _until(self, time: float) -> list[LogLine]:
        due = [line for line in self._held if line.time <= time]
        self._held = [line for line in self._held if line.time > time]
        return due


def _phase(event: PhaseChanged) -> list[LogLine]:
    if event.phase in (Phase.SUBMITTING, Phase.PENDING, Phase.QUEUED):
        return []  # nothing is printed yet
    return [_sentence("note", f"{event.phase}: {event.reason}" if event.reason else str(event.phase), event.time, 0)]


def _sentence(kind: str, text: str, time: float, node: int) -> LogLine:
    return LogLine(node, None, -1, text, time, kind)
