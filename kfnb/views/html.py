"""The HTML form: the same sentences and lines as the text, every character escaped, no script.

Styles are inline and colours are of middle brightness, so that it reads on light and dark pages, in a saved notebook
with no kernel, and where a page strips style sheets. Log text is untrusted: it only ever becomes text, with a colour.
The one image is the picture of the scalars, as data in the page.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape

from kfnb.events import LogLine, Phase
from kfnb.state import JobState
from kfnb.views import words
from kfnb.views.words import Line

RED, GREEN, AMBER, BLUE, GREY = "#d04437", "#2f9e44", "#c07a00", "#3b82d0", "#808080"

#: The eight colours of a terminal.
_ANSI = (GREY, RED, GREEN, AMBER, BLUE, "#a347ba", "#2aa1b3", GREY)

_PHASES = {
    Phase.RUNNING: BLUE,
    Phase.SUCCEEDED: GREEN,
    Phase.FAILED: RED,
    Phase.LOST: RED,
    Phase.RESTARTING: AMBER,
    Phase.STOPPED: AMBER,
    Phase.STOPPING: AMBER,
}

_STYLES = {
    "phase": "font-weight:bold",
    "reason": "opacity:0.75",
    "progress": "font-family:monospace;white-space:pre-wrap",
    "info": "opacity:0.75",
    "warning": f"color:{AMBER}",
    "failure": f"color:{RED};font-weight:bold",
}

_PRE = "margin:0.3em 0;max-height:28em;overflow:auto;white-space:pre-wrap;font-family:monospace;font-size:0.9em"


def render(
    state: JobState,
    title: str,
    now: float,
    *,
    head: int = 10,
    tail: int = 30,
    budget: int = 20_000,
    footer: Sequence[Line] = (),
    picture: bytes | None = None,
) -> str:
    """As ``text.render``, as HTML; ``picture`` is a PNG of ``kfnb.views.picture``."""
    border = _PHASES.get(state.phase, GREY)
    parts = [f'<div style="border-left:3px solid {border};padding:0.2em 0.8em">']
    parts += map(sentence, words.sentences(state, title, now))
    if picture is not None:
        parts.append(image(picture, words.scalars_text(state)))
    if state.lines or state.transient:
        log = "\n".join(_log(words.excerpt(state, head=head, tail=tail, budget=budget)))
        summary = f"Log: {words.plural(state.lines, 'line')}"
        parts.append(
            f'<details open><summary style="opacity:0.75">{summary}</summary><pre style="{_PRE}">{log}</pre></details>'
        )
    parts += map(sentence, footer)
    parts.append("</div>")
    return "".join(parts)


def sentence(line: Line) -> str:
    style = _STYLES.get(line.kind, "")
    return f'<div style="{style}"><bdi>{escape(line.text)}</bdi></div>'


def image(png: bytes, alt: str) -> str:
    """The PNG as data in the page, at half its pixels, so that it is sharp on fine screens."""
    width = int.from_bytes(png[16:20], "big") // 2
    style = f"max-width:100%;width:{width}px;display:block;margin:0.5em 0"
    data = base64.b64encode(png).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(alt)}" style="{style}">'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts."""
    cell = 'style="text-align:left;padding:0.1em 0.8em"'
    head = "".join(f"<th {cell}>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td {cell}>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def preformatted(text: str) -> str:
    return f'<pre style="{_PRE}">{escape(words.clean_lines(text))}</pre>'


def _log(excerpt: words.Excerpt) -> Iterator[str]:
    yield from map(log_line, excerpt.head)
    if excerpt.omitted:
        yield f'<i style="opacity:0.75">{escape(words.omission(excerpt.omitted))}</i>'
    yield from map(log_line, excerpt.tail)
    yield from map(log_line, excerpt.going_on)


def log_line(line: LogLine) -> str:
    # <bdi> keeps right-to-left text, and what overrides its direction, from reordering the rest of the line
    return f'<span style="opacity:0.6">{words.who(line)}</span> <bdi>{_coloured(line.text)}</bdi>'


def _coloured(text: str) -> str:
    if "\x1b" not in text:
        return escape(words.clean(text))
    parts, style = [], _Style()
    pieces = words.COLOURS.split(text)
    for index, piece in enumerate(pieces):
        if index % 2:
            style.apply(piece[2:-1])
        else:
            shown = escape(words.clean(piece))
            css = style.css
            parts.append(f'<span style="{css}">{shown}</span>' if css and shown else shown)
    return "".join(parts)


class _Style:
    """The colour and weight that the codes so far have set; what is not one of the sixteen colours is left out."""

    def __init__(self) -> None:
        self.colour, self.bold = "", False

    def apply(self, codes: str) -> None:
        numbers = [int(code) if code else 0 for code in codes.split(";")]
        if numbers[0] in (38, 48):  # 256 colours and more
            return
        for number in numbers:
            if number == 0:
                self.colour, self.bold = "", False
            elif number in (1, 22):
                self.bold = number == 1
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self.colour = _ANSI[number % 10]
            elif number == 39:
                self.colour = ""

    @property
    def css(self) -> str:
        parts = [f"color:{self.colour}"] if self.colour else []
        return ";".join([*parts, "font-weight:bold"] if self.bold else parts)
