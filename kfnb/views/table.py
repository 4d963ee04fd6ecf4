"""Lists and long texts: plain where there is no front end, HTML where there is one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfnb.views import html, words

if TYPE_CHECKING:
    from kfnb.backends.base import JobInfo
    from kfnb.config import Setting


@dataclass(frozen=True, repr=False)
class Table:
    """Rows of plain texts under ``header``; ``empty`` is said where there are none."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str

    def __repr__(self) -> str:
        if not self.rows:
            return self.empty
        rows = [list(map(words.clean, row)) for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _repr_html_(self) -> str:
        return html.table(self.header, self.rows) if self.rows else html.preformatted(self.empty)


@dataclass(frozen=True, repr=False)
class Text:
    """A text to be shown as it is."""

    text: str

    def __repr__(self) -> str:
        return words.clean_lines(self.text)

    def _repr_html_(self) -> str:
        return html.preformatted(self.text)


def jobs(infos: Sequence[JobInfo]) -> Table:
    """The jobs in the order given."""
    now = time.time()
    rows = []
    for info in infos:
        took = "" if info.started is None else words.duration(max((info.ended or now) - info.started, 0.0))
        made = f"{words.duration(max(now - info.created, 0.0))} ago"
        ranks = f"{info.nodes} x {info.procs}"
        rows.append((info.id, str(info.phase), ranks, took, made, info.reason[:120]))
    return Table(("job", "phase", "nodes x ranks", "ran", "submitted", "why"), rows, "You have no jobs.")


def settings(held: Mapping[str, Setting]) -> Table:
    """What holds for each option, those that somebody set first."""
    ordered = sorted(held.values(), key=lambda setting: setting.source == "default")
    rows = [(f"--{setting.name}", _value(setting.value), setting.source) for setting in ordered]
    return Table(("option", "value", "from"), rows, "There are no options.")


def _value(value: object) -> str:
    if value is None or value == ():
        return ""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def stacks(found: Mapping[int, str]) -> Text:
    return Text("\n\n".join(f"rank {rank}\n{text.rstrip()}" for rank, text in found.items()))
