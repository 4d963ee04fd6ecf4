"""The bounded picture: what it always keeps, how small it stays, and what a restart does to it."""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kfnb_worker import keyframes, wire
from kfnb_worker.keyframes import POINTS, Picture

Columns = tuple[list[int], list[float], list[float]]


def scalars(
    steps: list[int], values: list[float], *, attempt: int = 0, tag: str = "loss", rank: int | None = 0
) -> dict[str, Any]:
    walls = [1000.0 + step for step in steps]
    packed = {tag: [steps, walls, wire.pack_floats(values)]}
    return {"e": "s", "a": attempt, "r": rank, "d": ".", "src": "log", "p": packed}


def pictured(picture: Picture) -> dict[tuple[int | None, str], dict[str, Any]]:
    """Series by rank and tag, from records that are each checked to fit a line and to be strict JSON."""
    records = picture.records()
    found: dict[tuple[int | None, str], dict[str, Any]] = {}
    for index, record in enumerate(records):
        assert (record["e"], record["i"], record["n"]) == ("k", index, len(records))
        assert len(json.dumps(record, allow_nan=False, separators=(",", ":"))) < 15 * 1024
        for series in record["series"]:
            steps, walls, values = series["p"]
            assert len(steps) == len(walls) == len(values) <= POINTS
            series["values"] = wire.unpack_floats(values)
            found[series["r"], series["tag"]] = series
    return found


def test_few_points_are_all_there() -> None:
    picture = Picture()
    values = [0.5, math.nan, math.inf, -math.inf, 2.0]
    picture.add(scalars([1, 2, 3, 4, 5], values))
    assert picture.records() == [
        {
            "e": "k",
            "i": 0,
            "n": 1,
            "series": [
                {
                    "r": 0,
                    "d": ".",
                    "src": "log",
                    "a": 0,
                    "tag": "loss",
                    "total": 5,
                    "p": [
                        [1, 2, 3, 4, 5],
                        [1001.0, 1002.0, 1003.0, 1004.0, 1005.0],
                        [0.5, "nan", "inf", "-inf", 2.0],
                    ],
                }
            ],
        }
    ]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(), min_size=1, max_size=30),
    st.integers(1, 60),
    st.integers(1, 500),
)
@example([1.0, math.nan], 60, 1)
def test_first_last_lowest_highest_and_first_odd_point_are_kept(some: list[float], times: int, batch: int) -> None:
    values = [value + index if index % 3 else value for index, value in enumerate(some * times)]
    steps = list(range(10, 10 + len(values)))
    picture = Picture()
    for start in range(0, len(steps), batch):
        picture.add(scalars(steps[start : start + batch], values[start : start + batch]))
    series = pictured(picture)[0, "loss"]
    kept = dict(zip(series["p"][0], series["values"], strict=True))
    assert series["total"] == len(values)
    assert list(kept) == sorted(kept)
    assert all(repr(kept[step]) == repr(values[step - 10]) for step in kept)
    assert {steps[0], steps[-1]} <= set(kept)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        assert min(finite) in kept.values()
        assert max(finite) in kept.values()
    odd = [step for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
    assert odd[:1] == [step for step in kept if not math.isfinite(kept[step])][:1]


def test_a_long_curve_is_thinned_evenly() -> None:
    picture = Picture()
    for start in range(0, 100_000, 1000):
        steps = list(range(start, start + 1000))
        picture.add(scalars(steps, [math.sin(step / 50) for step in steps]))
    steps = pictured(picture)[0, "loss"]["p"][0]
    assert 60 <= len(steps) <= POINTS
    assert max(later - earlier for earlier, later in itertools.pairwise(steps)) < 8000


def test_a_new_attempt_replaces_what_it_repeats() -> None:
    picture = Picture()
    picture.add(scalars([1, 2, 3, 4, 5], [1.0, 9.0, 3.0, math.nan, 5.0]))
    picture.add(scalars([3, 4], [30.0, 40.0], attempt=1))
    series = pictured(picture)[0, "loss"]
    assert (series["p"][0], series["values"], series["a"], series["total"]) == (
        [1, 2, 3, 4],
        [1.0, 9.0, 30.0, 40.0],
        1,
        4,
    )
    picture.add(scalars([6], [6.0]))  # a straggler
    picture.add(scalars([0], [0.0], attempt=2))
    series = pictured(picture)[0, "loss"]
    assert (series["p"][0], series["a"], series["total"]) == ([0], 2, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 2000)), min_size=1, max_size=6))
def test_restarts_of_long_curves(attempts: list[tuple[int, int]]) -> None:
    picture, expected = Picture(), list[int]()
    for attempt, (first, count) in enumerate(attempts):
        steps = list(range(first, first + count))
        picture.add(scalars(steps, [float(step % 17) for step in steps], attempt=attempt))
        expected = [step for step in expected if step < first] + steps
    series = pictured(picture)[0, "loss"]
    steps = series["p"][0]
    assert set(steps) <= set(expected)
    assert steps == sorted(steps)
    assert steps[-1] == expected[-1]
    assert abs(series["total"] - len(expected)) <= len(expected) // 10 + 64 * len(attempts)


def test_series_are_told_apart_by_all_that_they_are() -> None:
    picture = Picture()
    for rank in (None, 0, 1):
        for tag in ("loss", "lr"):
            picture.add(scalars([1], [1.0], tag=tag, rank=rank))
    other = scalars([1], [2.0])
    picture.add({**other, "d": "validation"})
    picture.add({**other, "src": "file"})
    assert sum(len(record["series"]) for record in picture.records()) == 8


def test_many_series_make_a_bounded_picture(monkeypatch: Any) -> None:
    monkeypatch.setattr(keyframes, "SERIES", 300)
    monkeypatch.setattr(keyframes, "PICTURE_POINTS", 6000)
    picture = Picture()
    steps = list(range(1000))
    for number in range(310):
        picture.add(scalars(steps, [step / 7 for step in steps], tag=f"tag {number}"))
    found = pictured(picture)
    assert len(found) == 300
    assert picture.left_out == 10_000
    assert all({0, 999} <= set(series["p"][0]) and len(series["p"][0]) <= 20 for series in found.values())


def test_long_names_and_long_numbers_fit() -> None:
    picture = Picture()
    steps = [-(2**63) + 3**38 * number for number in range(1, 13)] + list(range(2**62, 2**62 + 1000))
    values = [-math.pi * 1e-300 * (1 + (number * 7919) % 1000) for number in range(len(steps))]
    record = scalars(steps, values, tag="\x01" * 512)
    picture.add({**record, "d": "\x02" * 512})
    (series,) = pictured(picture).values()
    assert {min(values), max(values)} <= set(series["values"])


def test_memory_is_bounded_however_many_points_come() -> None:
    picture = Picture()
    record = scalars(list(range(1000)), [step / 3 for step in range(1000)])
    picture.add(record)
    tracemalloc.start()
    for _ in range(100):
        picture.add(record)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 50_000
