"""The scalars as a picture that needs no kernel, no script and no style sheet: small multiples, one tag each.

``collect`` takes what is shown out of a ``JobState`` and is quick; ``draw`` makes the PNG and is slow, and may run in
any thread: it uses neither pyplot nor any other state of matplotlib that the user's own figures share.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfnb.series import Series, SeriesKey, rank_order
from kfnb.state import JobState
from kfnb.views import words

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.lines import Line2D

#: Panels of a picture, lines of a panel, and entries of the legend; what is left out is said in words.
PANELS, LINES, LEGEND = 6, 8, 10

#: Points of a line, and marks of non-finite points beside each other.
POINTS, MARKS = 500, 32

#: The picture's size in bytes; panels are dropped until it holds.
LIMIT = 100_000

#: Device pixels of a CSS pixel, and the widths in CSS pixels of a picture of 1, 2 and 3 columns.
SCALE, WIDTHS = 2, {1: 480, 2: 720, 3: 900}

#: What is looked at first: tags that match an earlier pattern come earlier.
_IMPORTANCE = (
    re.compile(r"loss|perplexity|error", re.IGNORECASE),
    re.compile(r"acc|f1|auc|bleu|rouge|reward|score|metric|\biou|map\b|precision|recall", re.IGNORECASE),
    re.compile(r"val|eval|test", re.IGNORECASE),
    re.compile(r"grad|norm|lr|learning", re.IGNORECASE),
)

_LOG_SPAN = 1_000.0  # values that span more than this are drawn on a logarithmic axis
_DEEPEST = 1e-40  # of the greatest value: the lower end of a logarithmic axis
_HUGE = 1e300  # matplotlib's arithmetic overflows beyond


@dataclass(frozen=True)
class Curve:
    """One line: thinned ``steps`` and ``values`` of finite points, and the steps of those that are not."""

    key: SeriesKey
    steps: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    odd: tuple[tuple[float, float], ...]
    last: float


@dataclass(frozen=True)
class Panel:
    """The lines of one tag, of ``count`` that there are."""

    tag: str
    curves: tuple[Curve, ...]
    count: int


@dataclass(frozen=True)
class Scalars:
    """What a picture shows: ``panels`` of ``count`` tags."""

    panels: tuple[Panel, ...]
    count: int


def prepare() -> None:
    """Import what draws, in a thread of its own: at the job's end the picture then takes a tenth of the time."""
    threading.Thread(target=_import_matplotlib, name="kfnb-matplotlib", daemon=True).start()


def _import_matplotlib() -> None:
    with contextlib.suppress(Exception):  # it fails again, and is told, when the picture is drawn
        from matplotlib.backends import backend_agg
        from matplotlib.figure import Figure

        backend_agg.FigureCanvasAgg(Figure())
        _printable("", 1)  # the first look for a font reads those of the machine


def png(state: JobState) -> bytes | None:
    """The picture of the job's scalars; None where it has none."""
    return draw(collect(state))


def collect(state: JobState) -> Scalars:
    """What is to be seen of the series, copied: the state may go on changing."""
    tags: dict[str, list[SeriesKey]] = {}
    for key in state.series:
        tags.setdefault(key.tag, []).append(key)
    odd = state.non_finite.key.tag if state.non_finite is not None else None

    def importance(tag: str) -> tuple[bool, bool, int]:
        drawn = max(state.series.count(key) for key in tags[tag])
        rank = next((i for i, pattern in enumerate(_IMPORTANCE) if pattern.search(tag)), len(_IMPORTANCE))
        return tag != odd, drawn < 2, rank

    shown = sorted(tags, key=importance)[:PANELS]
    return Scalars(tuple(_panel(state, tag, tags[tag]) for tag in shown), len(tags))


def _panel(state: JobState, tag: str, keys: list[SeriesKey]) -> Panel:
    keys.sort(key=lambda key: (key.run, rank_order(key)))
    first = state.non_finite.key if state.non_finite is not None else None
    chosen = [keys[round(i * (len(keys) - 1) / (LINES - 1))] for i in range(LINES)] if len(keys) > LINES else keys
    if first in keys and first not in chosen:  # the line that went wrong is seen, whatever else is not
        chosen = [*chosen[:-1], first]
    return Panel(tag, tuple(_curve(state.series[key]) for key in chosen), len(keys))


def _curve(series: Series) -> Curve:
    import numpy as np

    from kfnb.views.feed.curves import thin

    finite = np.isfinite(series.value)
    steps = series.step[finite].astype(np.float64)
    values = np.clip(series.value[finite], -_HUGE, _HUGE)
    kept = thin(values, POINTS)
    bad = np.flatnonzero(~finite)
    bad = bad[np.unique(np.linspace(0, len(bad) - 1, POINTS).astype(int))] if len(bad) else bad
    odd = tuple((float(series.step[i]), float(series.value[i])) for i in bad)
    return Curve(series.key, steps[kept], values[kept], odd, float(series.value[-1]) if len(series) else math.nan)


# -- drawing -------------------------------------------------------------------------------------------------------

INK, FAINT, RULE, PAPER, EDGE, ALARM = "#1f2933", "#66727f", "#e7eaee", "#ffffff", "#d5dae0", "#d0312d"
_COLOURS = ("#2f6fde", "#e8730c", "#1a9361", "#8b4fc8", "#12a0b0", "#c2417f", "#8a6d1f", "#5b6876")
_DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.6)), (0, (1.2, 1.4)))

#: Heights in CSS pixels: a panel with its title and ticks, the gap between, the caption below, and the margin.
_PANEL, _GAP, _CAPTION, _MARGIN = 176, 26, 26, 18


def draw(scalars: Scalars) -> bytes | None:
    """The PNG, of at most ``LIMIT`` bytes; the same bytes for the same scalars. None where there are none."""
    panels = list(scalars.panels)
    while panels:
        data = _Drawing(panels, scalars.count).png()
        if len(data) <= LIMIT:
            return data
        panels.pop()
    return None


class _Drawing:
    def __init__(self, panels: Sequence[Panel], count: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.panels = panels
        self.styles = _styles(panels)
        self.columns = {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
        rows = math.ceil(len(panels) / self.columns)
        captioned = len(self.styles) > 1 or count > len(panels) or any(p.count > len(p.curves) for p in panels)
        self.width = WIDTHS[self.columns]
        self.height = 2 * _MARGIN + rows * _PANEL + (rows - 1) * _GAP + (_CAPTION if captioned else 0)
        layout: Any = "none"
        size = (self.width / 72, self.height / 72)
        self.figure = Figure(figsize=size, dpi=72 * SCALE, facecolor="none", layout=layout)
        self.canvas: Any = FigureCanvasAgg(self.figure)
        self._card()
        for index, panel in enumerate(panels):
            self._panel(panel, index)
        if captioned:
            self._caption(count)

    def png(self) -> bytes:
        from PIL import Image

        for artist in self.figure.findobj():
            # what the user's rcParams may have set for all artists
            artist.set_sketch_params(None)
            artist.set_path_effects([])
        self.canvas.draw()
        image = Image.frombuffer("RGBA", self.canvas.get_width_height(), bytes(self.canvas.buffer_rgba()))
        out = io.BytesIO()
        # few colours are used, and a palette of them takes a third of the bytes
        image.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(out, "png", optimize=True)
        return out.getvalue()

    def _card(self) -> None:
        from matplotlib.patches import FancyBboxPatch

        style = "round,pad=0,rounding_size=10"
        corner, size = (0.5, 0.5), (self.width - 1, self.height - 1)
        card = FancyBboxPatch(
            corner, *size, boxstyle=style, fc=PAPER, ec=EDGE, lw=1, transform=self._pixels(), zorder=-1
        )
        self.figure.add_artist(card)

    def _pixels(self) -> Any:
        from matplotlib.transforms import Affine2D

        return Affine2D().scale(1 / self.width, 1 / self.height) + self.figure.transFigure

    def _text(self, x: float, y: float, text: str, **style: Any) -> Any:
        """A text at a place in CSS pixels from the lower left corner."""
        return self.figure.text(
            x / self.width, y / self.height, text, parse_math=False, usetex=False, **{"color": INK, **style}
        )

    def _panel(self, panel: Panel, index: int) -> None:
        row, column = divmod(index, self.columns)
        cell = (self.width - 2 * _MARGIN + _GAP) / self.columns
        left, right = _MARGIN + column * cell, _MARGIN + (column + 1) * cell - _GAP
        top = self.height - _MARGIN - row * (_PANEL + _GAP)
        said = self._text(right, top - 11, _last(panel), ha="right", fontproperties=_font(10.5))
        room = right - left - self._width_of(said) - 10
        self._fitted(left, top - 11, panel.tag, room, fontproperties=_font(11, bold=True))
        axes = self.figure.add_axes(
            (
                (left + 34) / self.width,
                (top - _PANEL + 16) / self.height,
                (right - left - 34) / self.width,
                (_PANEL - 52) / self.height,
            )
        )
        log = _Axes(axes, panel, self.styles).draw()
        self._subtitle(panel, left, right, top - 26, log)

    def _subtitle(self, panel: Panel, left: float, right: float, y: float, log: bool) -> None:
        some = f"{len(panel.curves)} of {panel.count} lines" if panel.count > len(panel.curves) else ""
        note = ", ".join(filter(None, [some, "log scale" if log else ""]))
        self._text(right, y, note, ha="right", color=FAINT, fontproperties=_font(8.5))
        odd = [(curve, *point) for curve in panel.curves for point in curve.odd]
        if odd:
            curve, step, value = min(odd, key=lambda found: found[1])
            who = f" (rank {curve.key.rank})" if curve.key.rank is not None and len(panel.curves) > 1 else ""
            said = f"▼ {value:g} at step {compact(step)}{who}"
            self._fitted(left, y, said, right - left - 90, color=ALARM, fontproperties=_font(8.5, bold=True))

    def _caption(self, count: int) -> None:
        y, x = _MARGIN - 4, float(_MARGIN)
        left_out = count - len(self.panels)
        more = self._text(
            self.width - _MARGIN,
            y,
            f"{words.plural(left_out, 'more scalar')} not shown" if left_out else "",
            ha="right",
            color=FAINT,
            fontproperties=_font(8.5),
        )
        end = self.width - _MARGIN - self._width_of(more) - 20
        shown = list(self.styles.items()) if len(self.styles) > 1 else []
        for index, (writer, style) in enumerate(shown):
            label = self._text(x + 20, y, _printable(_name(writer, self.styles), 28), fontproperties=_font(9))
            wide = self._width_of(label)
            if index == LEGEND or (x + 20 + wide > end - (40 if index + 1 < len(shown) else 0)):
                label.set_text(f"and {len(shown) - index} more")
                label.set_color(FAINT)
                label.set_x(x / self.width)
                break
            self._swatch(x, y + 3.2, style)
            x += 20 + wide + 16

    def _swatch(self, x: float, y: float, style: dict[str, Any]) -> None:
        line = _line([x, x + 14], [y, y], **{**style, "width": 2, "transform": self._pixels()})
        self.figure.add_artist(line)

    def _width_of(self, text: Any) -> float:
        """In CSS pixels."""
        return float(text.get_window_extent(self.canvas.get_renderer()).width) / SCALE

    def _fitted(self, x: float, y: float, text: str, room: float, **style: Any) -> None:
        """A text that is cut in its middle where it is longer than ``room`` pixels: tags differ at both ends."""
        shown = _printable(text, 200)
        drawn = self._text(x, y, shown, **style)
        while self._width_of(drawn) > room and len(shown) > 4:
            shown = shown[: len(shown) * 9 // 10]
            half = len(shown) // 2
            full = _printable(text, 200)
            drawn.set_text(f"{full[:half]}…{full[-half:]}")


class _Axes:
    """The plot of a panel."""

    def __init__(self, axes: Any, panel: Panel, styles: dict[tuple[str, int | None], dict[str, Any]]) -> None:
        self.axes, self.panel, self.styles = axes, panel, styles

    def draw(self) -> bool:
        """Whether the vertical axis is logarithmic."""
        axes, curves = self.axes, self.panel.curves
        axes.set_facecolor("none")
        axes.set_axisbelow(True)
        axes.grid(visible=False)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set(color=EDGE, linewidth=1)
        bottom, top, log = self._vertical([curve.values for curve in curves])
        self._horizontal([step for curve in curves for step in (*curve.steps, *(at for at, _ in curve.odd))])
        self._ticks(bottom, top, log)
        for curve in curves:
            style = self.styles[curve.key.run, curve.key.rank]
            # a line that fills its panel is thin, so that its outline is seen
            thin = {"width": 1.1} if len(curve.steps) > POINTS // 2 else {}
            axes.add_line(_line(curve.steps, curve.values, **{**style, **thin}))
            axes.add_line(_marks(curve.steps[-1:], curve.values[-1:], "o", 4, style["color"]))
        self._mark_odd(sorted({step for curve in curves for step, _ in curve.odd}))
        return log

    def _mark_odd(self, steps: Sequence[float]) -> None:
        """Triangles at the upper edge, as many as have room beside each other, and a line down from the first."""
        if not steps:
            return
        axes = self.axes
        low, high = axes.get_xlim()
        marked = [steps[0]]
        for step in steps:
            if step - marked[-1] >= (high - low) / MARKS:
                marked.append(step)
        place = axes.get_xaxis_transform()
        axes.add_line(_marks(marked, [1.0] * len(marked), "v", 6, ALARM, transform=place))
        first = [steps[0]] * 2
        axes.add_line(_line(first, [0, 1], ALARM, 0.8, (0, (3, 3)), alpha=0.45, zorder=1, transform=place))

    def _vertical(self, values: Iterable[np.ndarray[Any, Any]]) -> tuple[float, float, bool]:
        """Set the vertical axis; (lower end, upper end, whether it is logarithmic)."""
        known = [array for array in values if len(array)]
        low = min((float(array.min()) for array in known), default=0.0)
        high = max((float(array.max()) for array in known), default=1.0)
        if low > 0 and high / low > _LOG_SPAN:
            self.axes.set_yscale("log")
            low = max(low, high * _DEEPEST)
            pad = (high / low) ** 0.06
            low, high, log = low / pad, high * pad, True
        else:
            pad = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
            low, high, log = low - pad, high + pad, False
        self.axes.set_ylim(low, high)
        return low, high, log

    def _horizontal(self, steps: list[float]) -> None:
        low, high = (min(steps), max(steps)) if steps else (0.0, 1.0)
        pad = 0.0 if high > low else 0.5
        self.axes.set_xlim(low - pad, high + pad)

    def _ticks(self, bottom: float, top: float, log: bool) -> None:
        from matplotlib import ticker

        axes = self.axes
        wide = ticker.MaxNLocator(4, integer=True, steps=[1, 2, 5, 10])
        tall: Any = ticker.LogLocator(numticks=5) if log else ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
        low, high = axes.get_xlim()
        vertical = [tick for tick in tall.tick_values(bottom, top) if bottom <= tick <= top]
        axes.xaxis.set_major_locator(ticker.FixedLocator([t for t in wide.tick_values(low, high) if low <= t <= high]))
        axes.yaxis.set_major_locator(ticker.FixedLocator(vertical))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(ticker.NullLocator())
            axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: compact(value)))
            axis.set_offset_position("left") if axis is axes.yaxis else None
        sides = {"labelleft": True, "labelbottom": True, "labelright": False, "labeltop": False}
        axes.tick_params(
            axis="both", length=0, pad=5, labelcolor=FAINT, labelsize=8.5, labelfontfamily="DejaVu Sans", **sides
        )
        for tick in vertical:
            axes.add_line(_line([0, 1], [tick] * 2, RULE, 1, zorder=0, transform=axes.get_yaxis_transform()))
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_usetex(False)
            label.set_parse_math(False)


def _line(x: Any, y: Any, color: str, width: float, dash: Any = "solid", *, alpha: float = 1.0, **more: Any) -> Line2D:
    """A line of which nothing is left to the user's rcParams."""
    from matplotlib.lines import Line2D

    ends: dict[str, Any] = dict.fromkeys(["solid_capstyle", "solid_joinstyle", "dash_joinstyle"], "round")
    look = {"color": color, "lw": width, "ls": dash, "alpha": alpha, "marker": "None", "antialiased": True}
    return Line2D(x, y, **{**ends, "dash_capstyle": "butt", **look, **more})


def _marks(x: Any, y: Any, shape: str, size: float, color: str, **more: Any) -> Line2D:
    """Markers with an edge of paper, which may reach over the edge of the plot."""
    edge = {"mfc": color, "mec": PAPER, "mew": 0.8, "ms": size, "fillstyle": "full"}
    return _line(x, y, color, 0, "None", **{"marker": shape, "clip_on": False, "zorder": 5, **edge, **more})


def _styles(panels: Sequence[Panel]) -> dict[tuple[str, int | None], dict[str, Any]]:
    """One colour and dash for each writer, the same in all panels."""
    writers = sorted(
        {(curve.key.run, curve.key.rank) for panel in panels for curve in panel.curves},
        key=lambda writer: (writer[0], -1 if writer[1] is None else writer[1]),
    )
    count = len(_COLOURS)
    return {
        writer: {
            "color": _COLOURS[index % count],
            "width": 1.6 if len(writers) < 3 else 1.3,
            "dash": _DASHES[index // count % len(_DASHES)],
            "alpha": 1.0 if len(writers) < 3 else 0.9,
        }
        for index, writer in enumerate(writers)
    }


def _name(writer: tuple[str, int | None], all_writers: Iterable[tuple[str, int | None]]) -> str:
    """What tells a writer from the others."""
    run, rank = writer
    runs = {other for other, _ in all_writers}
    ranks = {other for _, other in all_writers}
    parts = []
    if len(runs) > 1:
        parts.append("main" if run == "." else run)
    if rank is not None and (len(ranks) > 1 or not parts):
        parts.append(f"rank {rank}")
    return ", ".join(parts) or run


def _last(panel: Panel) -> str:
    """The last value of the line, or the span of those of several."""
    values = [curve.last for curve in panel.curves]
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < len(values) or not finite:
        return next(f"{value:g}" for value in values if not math.isfinite(value))
    low, high = f"{min(finite):.4g}", f"{max(finite):.4g}"
    return low if low == high else f"{low} to {high}"


def compact(value: float) -> str:
    """A tick's number in few characters: 0.25, 20k, 1.5M, 1e-05."""
    size = abs(value)
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit <= size < 1e12 and (unit > 1e3 or size >= 1e4):
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


def _font(size: float, *, bold: bool = False) -> Any:
    """The font that comes with matplotlib, so that a picture is the same everywhere."""
    from matplotlib.font_manager import FontProperties

    return FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")


def _printable(text: str, limit: int) -> str:
    """The text on one line, without what reorders or overprints it, and without signs that the font lacks."""
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont(_font(10))).get_charmap()
    kept = [char for char in words.clean(text[: 4 * limit]) if unicodedata.category(char) not in ("Cf", "Mn", "Me")]
    shown = "".join(" " if char == "\t" else char if ord(char) in known else "\ufffd" for char in kept)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
