"""Curves: restarts replace what they repeat, two channels count once, keyframes fill what is gone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.events import Points
from kfnb.series import SeriesKey, SeriesStore

KEY = SeriesKey(".", 0, "loss")


def points(
    steps: list[int], *, attempt: int = 0, source: str = "log", keyframe: bool = False, total: int = 0
) -> Points:
    values = [step + attempt / 10 for step in steps]
    return Points(".", 0, "loss", attempt, steps, [float(s) for s in steps], values, source, keyframe, total)


def store_of(*batches: Points) -> SeriesStore:
    store = SeriesStore()
    for batch in batches:
        store.add(batch)
    return store


def test_a_resume_replaces_the_points_from_its_first_step_on() -> None:
    series = store_of(points([1, 2, 3, 4, 5]), points([4, 5, 6], attempt=1))[KEY]
    assert series.step.tolist() == [1, 2, 3, 4, 5, 6]
    assert series.value.tolist() == [1, 2, 3, 4.1, 5.1, 6.1]


def test_a_restart_from_the_beginning_replaces_everything() -> None:
    assert store_of(points([1, 2, 3]), points([1], attempt=1))[KEY].value.tolist() == [1.1]


def test_a_straggler_of_a_replaced_attempt_is_not_a_point() -> None:
    assert store_of(points([1, 2]), points([2], attempt=1), points([3]))[KEY].value.tolist() == [1, 2.1]


def test_points_that_were_replaced_are_not_counted() -> None:
    assert store_of(points([1, 2, 3]), points([2], attempt=1))[KEY].total == 2


def test_a_follower_knows_whether_points_were_only_added_at_the_end() -> None:
    store = store_of(points([1, 2]))
    before = store.extent(KEY)
    store.add(points([3]))
    assert store.extent(KEY) == (before.version, 3, 3)
    assert store.since(KEY, before.points).steps.tolist() == [3]
    store.add(points([3], attempt=1))
    assert store.extent(KEY)[0] != before.version


def test_a_follower_knows_that_a_keyframe_filled_in_what_is_missing() -> None:
    store = store_of(points([5, 6]))
    before = store.extent(KEY)
    store.add(points([1, 3, 5], keyframe=True, total=6))
    assert store.extent(KEY) == (before.version + 1, 4, 6)
    store.add(points([5, 6], keyframe=True, total=6))
    assert store.extent(KEY) == (before.version + 1, 4, 6)


def test_points_of_an_earlier_job_in_a_kept_logdir_come_first() -> None:
    series = store_of(points([1, 2, 3], attempt=-1, source="file"), points([3, 4]))[KEY]
    assert series.step.tolist() == [1, 2, 3, 4]
    assert series.value.tolist() == [0.9, 1.9, 3, 4]


def test_a_rank_goes_on_with_the_curve_of_an_earlier_job() -> None:
    store = SeriesStore()
    store.add(Points(".", None, "loss", -1, [1, 2], [0.0, 0.0], [5.0, 6.0], "file"))
    store.add(points([2, 3]))
    assert list(store) == [KEY]
    assert store[KEY].value.tolist() == [5, 2, 3]


def test_the_same_points_through_log_and_file_count_once() -> None:
    series = store_of(points([1, 2]), points([1, 2, 3], source="file"), points([3, 4]), points([4, 5], source="file"))[
        KEY
    ]
    assert series.step.tolist() == [1, 2, 3, 4, 5]


def test_two_points_of_one_step_in_one_channel_are_two() -> None:
    assert store_of(points([1, 1, 2]))[KEY].step.tolist() == [1, 1, 2]


def test_a_keyframe_fills_only_what_is_missing() -> None:
    picture = points([1, 50, 100, 120], keyframe=True, total=120)
    series = store_of(points([100, 101]), picture)[KEY]
    assert series.step.tolist() == [1, 50, 100, 101]
    assert series.total == 120
    assert store_of(picture, points([121]))[KEY].step.tolist() == [1, 50, 100, 120, 121]


def test_non_finite_values_are_points() -> None:
    store = SeriesStore()
    store.add(Points(".", None, "x", 0, [1, 2], [0.0, 0.0], [math.nan, math.inf]))
    assert np.isnan(store.find("x").value[0])


def test_finding_says_what_there_is() -> None:
    store = store_of(points([1]))
    store.add(Points("eval", 0, "loss", 0, [1], [0.0], [2.0]))
    assert store.find("loss", run="eval").value.tolist() == [2.0]
    with pytest.raises(KeyError, match=r"choose one: run='\.', run='eval'"):
        store.find("loss")
    with pytest.raises(KeyError, match="there are: loss"):
        store.find("accuracy")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 5)), max_size=10))
def test_steps_of_attempts_never_repeat(attempts: list[tuple[int, int, int]]) -> None:
    store, newest = SeriesStore(), -1
    for attempt, first, count in sorted(attempts):
        if attempt > newest:
            store.add(points(list(range(first, first + count)), attempt=attempt))
            newest = attempt
    for series in store.values():
        assert series.step.tolist() == sorted(set(series.step.tolist()))


def test_pandas() -> None:
    frame = store_of(points([1, 2])).to_pandas()
    assert list(frame.columns) == ["run", "rank", "tag", "step", "wall_time", "value"]
    assert frame["value"].tolist() == [1, 2]


def test_of_several_ranks_the_lowest_stands_for_all() -> None:
    store = SeriesStore()
    for rank in (3, 1, 2):
        store.add(Points(".", rank, "loss", 0, [1], [0.0], [float(rank)]))
    assert store.find("loss").value.tolist() == [1.0]
    assert store.find("loss", rank=2).value.tolist() == [2.0]
    assert "loss (run ., rank 3): 1 points" in repr(store)
