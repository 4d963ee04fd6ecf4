"""Several runs in one table: what differs in options, values and code, and what became of each tag."""

from __future__ import annotations

import asyncio
import difflib
import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kfnb import portal
from kfnb.api import find
from kfnb.errors import UsageError
from kfnb.series import rank_order

if TYPE_CHECKING:
    from kfnb.backends.base import JobInfo
    from kfnb.record import Record
    from kfnb.series import Series, SeriesKey, SeriesStore

# tags of which less is better; of all others more is
_LESS_IS_BETTER = re.compile(r"loss|err|mse|mae|rmse|perplexity|ppl|nll|divergence|time|seconds|grad", re.IGNORECASE)


@dataclass(frozen=True)
class Outcome:
    """What became of a tag in one run. ``bad`` is the first point that is not finite: (step, value)."""

    last: float
    last_step: int
    best: float | None
    best_step: int | None
    bad: tuple[int, float] | None

    def text(self) -> str:
        words = f"{_number(self.last)} @ {self.last_step}"
        if self.best is not None:
            words += f" (best {_number(self.best)} @ {self.best_step})"
        if self.bad is not None:
            words += f" [{_number(self.bad[1])} since step {self.bad[0]}]"
        return words


@dataclass(frozen=True)
class Comparison:
    """The table. ``rows`` is (section, label, one cell a run); ``diffs`` the code of each run against the first's."""

    ids: list[str]
    rows: list[tuple[str, str, list[str]]]
    diffs: dict[str, str]
    outcomes: dict[str, list[Outcome | None]] = field(default_factory=dict)

    def text(self) -> str:
        table = [["", *self.ids], *([f"{label}", *cells] for _, label, cells in self.rows)]
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        for id, diff in self.diffs.items():
            lines += ["", f"code of {id} against {self.ids[0]}:", diff.rstrip("\n")]
        return "\n".join(lines)

    def html(self) -> str:
        def row(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag} style='text-align:left'>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        body = "".join(row([label, *cells], "td") for _, label, cells in self.rows)
        diffs = "".join(
            f"<details><summary>code of {html.escape(id)} against {html.escape(self.ids[0])}</summary>"
            f"<pre>{html.escape(diff)}</pre></details>"
            for id, diff in self.diffs.items()
        )
        return f"<table>{row(['', *self.ids], 'th')}{body}</table>{diffs}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "ids": self.ids,
            "rows": [{"section": section, "label": label, "cells": cells} for section, label, cells in self.rows],
            "diffs": self.diffs,
        }

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()


def compare(*names: str) -> Comparison:
    """Compare jobs by id or name. Raises ``NotFound`` for an unknown one, ``UsageError`` for fewer than two."""
    return portal.call(acompare(names))


async def acompare(names: Sequence[str]) -> Comparison:
    if len(names) < 2:
        raise UsageError("Comparing takes at least two jobs.", fix="Name them: %kfcompare NAME NAME ...")
    jobs = [await find(name) for name in names]
    infos = await asyncio.gather(*(job.ainfo() for job in jobs))
    records = await asyncio.gather(*(job.arecord() for job in jobs))
    stores = [await job.ascalars() for job in jobs]
    rows = [("job", "phase", [str(info.phase) for info in infos]), ("job", "took", [_took(info) for info in infos])]
    rows += _differing("option", [record.spec.changed() for record in records], skip=("name", "dry_run", "detach"))
    rows += _differing("value", [record.values for record in records])
    rows += _differing("package", [record.packages for record in records])
    rows += _differing("git", [_git(record) for record in records])
    outcomes = _outcomes(stores)
    rows += [("tag", tag, ["-" if o is None else o.text() for o in of_runs]) for tag, of_runs in outcomes.items()]
    diffs = {r.id: _diff(records[0], r) for r in records[1:] if r.code != records[0].code}
    if diffs:
        rows.insert(2, ("job", "code", ["-", *("differs" if r.id in diffs else "same" for r in records[1:])]))
    return Comparison([record.id for record in records], rows, diffs, outcomes)


def _differing(
    section: str, tables: Sequence[dict[str, Any]], skip: Sequence[str] = ()
) -> list[tuple[str, str, list[str]]]:
    keys = list(dict.fromkeys(key for table in tables for key in table if key not in skip))
    rows = [
        (section, key.replace("_", "-") if section == "option" else key, [_cell(t, key) for t in tables])
        for key in keys
    ]
    return [row for row in rows if len(set(row[2])) > 1]


def _cell(table: dict[str, Any], key: str) -> str:
    if key not in table:
        return "-"
    value = table[key]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _took(info: JobInfo) -> str:
    if info.started is None or info.ended is None:
        return "-"
    return f"{info.ended - info.started:.1f} s"


def _git(record: Record) -> dict[str, str]:
    if record.git is None:
        return {}
    return {"commit": record.git.commit[:10] + (" + changes" if record.git.dirty else "")}


def _diff(first: Record, other: Record) -> str:
    lines = difflib.unified_diff(first.code.splitlines(), other.code.splitlines(), first.id, other.id, lineterm="", n=2)
    return "\n".join(lines)


def _outcomes(stores: Sequence[SeriesStore]) -> dict[str, list[Outcome | None]]:
    """By label, in order of first appearance; of a series that several ranks write, the lowest rank's stands for it."""
    labels: dict[str, list[Outcome | None]] = {}
    for index, store in enumerate(stores):
        chosen: dict[str, SeriesKey] = {}
        for key in sorted(store, key=rank_order):
            chosen.setdefault(_label(key), key)
        for label, key in chosen.items():
            labels.setdefault(label, [None] * len(stores))[index] = _outcome(label, store[key])
    return labels


def _label(key: SeriesKey) -> str:
    return key.tag if key.run == "." else f"{key.run}/{key.tag}"


def _outcome(label: str, series: Series) -> Outcome | None:
    if not len(series):
        return None
    finite = np.isfinite(series.value)
    best = best_step = None
    if finite.any():
        index = np.flatnonzero(finite)
        values = series.value[index]
        at = index[values.argmin() if _LESS_IS_BETTER.search(label) else values.argmax()]
        best, best_step = float(series.value[at]), int(series.step[at])
    bad = None
    if not finite.all():
        at = int(np.flatnonzero(~finite)[0])
        bad = (int(series.step[at]), float(series.value[at]))
    return Outcome(float(series.value[-1]), int(series.step[-1]), best, best_step, bad)


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)
