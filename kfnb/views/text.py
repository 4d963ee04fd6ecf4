"""The plain-text form: what is seen where there is no front end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kfnb.events import LogLine
from kfnb.state import JobState
from kfnb.views import words
from kfnb.views.words import Line

_INDENT = {"phase": "", "warning": "  ! ", "failure": "  ! "}


def render(
    state: JobState,
    title: str,
    now: float,
    *,
    head: int = 10,
    tail: int = 30,
    budget: int = 20_000,
    footer: Sequence[Line] = (),
) -> str:
    """The job's state, the shown part of its log, and ``footer`` sentences of the view itself."""
    lines = [_sentence(line) for line in words.sentences(state, title, now)]
    if state.lines or state.transient:
        lines += ["", *_log(words.excerpt(state, head=head, tail=tail, budget=budget))]
    if footer:
        lines += ["", *map(_sentence, footer)]
    return "\n".join(lines)


def _sentence(line: Line) -> str:
    return _INDENT.get(line.kind, "  ") + line.text


def _log(excerpt: words.Excerpt) -> Iterator[str]:
    yield from map(log_line, excerpt.head)
    if excerpt.omitted:
        yield words.omission(excerpt.omitted)
    yield from map(log_line, excerpt.tail)
    yield from map(log_line, excerpt.going_on)


def log_line(line: LogLine) -> str:
    return f"{words.who(line)} {words.clean(line.text)}"
