"""The picture of the scalars: bounded, the same everywhere, and what a job calls its tags stays text."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kfnb.events import Phase, PhaseChanged, Points
from kfnb.series import SeriesKey
from kfnb.state import JobState
from kfnb.views import picture

NAN, INF = float("nan"), float("inf")


def points(tag: str, values: Any, rank: int | None = 0, run: str = ".", first: int = 0) -> Points:
    values = [float(value) for value in values]
    return Points(run, rank, tag, 0, list(range(first, first + len(values))), [0.0] * len(values), values)


def state_of(*events: Points) -> JobState:
    state = JobState()
    state.add([PhaseChanged(Phase.RUNNING, "", 1.0), *events])
    return state


def opened(data: bytes | None) -> Image.Image:
    assert data is not None
    image = Image.open(io.BytesIO(data))
    image.load()
    return image.convert("RGBA")


def shows(image: Image.Image, colour: str) -> bool:
    """Whether something is drawn in about this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return bool((np.abs(np.asarray(image)[:, :, :3].astype(int) - wanted).max(axis=2) < 24).sum() > 10)


def test_no_series_no_picture() -> None:
    assert picture.png(JobState()) is None
    assert picture.png(state_of()) is None


def test_it_is_the_same_every_time_and_in_every_thread() -> None:
    state = state_of(points("loss", 1 / np.arange(1, 2000)), points("accuracy", np.arange(50)))
    first = picture.png(state)
    found: list[bytes | None] = []
    threads = [threading.Thread(target=lambda: found.append(picture.png(state))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [first] * 3


def test_what_the_user_has_set_in_matplotlib_does_not_show() -> None:
    script = """
import sys, numpy
sys.path.insert(0, "tests/unit")
from test_picture import picture, points, state_of
state = state_of(points("loss $x$", numpy.arange(9.0)))
plain = picture.png(state)
drawn_by = "matplotlib.pyplot" in sys.modules
import matplotlib
matplotlib.rcParams.update({"text.usetex": True, "font.size": 30, "lines.linewidth": 9, "axes.grid": True,
    "axes.facecolor": "black", "text.color": "white", "xtick.minor.visible": True, "figure.dpi": 300,
    "axes.titlesize": 40, "path.sketch": (5, 100, 2), "lines.marker": "x", "font.family": "serif",
    "figure.autolayout": True, "figure.constrained_layout.use": True, "lines.dash_capstyle": "round",
    "axes.spines.bottom": False, "grid.color": "red", "axes.xmargin": 0.4, "ytick.labelleft": False,
    "axes.prop_cycle": matplotlib.cycler(alpha=[0.1]), "xtick.bottom": False, "ytick.color": "red",
    "xtick.labelbottom": False, "ytick.right": True, "ytick.labelright": True, "axes.unicode_minus": False})
before = dict(matplotlib.rcParams)
print(picture.png(state) == plain, dict(matplotlib.rcParams) == before, drawn_by)
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


def test_it_is_bounded() -> None:
    noise = np.random.default_rng(0).standard_normal(20_000)
    many = [points(f"tag{tag}", noise * (rank + 1), rank) for tag in range(12) for rank in range(16)]
    data = picture.png(state_of(*many))
    assert data is not None
    assert len(data) <= picture.LIMIT
    usual = [points(f"tag{tag}", 1 / np.arange(1, 3000), rank) for tag in range(6) for rank in range(4)]
    data = picture.png(state_of(*usual))
    assert data is not None
    assert len(data) <= 60_000


def test_what_is_left_out_is_counted() -> None:
    scalars = picture.collect(state_of(*(points(f"t{tag}", [1, 2], rank) for tag in range(9) for rank in range(64))))
    assert scalars.count == 9
    assert len(scalars.panels) == picture.PANELS
    for panel in scalars.panels:
        assert (len(panel.curves), panel.count) == (picture.LINES, 64)
        assert {0, 63} <= {curve.key.rank for curve in panel.curves}


def test_the_first_line_that_went_wrong_is_shown_first() -> None:
    fine = [points(f"loss{index}", [1, 2, 3]) for index in range(9)]
    wrong = [points("odd", [1, 2, INF if rank == 13 else 3], rank) for rank in range(64)]
    state = state_of(*fine, *wrong)
    first = picture.collect(state).panels[0]
    assert first.tag == "odd"
    assert 13 in {curve.key.rank for curve in first.curves}
    assert shows(opened(picture.png(state)), picture.ALARM)
    assert not shows(opened(picture.png(state_of(*fine))), picture.ALARM)


def test_losses_come_before_the_rest() -> None:
    tags = ["lr", "system/ram", "val/accuracy", "train/loss", "val/loss"]
    shown = picture.collect(state_of(*(points(tag, [1, 2]) for tag in tags))).panels
    assert [panel.tag for panel in shown] == ["train/loss", "val/loss", "val/accuracy", "lr", "system/ram"]


def test_the_peaks_stay() -> None:
    values = np.zeros(100_000)
    values[54_321], values[77_777], values[10] = 9, -9, NAN
    [panel] = picture.collect(state_of(points("loss", values))).panels
    [curve] = panel.curves
    assert len(curve.values) <= picture.POINTS + 2
    assert dict(zip(curve.steps, curve.values, strict=True))[54_321] == 9
    assert (curve.values.min(), curve.steps[0], curve.steps[-1]) == (-9, 0, 99_999)
    assert [step for step, _ in curve.odd] == [10]


@pytest.mark.parametrize(
    "values",
    [
        [NAN] * 5,
        [INF, -INF, NAN],
        [1.7e308, -1.7e308],
        [0.0],
        [1e-320, 1.0],
        [5.0] * 10,
        [1e-9, 1, 1e9],
        [1, 2, 1e30, NAN],
        [-1, 0, 1e15],
    ],
)
def test_any_numbers_can_be_drawn(values: list[float]) -> None:
    image = opened(picture.png(state_of(points("loss", values))))
    assert image.width <= 2 * max(picture.WIDTHS.values())
    assert image.getpixel((0, 0))[3] == 0  # type: ignore[index]
    assert image.getpixel((image.width // 2, 8)) >= (250, 250, 250, 255)  # type: ignore[operator]


@given(st.text(max_size=300), st.text(max_size=300))
@settings(max_examples=25, deadline=None)
def test_any_tag_can_be_drawn(tag: str, run: str) -> None:
    assert picture.png(state_of(points(tag, [1, 2]), points(tag, [1, 2], None, run)))


HOSTILE = [
    r"$\frac{a}{b",
    "$x$",
    "\u202egnp.exe",
    "\x1b]8;;javascript:x\x1b\\link",
    "\U0001f600漢字",
    "x" * 100_000,
    "\n",
]


def test_hostile_tags_are_text(recwarn: pytest.WarningsRecorder) -> None:
    for first, second in itertools.pairwise(HOSTILE):
        opened(picture.png(state_of(points(first, [1, 2]), points(second, [1, 2], None, second))))
    assert not recwarn.list


def test_a_job_of_many_writers_names_as_many_as_have_room() -> None:
    state = state_of(*(points("loss", [1, 2], rank, f"run{rank}") for rank in range(8)))
    assert next(iter(state.series)) == SeriesKey("run0", 0, "loss")
    opened(picture.png(state))
