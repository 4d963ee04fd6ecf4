"""The form in a terminal or a pipe: lines as they come, and on a terminal a status line that is renewed in place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import TextIO

from kfnb.events import AttemptStarted, Checkpoint, Failure, Gap, JobEvent, LogLine, Note, PhaseChanged
from kfnb.failures import explain
from kfnb.state import JobState
from kfnb.views import words

_SGR_END = "\x1b[0m"


class TerminalView:
    """Writes to ``out``. ``status``: whether to keep a status line (on a terminal only)."""

    def __init__(self, out: TextIO, title: str, *, rank: int | None = None, status: bool | None = None) -> None:
        self._out, self._title, self._rank = out, title, rank
        self._tty = out.isatty()
        self._status = self._tty if status is None else status
        self._drawn = False
        self._non_finite = False

    def batch(self, state: JobState, events: Sequence[JobEvent]) -> None:
        lines = [line for event in events for line in self._lines(event)]
        if state.non_finite is not None and not self._non_finite:
            self._non_finite = True
            point = state.non_finite
            rank = f" of rank {point.key.rank}" if point.key.rank is not None else ""
            lines.append(f"== {words.clean(point.key.tag)}{rank} first became {point.value} at step {point.step}")
        if lines:
            self._wipe()
            self._out.write("\n".join(lines) + "\n")
            self._out.flush()

    def look(self, state: JobState, now: float) -> None:
        if self._status and not state.phase.terminal:
            self._draw(self._status_text(state, now))

    def finish(self, footer: Sequence[str] = ()) -> None:
        self._wipe()
        for line in footer:
            self._out.write(f"== {line}\n")
        self._out.flush()

    def _lines(self, event: JobEvent) -> Iterator[str]:
        if isinstance(event, LogLine):
            if not event.transient and self._rank in (None, event.rank):
                yield log_line(event, colour=self._tty)
        elif isinstance(event, PhaseChanged):
            yield f"== {self._title}: {event.phase}{words.clean(f' ({event.reason})' if event.reason else '')}"
        elif isinstance(event, Failure):
            yield f"== {words.clean(explain(event))}"
        elif isinstance(event, AttemptStarted):
            if event.node == 0:
                yield f"== Attempt {event.attempt + 1}: started again, {words.clean(event.why)}"
        elif isinstance(event, Note):
            yield f"== {words.clean(event.text)}"
        elif isinstance(event, Gap):
            yield f"== {words.plural(event.count, 'line')} of node {event.node} gone ({words.clean(event.why)})"
        elif isinstance(event, Checkpoint):
            yield f"== Checkpoint of step {event.step}: {words.clean(event.path)}"

    def _status_text(self, state: JobState, now: float) -> str:
        parts = [str(state.phase)]
        elapsed = state.elapsed(now)
        if elapsed is not None:
            parts.append(words.duration(elapsed))
        progress = state.progress(now)
        if progress is not None:
            parts.append(words.progress_text(progress))
        elif state.transient:
            line = state.transient[min(state.transient)]
            parts.append(f"{words.who(line)} {words.clean(line.text)}")
        if len(state.series):
            parts.append(words.scalars_text(state))
        return " · ".join(parts)

    def _draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._out.write(f"\r\x1b[K{text[:width]}")
        self._out.flush()
        self._drawn = True

    def _wipe(self) -> None:
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._drawn = False


def log_line(line: LogLine, *, colour: bool) -> str:
    """A line with its rank; colours are kept for a terminal, anything else that it would act on never is."""
    if not colour or "\x1b" not in line.text:
        return f"{words.who(line)} {words.clean(line.text)}"
    pieces = words.COLOURS.split(line.text)  # text, colour, text, ...
    text = "".join(piece if index % 2 else words.clean(piece) for index, piece in enumerate(pieces))
    return f"{words.who(line)} {text}{_SGR_END}"
